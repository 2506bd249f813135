"""Alerts and the dashboard ask for metrics that there are; the operators' page has each alert."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
import yaml

from support import REPOSITORY
from xpu_runtime.kubernetes.device_plugin import metrics as plugin
from xpu_runtime.kubernetes.extender import metrics as extender
from xpu_runtime.ledger.events import Totals
from xpu_runtime.observe import exposition

_RULES, _DASHBOARD = "prometheus-rules.yaml", "grafana-dashboard.json"
#: The endings of a metric's names in Prometheus, by its type.
_ENDINGS = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}


def _text(name: str) -> str:
    return (REPOSITORY / "packaging/monitoring" / name).read_text()


def _names() -> set[str]:
    families = exposition.families(None, Totals({}, {}, {}), (), exposition.Counted(), [])
    families += plugin.Metrics(plugin.Snapshot).registry.collect()
    families += extender.Metrics(lambda: defaultdict(int), dict).registry.collect()
    return {each.name + ending for each in families for ending in _ENDINGS.get(each.type, ("",))}


@pytest.mark.parametrize("name", [_RULES, _DASHBOARD])
def test_queries_use_existing_metrics(name: str) -> None:
    asked = set(re.findall(r"\bxpu_\w+", _text(name)))
    assert asked and asked - _names() == set()


def test_each_alert_is_in_the_page_for_operators() -> None:
    rules = [rule["alert"] for group in yaml.safe_load(_text(_RULES))["groups"] for rule in group["rules"]]
    page = (REPOSITORY / "docs/how-to/monitor.md").read_text()
    assert re.findall(r"^\| (Xpu\w+) \|", page, re.MULTILINE) == rules
