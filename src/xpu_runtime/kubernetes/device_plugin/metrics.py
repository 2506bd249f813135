"""Prometheus metrics of the plugin, and whether it is well, over HTTP.

Counters are kept here; all other values are read at each scrape.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping

from xpu_runtime import third_party
from xpu_runtime.errors import ConfigError
from xpu_runtime.http_message import METRICS, Answer, Request, text
from xpu_runtime.http_server import Listener, Server, threaded
from xpu_runtime.linux import address
from xpu_runtime.value import Value

third_party.enable()
from prometheus_client import CollectorRegistry, Counter, Summary, generate_latest  # noqa: E402
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric  # noqa: E402
from prometheus_client.registry import Collector  # noqa: E402

_PREFIX = "xpu_kubernetes"
_IDS = (
    "IDs that the kubelet is told of, by state: healthy, unhealthy (the device has a fault), withheld (the "
    "device is drained or reserved), elsewhere (taken by docker, or by pods through another resource); and "
    "given, those that pods have."
)
_PODS = "Pods of this node that ask for devices, by state: reserved, refused or waiting."


class Snapshot(Value):
    """The plugin's state at one moment."""

    #: By resource and state: IDs. Those that pods have are counted besides ("given"), where that is known.
    resources: Mapping[str, Mapping[str, int]] = {}
    #: Pods that ask for devices, by their state.
    pods: Mapping[str, int] = {}
    #: By UUID: whether a device is healthy, and whether pods get any of it.
    devices: Mapping[str, tuple[bool, bool]] = {}
    registrations: int = 0
    registered: bool = False
    #: Whether the last call to each went well.
    api_answers: bool = False
    ledger_answers: bool = False
    drivers_answer: bool = False


class Metrics:
    """Counts calls, and makes the page."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        #: docs/reference/metrics.md is made from it.
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "calls",
            "Calls of the kubelet (options, allocate, pre_start), by outcome: ok, refused or error.",
            ("call", "outcome"),
            namespace=_PREFIX,
            registry=self.registry,
        )
        self._seconds = Summary(
            "call_seconds",
            "Time of these calls.",
            ("call",),
            namespace=_PREFIX,
            registry=self.registry,
        )
        self.registry.register(_State(snapshot))

    def observe(self, call: str, outcome: str, seconds: float) -> None:
        """Counts a call of the kubelet, with its seconds."""
        self._calls.labels(call, outcome).inc()
        self._seconds.labels(call).observe(seconds)

    def page(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)


class _State(Collector):
    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        ids = _gauge("ids", _IDS, "resource", "state")
        for resource, states in now.resources.items():
            for state, number in states.items():
                ids.add_metric([resource, state], number)
        yield ids
        yield _by("pods", _PODS, "state", now.pods)
        yield _by(
            "device_healthy",
            "0: the device has a fault, or its driver does not answer.",
            "uuid",
            {uuid: healthy for uuid, (healthy, _) in now.devices.items()},
        )
        yield _by(
            "device_offered",
            "0: no other pod gets any of the device: it has a fault, or is drained or reserved.",
            "uuid",
            {uuid: offered for uuid, (_, offered) in now.devices.items()},
        )
        yield CounterMetricFamily(
            f"{_PREFIX}_registrations",
            "Resources that a kubelet has accepted, again after each of its restarts.",
            now.registrations,
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_registered",
            "0: the kubelet does not know all resources of the plugin: no new pod gets a slice on the node.",
            float(now.registered),
        )
        parts = {"api": now.api_answers, "ledger": now.ledger_answers, "drivers": now.drivers_answer}
        yield _by(
            "up",
            "0: a part that the plugin needs (api, ledger, drivers) did not answer the last time.",
            "part",
            parts,
        )


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=labels)


def _by(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = _gauge(name, text, label)
    for value, number in values.items():
        family.add_metric([value], float(number))
    return family


def server(listen: str, metrics: Metrics, problem: Callable[[], str]) -> Server:
    """The server of /metrics and /healthz on `listen`, ADDRESS:PORT; `problem` returns why the plugin is not
    well ("": it is). ConfigError if it cannot listen there."""

    def page(request: Request) -> Answer:
        if request.path == "/metrics":
            return Answer(200, METRICS, metrics.page())
        if request.path == "/healthz":
            why = problem()
            return text(503, why) if why else text(200, "ok")
        return text(404, "there is /metrics and /healthz")

    try:
        where, port = address.parsed(listen)
        ipaddress.ip_address(where)
        listening = address.bound(where, port)
    except ValueError:
        raise ConfigError(f"{listen!r} is not ADDRESS:PORT", "such as 0.0.0.0:9402") from None
    except OSError as error:
        raise ConfigError(f"metrics cannot be served on {error.filename}: {error.strerror}") from None
    found = Server()
    found.listen(Listener(listening, threaded(page)))
    return found
