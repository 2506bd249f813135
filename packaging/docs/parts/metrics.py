"""docs/reference/metrics.md: the metrics, read from the modules that make them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from xpu_runtime.kubernetes.device_plugin import metrics as plugin
from xpu_runtime.kubernetes.extender import metrics as extender
from xpu_runtime.ledger.events import Totals
from xpu_runtime.observe import exposition

from .markdown import code, escaped, items

#: The word after `xpu_` in a metric's name; these of a node's metrics have labels of their own.
_APART = ("device", "quota", "slice")
KINDS = ("node", *_APART, "device-plugin", "extender")


def of(kind: str) -> str:
    """The list of one of KINDS."""
    if kind == "device-plugin":
        return _list(_of(plugin.Metrics(plugin.Snapshot).registry))
    if kind == "extender":
        return _list(_of(extender.Metrics(lambda: defaultdict(int), dict).registry))
    found = exposition.families(None, Totals({}, {}, {}), (), exposition.Counted(), [])
    return _list(each for each in found if _kind(each) == kind)


def _kind(metric: Metric) -> str:
    word = metric.name.split("_")[1]
    return word if word in _APART else "node"


def _of(registry: CollectorRegistry) -> Iterator[Metric]:
    for collector in registry._collector_to_names:
        labels = getattr(collector, "_labelnames", None)
        for metric in collector.collect() if labels is None else collector.describe():
            if labels is not None:
                metric._labelnames = labels
            yield metric


def _list(metrics: Iterable[Metric]) -> str:
    return items(
        (f"{_name(each)} ({'; '.join(filter(None, [each.type, code(each._labelnames)]))})", _meaning(each))
        for each in metrics
    )


def _name(metric: Metric) -> str:
    return f"**`{metric.name}{'_total' if metric.type == 'counter' else ''}`**"


def _meaning(metric: Metric) -> str:
    return escaped(metric.documentation).rstrip(".") + "."
