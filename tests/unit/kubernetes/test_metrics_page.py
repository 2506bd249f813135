"""The page of metrics says what the plugin and the extender serve; each alert is in the operators' page."""

from __future__ import annotations

import re
import time
from collections import defaultdict

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support import REPOSITORY
from xpu_runtime.kubernetes.device_plugin import metrics as plugin
from xpu_runtime.kubernetes.extender import metrics as extender
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.resources import Resources

_RULES = "packaging/monitoring/prometheus-rules.yaml"


def _plugins() -> str:
    states = dict.fromkeys(("healthy", "unhealthy", "withheld", "elsewhere", "given"), 1)
    pods = dict.fromkeys(("reserved", "refused", "waiting"), 1)
    page = plugin.Metrics(lambda: plugin.Snapshot({"r": states}, pods, {"GPU-a": (True, True)}))
    page.observe("allocate", "ok", 1.0)
    return page.page().decode()


def _extenders() -> str:
    cluster = Cluster(Resources(), dict, "binpack", time.monotonic)
    state = dict.fromkeys(("leads", "follows_nodes", "follows_pods"), True)
    page = extender.Metrics(cluster.counts, lambda: state)
    page.asked("bind", "ok", 1.0)
    page.bound(1.0)
    page.passed_on(is_answered=True)
    return page.text().decode()


#: By name its type, and its labels with all their values.
_Families = dict[str, tuple[str, dict[str, set[str]]]]


def _served(text: str) -> _Families:
    found = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        if name.endswith("_created"):  # a time, which prometheus_client adds
            continue
        labels: dict[str, set[str]] = defaultdict(set)
        for sample in family.samples:
            for label, value in sample.labels.items():
                labels[label].add(value)
        labels.pop("le", None)
        found[name] = family.type, dict(labels)
    return found


def _rows(prefix: str) -> dict[str, tuple[str, list[str], str]]:
    """By name: type, labels and meaning."""
    found = {}
    for line in (REPOSITORY / "docs/reference/metrics.md").read_text().splitlines():
        if line.startswith(f"| `{prefix}"):
            names, kind, labels, meaning = line.strip("| ").split("|")
            for name in re.findall(r"`(\w+)`", names):
                found[name] = kind.strip(), re.findall(r"`(\w+)`", labels), meaning
    return found


@pytest.mark.parametrize(
    ("prefix", "text"), [("xpu_kubernetes_", _plugins()), ("xpu_extender_", _extenders())]
)
def test_the_page_has_each_metric_with_its_type_its_labels_and_the_states_of_it(
    prefix: str, text: str
) -> None:
    served, rows = _served(text), _rows(prefix)
    assert set(rows) == set(served)
    for name, (kind, labels) in served.items():
        told, named, meaning = rows[name]
        assert (name, told, sorted(named)) == (name, kind, sorted(labels))
        states = {value for label in ("state", "serves", "answered") for value in labels.get(label, ())}
        assert [each for each in states if not re.search(rf"\b{each}\b", meaning)] == [], name


def test_each_alert_is_in_the_page_for_operators_and_asks_for_metrics_that_there_are() -> None:
    text = (REPOSITORY / _RULES).read_text()
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    page = (REPOSITORY / "docs/how-to/operate.md").read_text()
    assert re.findall(r"^\| (Xpu\w+) \|", page, re.MULTILINE) == [rule["alert"] for rule in rules]
    ours = re.findall(r"\bxpu_(?:kubernetes|extender)_\w+", " ".join(rule["expr"] for rule in rules))
    assert {re.sub("_count$", "", name) for name in ours} == {
        "xpu_kubernetes_registered",
        "xpu_kubernetes_device_healthy",
        "xpu_extender_state",
        "xpu_extender_request_seconds",
    }
    assert {re.sub("_count$", "", name) for name in ours} <= {*_served(_plugins()), *_served(_extenders())}
