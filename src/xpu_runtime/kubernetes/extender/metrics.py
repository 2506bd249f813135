"""The extender's metrics for Prometheus: what it was asked, how long that took, and what the cluster has.

No series has a node's or a pod's name: there are ten thousand of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from xpu_runtime import third_party, version

third_party.enable()
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest  # noqa: E402
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric  # noqa: E402
from prometheus_client.registry import Collector  # noqa: E402

#: Seconds; kube-scheduler gives a filter up after its httpTimeout.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_PREFIX = "xpu_extender"
#: Of Cluster.counts: the metric, its labels, and what it says.
_GAUGES: tuple[tuple[str, str, dict[str, str], str], ...] = (
    ("nodes", "nodes", {"serves": "yes"}, "Nodes, by whether pods can be placed on their devices."),
    ("unusable_nodes", "nodes", {"serves": "no"}, ""),
    ("devices", "devices", {}, "Devices of the nodes that serve."),
    ("memory", "memory_bytes", {}, "Memory of the devices of the nodes that serve."),
    ("free", "memory_free_bytes", {}, "What of it is free for pods."),
    ("bound", "pods", {"state": "bound"}, "Pods that ask for devices, by what is known of them."),
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
        self._registry = CollectorRegistry()
        self._asked = Histogram(
            "request_seconds",
            "What kube-scheduler asked, until it was answered: ok, refused (with a reason) or error.",
            ("verb", "result"),
            namespace=_PREFIX,
            registry=self._registry,
            buckets=_BUCKETS,
        )
        self._api = Histogram(
            "api_bind_seconds",
            "What the API server needed to bind a pod.",
            namespace=_PREFIX,
            registry=self._registry,
            buckets=_BUCKETS,
        )
        self._passed_on = Counter(
            "passed_on",
            "Requests that were passed on to the replica that leads, by whether it answered.",
            ("answered",),
            namespace=_PREFIX,
            registry=self._registry,
        )
        self._registry.register(_State(counts, state))

    def asked(self, verb: str, result: str, seconds: float) -> None:
        """A request was answered."""
        self._asked.labels(verb, result).observe(seconds)

    def bound(self, seconds: float) -> None:
        """The API server has answered a Binding."""
        self._api.observe(seconds)

    def passed_on(self, *, is_answered: bool) -> None:
        """A request was passed on."""
        self._passed_on.labels("yes" if is_answered else "no").inc()

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self._registry)


class _State(Collector):
    """What the cluster has when it is asked."""

    def __init__(
        self, counts: Callable[[], Mapping[str, int]], state: Callable[[], Mapping[str, bool]]
    ) -> None:
        self._counts = counts
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """One metric after the other."""
        yield InfoMetricFamily(f"{_PREFIX}_build", "Which extender this is.", {"version": version.VERSION})
        counts = self._counts()
        families: dict[str, GaugeMetricFamily] = {}
        for key, name, labels, help_ in _GAUGES:
            full = f"{_PREFIX}_{name}"
            family = families.setdefault(full, GaugeMetricFamily(full, help_, labels=list(labels)))
            family.add_metric(list(labels.values()), counts[key])
        yield from families.values()
        state = GaugeMetricFamily(
            f"{_PREFIX}_state", "1 where it is so: leads, follows_nodes, follows_pods.", labels=["state"]
        )
        for name, value in self._state().items():
            state.add_metric([name], float(value))
        yield state
