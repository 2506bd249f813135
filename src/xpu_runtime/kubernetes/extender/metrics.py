"""The extender's metrics for Prometheus: its questions, their duration, and the cluster's state.

No series has a node's or a pod's name: there are ten thousand of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from xpu_runtime import third_party, version

third_party.enable()
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest  # noqa: E402
from prometheus_client.core import GaugeMetricFamily, Metric  # noqa: E402
from prometheus_client.registry import Collector  # noqa: E402

#: Seconds; kube-scheduler gives a filter up after its httpTimeout.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_PREFIX = "xpu_extender"
_PODS = (
    "Pods that ask for devices, by state: waiting, binding, bound; held (they wait, and a place is held for "
    "their group) and unverified (bound, with an assignment that is not valid)."
)
#: For each number of Cluster.counts: the metric, its labels, and its help.
_GAUGES: tuple[tuple[str, str, dict[str, str], str], ...] = (
    (
        "nodes",
        "nodes",
        {"serves": "yes"},
        "All nodes of the cluster, by whether pods can be placed on their devices: yes or no.",
    ),
    ("unusable_nodes", "nodes", {"serves": "no"}, ""),
    ("devices", "devices", {}, "Devices of the nodes that serve."),
    ("memory", "memory_bytes", {}, "Memory of the devices of the nodes that serve."),
    ("free", "memory_free_bytes", {}, "The part of this memory that is free for pods."),
    ("bound", "pods", {"state": "bound"}, _PODS),
    ("assumed", "pods", {"state": "binding"}, ""),
    ("held", "pods", {"state": "held"}, ""),
    ("waiting", "pods", {"state": "waiting"}, ""),
    ("unverified", "pods", {"state": "unverified"}, ""),
)


class Metrics:
    """Counted here; `text` has all."""

    def __init__(
        self, counts: Callable[[], Mapping[str, int]], state: Callable[[], Mapping[str, bool]]
    ) -> None:
        """`counts` is Cluster.counts; `state` has whether this replica leads, and whether it follows nodes
        and pods."""
        #: docs/reference/metrics.md is made from it.
        self.registry = CollectorRegistry()
        self._asked = Histogram(
            "request_seconds",
            "Time of answers to kube-scheduler (filter, prioritize, preempt, bind): ok, refused or error.",
            ("verb", "result"),
            namespace=_PREFIX,
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self._api = Histogram(
            "api_bind_seconds",
            "Time that the API server needed to bind a pod.",
            namespace=_PREFIX,
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self._passed_on = Counter(
            "passed_on",
            "Requests passed on to the replica that leads, by whether it answered: yes or no.",
            ("answered",),
            namespace=_PREFIX,
            registry=self.registry,
        )
        self.registry.register(_State(counts, state))

    def asked(self, verb: str, result: str, seconds: float) -> None:
        self._asked.labels(verb, result).observe(seconds)

    def bound(self, seconds: float) -> None:
        """The API server has answered a Binding."""
        self._api.observe(seconds)

    def passed_on(self, *, is_answered: bool) -> None:
        self._passed_on.labels("yes" if is_answered else "no").inc()

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self.registry)


class _State(Collector):
    """The cluster's state at the scrape."""

    def __init__(
        self, counts: Callable[[], Mapping[str, int]], state: Callable[[], Mapping[str, bool]]
    ) -> None:
        self._counts = counts
        self._state = state

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            f"{_PREFIX}_build_info",
            "1; the label says which version of the extender this is.",
            labels=["version"],
        )
        build.add_metric([version.VERSION], 1)
        yield build
        counts = self._counts()
        families: dict[str, GaugeMetricFamily] = {}
        for key, name, labels, help_ in _GAUGES:
            full = f"{_PREFIX}_{name}"
            family = families.setdefault(full, GaugeMetricFamily(full, help_, labels=list(labels)))
            family.add_metric(list(labels.values()), counts[key])
        yield from families.values()
        state = GaugeMetricFamily(
            f"{_PREFIX}_state",
            "1: this replica is in the state: leads, follows_nodes or follows_pods.",
            labels=["state"],
        )
        for name, value in self._state().items():
            state.add_metric([name], float(value))
        yield state
