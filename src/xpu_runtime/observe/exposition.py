"""A reading of the node in Prometheus' text format.

Each metric is a line of one of the tables below: its name, what it says, and where its value comes from. A
value that is not known is left out, its help is not. What containers' authors choose are ids and names, which
are cut and made printable. A slice's series are told apart by the id: there are as many as there are slices,
and two are never the same. The name is in one of them alone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Optional

from xpu_runtime import third_party, version
from xpu_runtime.ledger import events
from xpu_runtime.ledger.grants import MEMORY, Slice, Use
from xpu_runtime.limits import pages
from xpu_runtime.limits.pages import Compute
from xpu_runtime.linux import proc
from xpu_runtime.observe import agent_status
from xpu_runtime.observe.device_state import DeviceState, states
from xpu_runtime.observe.reading import Reading, Row
from xpu_runtime.request.quotas import Quota
from xpu_runtime.value import Value

third_party.enable()
from prometheus_client import CollectorRegistry, generate_latest  # noqa: E402
from prometheus_client.core import (  # noqa: E402
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

#: Of a label's value.
_LONGEST = 128
#: A container can be refused for these (ledger/refusal.py). All are there from the start, with 0: from a
#: counter that begins with 1 nobody could tell that it has grown.
CODES = (
    "no-device",
    "unknown-device",
    "unknown-reservation",
    "not-eligible",
    "not-enough-devices",
    "not-enough-memory",
    "not-enough-cores",
    "not-enough",
    "in-use",
    "over-quota",
    "wrong-request",
    "wrong-assignment",
)


class _OfSlice(Value):
    """What is known of a slice, for the table below."""

    row: Row
    slice: Slice
    reading: Reading


_Quota = tuple[str, str, Callable[[Quota, Use], Optional[float]]]
_Device = tuple[str, str, Callable[[DeviceState], Optional[float]]]
_Slice = tuple[str, str, Callable[[_OfSlice], Optional[float]]]

_DEVICES: tuple[_Device, ...] = (
    ("healthy", "0: the device has a fault.", lambda of: of.device is not None and of.device.fault is None),
    ("drained", "1: it gets no new slices until it is undrained.", lambda of: _is_marked(of, of.why_drained)),
    (
        "reserved",
        "1: it is given only to those that name its reservation.",
        lambda of: _is_marked(of, of.reservation),
    ),
    ("slices", "Slices that are granted of it.", lambda of: len(of.card.rows)),
    ("memory_bytes", "Memory that it has.", lambda of: of.device.memory_bytes if of.device else None),
    (
        "memory_granted_bytes",
        "Memory that is granted of it, with what is reserved for pods.",
        lambda of: of.card.use.booked(of.card.memory_total),
    ),
    (
        "memory_reserved_bytes",
        "Of that, what is reserved for pods and no container has.",
        lambda of: of.card.use.reserved(of.card.memory_total),
    ),
    (
        "memory_used_bytes",
        "Memory in use as the driver reports it, whoever uses it.",
        lambda of: of.sensors.memory_used_bytes,
    ),
    (
        "cores_granted_ratio",
        "Share of its time that is granted as caps, with what is reserved for pods.",
        lambda of: of.card.use.cores / 100,
    ),
    (
        "cores_reserved_ratio",
        "Of that, what is reserved for pods and no container has.",
        lambda of: of.card.use.reserved_cores / 100,
    ),
    ("utilization_ratio", "Share of its time in use.", lambda of: _ratio(of.card.busy)),
    ("temperature_celsius", "Its temperature.", lambda of: of.sensors.temperature_celsius),
    ("power_watts", "The power that it takes.", lambda of: of.sensors.power_watts),
)

_SLICES: tuple[_Slice, ...] = (
    ("memory_granted_bytes", "Memory that is booked for it.", lambda of: of.slice.memory_bytes),
    (
        "memory_limit_bytes",
        "The limit in force; none for a whole device.",
        lambda of: _limit(of, MEMORY),
    ),
    (
        "memory_used_bytes",
        "Memory in use, by the container's account or else by the driver.",
        lambda of: of.row.memory,
    ),
    (
        "memory_reported_bytes",
        "Memory in use as the driver reports it.",
        lambda of: of.reading.usage.by_driver(of.row.grant, of.row.position),
    ),
    ("cores_granted_ratio", "Its cap (XPU_CORES); none without one.", lambda of: _ratio(of.row.asked)),
    (
        "cores_allowed_ratio",
        "The share that the agent allows it now.",
        lambda of: _ratio(of.row.allowed),
    ),
    (
        "cores_got_ratio",
        "The share of the device's time that it had since the last look.",
        lambda of: _ratio(of.row.got),
    ),
    ("waiting", "1: a launch has waited for its turn since the last look.", lambda of: of.row.waits),
    (
        "held_strictly",
        "1: the agent holds it more strictly, for it used more than its cap.",
        lambda of: bool(of.row.strict),
    ),
)

_QUOTAS: tuple[_Quota, ...] = (
    ("slices", "Slices that are granted to those that count to it.", lambda _, now: now.slices),
    ("max_slices", "The most of that.", lambda quota, _: quota.max_slices),
    ("memory_granted_bytes", "Memory that is booked for them.", lambda _, now: now.memory_bytes),
    ("max_memory_bytes", "The most of that.", lambda quota, _: quota.max_memory),
    (
        "cores_granted_ratio",
        "Shares of devices' time that are granted to them, 1 for a slice without a cap.",
        lambda _, now: now.cores / 100,
    ),
    ("max_cores_ratio", "The most of that.", lambda quota, _: _ratio(quota.max_cores)),
)


#: Counters of slices with a cap, by their own accounts. Whatever a container writes into its page, it has had
#: no more of the device than the time since it began. Its threads can have waited all at the same time, and
#: how many there were nobody knows: what bounds that keeps an invented number in proportion, and no more.
_SECONDS: tuple[tuple[str, str, Callable[[Compute, float], float]], ...] = (
    (
        "device",
        "Time of the device that was charged to it, where it has a cap; by its own account.",
        lambda page, age: min(page.used / 1e9, age),
    ),
    (
        "held_back",
        "Time that its launches waited for their turns, of all threads together; by its own account.",
        lambda page, age: min(page.held / 1e9, age * pages.SLOTS),
    ),
)


class Counted:
    """What was told last of slices' counters, so that none goes down from one text to the next.

    In a page it does, when a launch took less time than predicted, or when a process dies with a prediction
    that nothing came of. Prometheus takes a counter that goes down for one that began anew, and adds all of
    it once more.
    """

    def __init__(self) -> None:
        #: By the counter, the grant and the slice in it.
        self._last: dict[tuple[str, int, float, int], float] = {}

    def told(self, name: str, row: Row, value: float) -> float:
        """`value`, or what was told last if that is more."""
        key = (name, row.grant.id, row.grant.created, row.position)
        self._last[key] = max(value, self._last.get(key, 0.0))
        return self._last[key]

    def forget_others(self, rows: Iterable[Row]) -> None:
        """Of all slices but those."""
        there = {(row.grant.id, row.grant.created, row.position) for row in rows}
        self._last = {key: value for key, value in self._last.items() if key[1:] in there}


def text(
    reading: Reading | None,
    totals: events.Totals,
    quotas: Sequence[tuple[Quota, Use]],
    counted: Counted,
) -> tuple[bytes, list[str]]:
    """The node as `reading` has it, and what could not be read of it besides; None: only what the ledger
    counts, and that there is no more. `quotas`: each with what is granted of it. `counted`: the same object
    for each text that the same reader gets."""
    problems: list[str] = []
    registry_ = CollectorRegistry(auto_describe=False)
    families = [*_of_node(reading, totals), *_of_quotas(quotas), *_of_reading(reading, problems, counted)]
    registry_.register(_Families(families))
    return generate_latest(registry_), problems


class _Families:
    """What the library calls a collector."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _of_node(reading: Reading | None, totals: events.Totals) -> Iterator[Metric]:
    has_devices = reading is not None and not reading.missing
    build = {"version": version.VERSION, "commit": version.COMMIT}
    yield InfoMetricFamily("xpu_build", "The runtime that tells this.", value=build)
    yield GaugeMetricFamily("xpu_up", "0: devices and slices could not be read.", value=has_devices)
    runs = agent_status.ask() is not None if reading is None else reading.agent
    yield GaugeMetricFamily("xpu_agent_up", "1: xpu agent runs.", value=runs)
    happened = CounterMetricFamily("xpu_events", "Events since the ledger was made.", labels=["event"])
    for kind, number in {**dict.fromkeys(events.KINDS, 0), **totals.kinds}.items():
        happened.add_metric([kind], number)
    yield happened
    refusals = CounterMetricFamily(
        "xpu_refused", "Containers that were refused, by the refusal's code.", labels=["code"]
    )
    for code, number in {**dict.fromkeys(CODES, 0), **totals.refusals}.items():
        refusals.add_metric([code], number)
    yield refusals
    yield _starts(totals)


