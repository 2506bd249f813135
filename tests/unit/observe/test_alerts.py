"""Alerts ask for metrics that there are, and the operators' page has each alert."""

from __future__ import annotations

import re
from collections import defaultdict

import yaml

from support import REPOSITORY
from xpu_runtime.kubernetes.device_plugin import metrics as plugin
from xpu_runtime.kubernetes.extender import metrics as extender
from xpu_runtime.ledger.events import Totals
from xpu_runtime.observe import exposition

_RULES = (REPOSITORY / "packaging/monitoring/prometheus-rules.yaml").read_text()
#: The endings of a metric's names in Prometheus, by its type.
_ENDINGS = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}


def _names() -> set[str]:
    families = exposition.families(None, Totals({}, {}, {}), (), exposition.Counted(), [])
    families += plugin.Metrics(plugin.Snapshot).registry.collect()
    families += extender.Metrics(lambda: defaultdict(int), dict).registry.collect()
    return {each.name + ending for each in families for ending in _ENDINGS.get(each.type, ("",))}


def test_alerts_use_existing_metrics() -> None:
    """Those of the dashboard: Prometheus has something for every panel (integration/agent)."""
    asked = set(re.findall(r"\bxpu_\w+", _RULES))
    assert asked and asked - _names() == set()


def test_each_alert_is_in_the_page_for_operators() -> None:
    rules = [rule["alert"] for group in yaml.safe_load(_RULES)["groups"] for rule in group["rules"]]
    page = (REPOSITORY / "docs/how-to/monitor.md").read_text()
    assert re.findall(r"^\| (Xpu\w+) \|", page, re.MULTILINE) == rules
