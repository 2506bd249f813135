"""Prometheus metrics of the plugin, and whether it is well, over HTTP.

Counters are kept here; everything else is asked for at each scrape.
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


class Snapshot(Value):
    """What there is to tell at one moment."""

    #: By resource and state: IDs. Those that pods have are counted besides ("given"), where that is known.
    resources: Mapping[str, Mapping[str, int]] = {}
    #: By what has become of them: pods that ask for devices.
    pods: Mapping[str, int] = {}
    #: By UUID: whether a device is healthy, and whether pods get any of it.
    devices: Mapping[str, tuple[bool, bool]] = {}
    registrations: int = 0
    registered: bool = False
    #: The last time that each went well: nothing else does.
    api_answers: bool = False
    ledger_answers: bool = False
    drivers_answer: bool = False


class Metrics:
    """Counts calls, and makes the page."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._registry = CollectorRegistry()
        self._calls = Counter(
            "calls", "Calls of the kubelet.", ("call", "outcome"), namespace=_PREFIX, registry=self._registry
        )
        self._seconds = Summary(
            "call_seconds", "How long they took.", ("call",), namespace=_PREFIX, registry=self._registry
        )
        self._registry.register(_State(snapshot))

    def observe(self, call: str, outcome: str, seconds: float) -> None:
        """A call of the kubelet, which took so long."""
        self._calls.labels(call, outcome).inc()
        self._seconds.labels(call).observe(seconds)

    def page(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)


class _State(Collector):
    """What there is when it is asked."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """One metric after the other."""
        now = self._snapshot()
        ids = _gauge("ids", "IDs that the kubelet is told of.", "resource", "state")
        for resource, states in now.resources.items():
            for state, number in states.items():
                ids.add_metric([resource, state], number)
        yield ids
        yield _by("pods", "Pods of this node that ask for devices.", "state", now.pods)
        yield _by(
            "device_healthy",
            "0: the device has a fault, or its driver does not answer.",
            "uuid",
            {uuid: healthy for uuid, (healthy, _) in now.devices.items()},
        )
        yield _by(
            "device_offered",
            "0: no other pod gets any of it.",
            "uuid",
            {uuid: offered for uuid, (_, offered) in now.devices.items()},
        )
        yield CounterMetricFamily(
            f"{_PREFIX}_registrations", "Resources that a kubelet has taken.", now.registrations
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_registered", "0: the kubelet does not know all of them.", float(now.registered)
        )
        parts = {"api": now.api_answers, "ledger": now.ledger_answers, "drivers": now.drivers_answer}
        yield _by("up", "0: what the plugin needs does not answer.", "part", parts)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=labels)


def _by(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = _gauge(name, text, label)
    for value, number in values.items():
        family.add_metric([value], float(number))
    return family


def server(listen: str, metrics: Metrics, problem: Callable[[], str]) -> Server:
    """What serves /metrics and /healthz on `listen`, ADDRESS:PORT; `problem` says why the plugin is not well
    ("": it is). ConfigError where nothing can listen there."""

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
        raise ConfigError(f"{listen!r} is no ADDRESS:PORT", "such as 0.0.0.0:9402") from None
    except OSError as error:
        raise ConfigError(f"metrics cannot be served on {error.filename}: {error.strerror}") from None
    found = Server()
    found.listen(Listener(listening, threaded(page)))
    return found