def _starts(totals: events.Totals) -> Metric:
    family = HistogramMetricFamily(
        "xpu_start_seconds",
        "How long hooks took until a container's limits were in force and it was entered as running.",
        labels=["mode"],
    )
    bounds = [*map(str, events.BUCKETS_S), "+Inf"]
    none = events.Starts((0,) * len(bounds), 0.0)
    for mode in ("hook", "spec"):
        starts = totals.starts.get(mode, none)
        family.add_metric([mode], list(zip(bounds, itertools.accumulate(starts.numbers))), starts.seconds)
    return family


def _of_quotas(quotas: Sequence[tuple[Quota, Use]]) -> Iterator[Metric]:
    for name, told, value in _QUOTAS:
        family = GaugeMetricFamily(f"xpu_quota_{name}", told, labels=["quota"])
        for quota, now in quotas:
            if (number := value(quota, now)) is not None:
                family.add_metric([quota.name], float(number))
        yield family


def _of_reading(reading: Reading | None, problems: list[str], counted: Counted) -> Iterator[Metric]:
    devices = [] if reading is None else states(reading, problems)
    info = InfoMetricFamily("xpu_device", "What a device is.", labels=["uuid", "index"])
    for of in devices:
        driver = reading.inventory.driver(of.device.vendor) if reading and of.device else None
        facts = {
            "name": of.card.name,
            "vendor": driver.vendor if driver else "",
            "driver_version": driver.version if driver else "",
        }
        info.add_metric([of.card.uuid, of.card.index], {key: _label(fact) for key, fact in facts.items()})
    yield info
    for name, told, value in _DEVICES:
        family = GaugeMetricFamily(f"xpu_device_{name}", told, labels=["uuid", "index"])
        for of in devices:
            if (number := value(of)) is not None:
                family.add_metric([of.card.uuid, of.card.index], float(number))
        yield family
    yield from _of_slices([] if reading is None else _slices(reading), counted)
    if reading is not None:
        counted.forget_others(row for card in reading.cards for row in card.rows)


