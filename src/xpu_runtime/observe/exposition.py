"""A reading of the node in Prometheus' text format.

metric_tables.py has the metrics of devices, slices and quotas. `_of_node` has the others: events, refusals,
starts, the agent. The page docs/reference/metrics.md is made from them. An unknown value is left out, its
help is not. Containers' authors choose ids and names, so both are cut and made printable. The id
distinguishes a slice's series: no two slices have the same. Only one of the series has the name.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence

from xpu_runtime import third_party, version
from xpu_runtime.ledger import events, vocabulary
from xpu_runtime.ledger.grants import Holding, Use
from xpu_runtime.linux import proc
from xpu_runtime.observe import agent_status
from xpu_runtime.observe.metric_tables import DEVICES, QUOTAS, SECONDS, SLICES, OfDevice, OfSlice
from xpu_runtime.observe.reading import Reading, Row
from xpu_runtime.request.quotas import Quota
from xpu_runtime.vendors import registry
from xpu_runtime.vendors.vendor import Sensors

third_party.enable()
from prometheus_client import CollectorRegistry, generate_latest  # noqa: E402
from prometheus_client.core import (  # noqa: E402
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

#: The length of a label's value.
_LONGEST = 128
#: Labels that tell devices and slices apart, and labels that only the metric `..._info` has.
_BUILD = ["version", "commit"]
_DEVICE, _DEVICE_FACTS = ["uuid", "index"], ["name", "vendor", "driver_version"]
_SLICE = ["container_id", *_DEVICE]
_SLICE_FACTS = ["name", "mode", *Holding._fields, "sched", "priority"]


class Counted:
    """The last values of slices' counters, so that none goes down from one text to the next.

    In a page a counter goes down when a launch took less time than predicted, or when a process dies before a
    predicted launch. Prometheus takes such a counter for a restarted one, and adds all of it once more.
    """

    def __init__(self) -> None:
        #: By the counter, the grant and the slice in it.
        self._last: dict[tuple[str, int, float, int], float] = {}

    def told(self, name: str, row: Row, value: float) -> float:
        """`value`, or the last value if that is more."""
        key = (name, row.grant.id, row.grant.created, row.position)
        self._last[key] = max(value, self._last.get(key, 0.0))
        return self._last[key]

    def forget_others(self, rows: Iterable[Row]) -> None:
        """Forgets the values of all other slices."""
        there = {(row.grant.id, row.grant.created, row.position) for row in rows}
        self._last = {key: value for key, value in self._last.items() if key[1:] in there}


def text(
    reading: Reading | None,
    totals: events.Totals,
    quotas: Sequence[tuple[Quota, Use]],
    counted: Counted,
) -> tuple[bytes, list[str]]:
    """The node by `reading`, with the problems of other parts; None: only the ledger's counts, and xpu_up 0.
    `quotas`: each with its granted part. `counted`: the same object for all texts of one reader."""
    problems: list[str] = []
    registry_ = CollectorRegistry(auto_describe=False)
    registry_.register(_Families(families(reading, totals, quotas, counted, problems)))
    return generate_latest(registry_), problems


def families(
    reading: Reading | None,
    totals: events.Totals,
    quotas: Sequence[tuple[Quota, Use]],
    counted: Counted,
    problems: list[str],
) -> list[Metric]:
    """As `text`, each metric with its name, type, labels and help; failures go to `problems`."""
    return [*_of_node(reading, totals), *_of_quotas(quotas), *_of_reading(reading, problems, counted)]


class _Families:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _of_node(reading: Reading | None, totals: events.Totals) -> Iterator[Metric]:
    has_devices = reading is not None and not reading.missing
    build = _info("xpu_build_info", "1; the labels say which version of the runtime this is.", _BUILD)
    build.add_metric([version.VERSION, version.COMMIT], 1)
    yield build
    yield GaugeMetricFamily(
        "xpu_up",
        "0: devices and slices could not be read (driver, configuration); their metrics are left out.",
        value=has_devices,
    )
    runs = agent_status.ask() is not None if reading is None else reading.agent
    yield GaugeMetricFamily("xpu_agent_up", "1: `xpu agent` runs.", value=runs)
    happened = CounterMetricFamily(
        "xpu_events", "Events since the ledger was made, by kind.", labels=["event"]
    )
    for kind, number in {**dict.fromkeys(vocabulary.KINDS, 0), **totals.kinds}.items():
        happened.add_metric([kind], number)
    yield happened
    refusals = CounterMetricFamily(
        "xpu_refused", "Containers that were refused, by the code of the refusal.", labels=["code"]
    )
    # All exist from the start: an increase does not show in a counter that begins with 1.
    for code, number in {**dict.fromkeys(vocabulary.OF_STARTS, 0), **totals.refusals}.items():
        refusals.add_metric([code], number)
    yield refusals
    yield _starts(totals)


def _info(name: str, help_: str, labels: Sequence[str]) -> GaugeMetricFamily:
    """In the text format an info is a gauge that is 1; the library's own does not know its labels in
    advance."""
    return GaugeMetricFamily(name, help_, labels=labels)


def _starts(totals: events.Totals) -> Metric:
    family = HistogramMetricFamily(
        "xpu_start_seconds",
        "Time until the limits were in force and the container was booked as running, by mode: hook or spec.",
        labels=["mode"],
    )
    bounds = [*map(str, events.BUCKETS_S), "+Inf"]
    none = events.Starts((0,) * len(bounds), 0.0)
    for mode in ("hook", "spec"):
        starts = totals.starts.get(mode, none)
        family.add_metric([mode], list(zip(bounds, itertools.accumulate(starts.numbers))), starts.seconds)
    return family


def _of_quotas(quotas: Sequence[tuple[Quota, Use]]) -> Iterator[Metric]:
    for name, told, value in QUOTAS:
        family = GaugeMetricFamily(f"xpu_quota_{name}", told, labels=["quota"])
        for quota, now in quotas:
            if (number := value(quota, now)) is not None:
                family.add_metric([quota.name], float(number))
        yield family


def _of_reading(reading: Reading | None, problems: list[str], counted: Counted) -> Iterator[Metric]:
    sensors = {} if reading is None else registry.sensors(reading.inventory, problems)
    cards = () if reading is None else reading.cards
    devices = [OfDevice(card, sensors.get(card.uuid, Sensors())) for card in cards]
    info = _info("xpu_device_info", "1; the labels say what the device is.", [*_DEVICE, *_DEVICE_FACTS])
    for of in devices:
        driver = reading.inventory.driver(of.card.device.vendor) if reading and of.card.device else None
        facts = (of.card.name, driver.vendor if driver else "", driver.version if driver else "")
        info.add_metric([of.card.uuid, of.card.index, *map(_label, facts)], 1)
    yield info
    for name, told, value in DEVICES:
        family = GaugeMetricFamily(f"xpu_device_{name}", told, labels=_DEVICE)
        for of in devices:
            if (number := value(of)) is not None:
                family.add_metric([of.card.uuid, of.card.index], float(number))
        yield family
    yield from _of_slices([] if reading is None else _slices(reading), counted)
    if reading is not None:
        counted.forget_others(row for card in reading.cards for row in card.rows)


def _of_slices(slices: list[tuple[list[str], OfSlice]], counted: Counted) -> Iterator[Metric]:
    help_ = (
        "1; the labels say how the limits are held (strength: hard, soft or unenforced) and how the device's "
        "time is shared. `name` is NAME of `xpu ps`."
    )
    info = _info("xpu_slice_info", help_, [*_SLICE, *_SLICE_FACTS])
    for identity, of in slices:
        held = (name or "" for name in of.slice.holding.as_dict().values())
        facts = (
            _label(of.row.name or ""),
            of.row.grant.mode,
            *held,
            of.row.sched or "",
            of.row.priority or "",
        )
        info.add_metric([*identity, *facts], 1)
    yield info
    for name, told, value in SLICES:
        family = GaugeMetricFamily(f"xpu_slice_{name}", told, labels=_SLICE)
        for identity, of in slices:
            if (number := value(of)) is not None:
                family.add_metric(identity, float(number))
        yield family
    for name, told, seconds in SECONDS:
        counter = CounterMetricFamily(f"xpu_slice_{name}_seconds", told, labels=_SLICE)
        for identity, of in slices:
            if of.row.compute is not None and of.row.asked is not None:
                now = seconds(of.row.compute, _age_s(of.row))
                counter.add_metric(identity, counted.told(name, of.row, now))
        yield counter


def _age_s(row: Row) -> float:
    """Seconds since the container's process began, by /proc's clock, which cannot be set back."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - proc.seconds(row.grant.start_time))


def _slices(reading: Reading) -> list[tuple[list[str], OfSlice]]:
    """Each with its identity. Runtimes with different --root can have containers of one id."""
    found: list[tuple[list[str], OfSlice]] = []
    taken = set()
    for card in reading.cards:
        for row in card.rows:
            identity = (_label(row.container_id), card.uuid, card.index)
            if identity in taken:
                identity = (f"{identity[0]}#{row.grant.id}.{row.position}", *identity[1:])
            taken.add(identity)
            found.append((list(identity), OfSlice(row, row.grant.slices[row.position], reading)))
    return found


def _label(words: str) -> str:
    return proc.printable(words[:_LONGEST])
