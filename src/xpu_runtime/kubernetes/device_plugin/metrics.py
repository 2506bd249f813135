"""Prometheus metrics of the plugin, and whether it is well, over HTTP.

Counters are kept here; everything else is asked for at each scrape. The text is written here ("Text-based
format" on prometheus.io): prometheus_client would take 3 MB of the plugin's 40.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Iterator, Mapping

from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.pages import TEXT, Pages
from xpu_runtime.value import Value

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Figures(Value):
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


#: The label that tells a family's samples apart, and their values.
_Labels = tuple[tuple[str, str], ...]
_Samples = Mapping[_Labels, float]


class Metrics:
    """Counts calls, and makes the page."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._seconds: dict[str, tuple[int, float]] = {}

    def observe(self, call: str, outcome: str, seconds: float) -> None:
        """A call of the kubelet, which took so long."""
        with self._lock:
            self._counts[call, outcome] = self._counts.get((call, outcome), 0) + 1
            number, sum_ = self._seconds.get(call, (0, 0.0))
            self._seconds[call] = number + 1, sum_ + seconds

    def page(self) -> bytes:
        """In Prometheus' text format."""
        return "".join(self._lines(self._figures())).encode()

    def _lines(self, now: Figures) -> Iterator[str]:
        with self._lock:
            counts, seconds = dict(self._counts), dict(self._seconds)
        yield from _family(
            "calls_total",
            "counter",
            "Calls of the kubelet.",
            {(("call", call), ("outcome", outcome)): number for (call, outcome), number in counts.items()},
        )
        lasted: dict[_Labels, float] = {}
        for call, (number, sum_) in seconds.items():
            lasted[("call", call), ("", "_sum")] = sum_
            lasted[("call", call), ("", "_count")] = number
        yield from _family("call_seconds", "summary", "How long they took.", lasted)
        ids: dict[_Labels, float] = {}
        for resource, states in now.resources.items():
            ids.update({(("resource", resource), ("state", state)): n for state, n in states.items()})
        yield from _family("ids", "gauge", "IDs that the kubelet is told of.", ids)
        yield from _family("pods", "gauge", "Pods of this node that ask for devices.", _by("state", now.pods))
        yield from _family(
            "device_healthy",
            "gauge",
            "0: the device has a fault, or its driver does not answer.",
            _by("uuid", {uuid: healthy for uuid, (healthy, _) in now.devices.items()}),
        )
        yield from _family(
            "device_offered",
            "gauge",
            "0: no other pod gets any of it.",
            _by("uuid", {uuid: offered for uuid, (_, offered) in now.devices.items()}),
        )
        registrations: dict[_Labels, float] = {(): float(now.registrations)}
        yield from _family(
            "registrations_total", "counter", "Resources that a kubelet has taken.", registrations
        )
        yield from _family(
            "registered", "gauge", "0: the kubelet does not know all of them.", {(): float(now.registered)}
        )
        parts = {"api": now.api_answers, "ledger": now.ledger_answers, "drivers": now.drivers_answer}
        yield from _family("up", "gauge", "0: what the plugin needs does not answer.", _by("part", parts))


def _by(label: str, values: Mapping[str, float]) -> _Samples:
    return {((label, name),): value for name, value in values.items()}


def _family(name: str, kind: str, text: str, samples: _Samples) -> Iterator[str]:
    """A family of metrics; a label "" is what a sample's own name has besides the family's."""
    whole = f"xpu_kubernetes_{name}"
    yield f"# HELP {whole} {text}\n# TYPE {whole} {kind}\n"
    for labels, value in samples.items():
        more = "".join(text for label, text in labels if not label)
        inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels if label)
        yield f"{whole}{more}{{{inner}}} {float(value)}\n" if inner else f"{whole}{more} {float(value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def serve(listen: str, metrics: Metrics, problem: Callable[[], str]) -> Pages:
    """Serves /metrics and /healthz on `listen`, ADDRESS:PORT, in threads, until `stop`; `problem` says why it
    is not well ("": it is). ConfigError where nothing can listen there."""
    address, _, port = listen.rpartition(":")
    address = address.strip("[]")

    def page(path: str) -> tuple[int, str, bytes]:
        if path == "/metrics":
            return 200, _TYPE, metrics.page()
        if path == "/healthz":
            why = problem()
            return (503, TEXT, f"{why}\n".encode()) if why else (200, TEXT, b"ok\n")
        return 404, TEXT, b"there is /metrics and /healthz\n"

    try:
        ipaddress.ip_address(address)
        server = Pages((address, int(port)), page)
    except (ValueError, OverflowError):
        raise ConfigError(f"{listen!r} is no ADDRESS:PORT", "such as 0.0.0.0:9402") from None
    except ConfigError as error:
        raise ConfigError(f"metrics cannot be served on {error}") from None
    server.start()
    return server