def _of_slices(slices: list[tuple[list[str], _OfSlice]], counted: Counted) -> Iterator[Metric]:
    labels = ["container_id", "uuid", "index"]
    info = InfoMetricFamily("xpu_slice", "How a slice is held, and shares its device.", labels=labels)
    for identity, of in slices:
        held = {key: name or "" for key, name in of.slice.holding.as_dict().items()}
        shared = {"sched": of.row.sched or "", "priority": of.row.priority or ""}
        info.add_metric(
            identity, {"name": _label(of.row.name or ""), "mode": of.row.grant.mode, **held, **shared}
        )
    yield info
    for name, told, value in _SLICES:
        family = GaugeMetricFamily(f"xpu_slice_{name}", told, labels=labels)
        for identity, of in slices:
            if (number := value(of)) is not None:
                family.add_metric(identity, float(number))
        yield family
    for name, told, seconds in _SECONDS:
        counter = CounterMetricFamily(f"xpu_slice_{name}_seconds", told, labels=labels)
        for identity, of in slices:
            if of.row.compute is not None and of.row.asked is not None:
                now = seconds(of.row.compute, _age_s(of.row))
                counter.add_metric(identity, counted.told(name, of.row, now))
        yield counter


def _age_s(row: Row) -> float:
    """Since the container's process began, by the clock that /proc has it in: nobody sets that back."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - proc.seconds(row.grant.start_time))


def _is_marked(of: DeviceState, mark: object) -> bool | None:
    """None where it is not known."""
    return None if of.marks is None else mark is not None


def _slices(reading: Reading) -> list[tuple[list[str], _OfSlice]]:
    """Each with what names it. Runtimes with different --root can have containers of one id."""
    found: list[tuple[list[str], _OfSlice]] = []
    taken = set()
    for card in reading.cards:
        for row in card.rows:
            identity = (_label(row.container_id), card.uuid, card.index)
            if identity in taken:
                identity = (f"{identity[0]}#{row.grant.id}.{row.position}", *identity[1:])
            taken.add(identity)
            found.append((list(identity), _OfSlice(row, row.grant.slices[row.position], reading)))
    return found


def _limit(of: _OfSlice, kind: str) -> int | None:
    if of.slice.limit(kind) is None:
        return None
    in_force = of.reading.usage.in_force(of.row.grant, of.row.position, kind)
    return None if in_force is None else in_force.limit


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _label(words: str) -> str:
    return proc.printable(words[:_LONGEST])
