"""The metrics of devices, slices and quotas: lines of name, help, and the source of the value.

exposition.py writes them for Prometheus, and docs/reference/metrics.md is made from them. None: unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from xpu_runtime.ledger.grants import MEMORY, Slice, Use
from xpu_runtime.limits import pages
from xpu_runtime.limits.pages import Compute
from xpu_runtime.observe.reading import Card, Reading, Row
from xpu_runtime.request.quotas import Quota
from xpu_runtime.value import Value
from xpu_runtime.vendors.vendor import Sensors


class OfSlice(Value):
    row: Row
    slice: Slice
    reading: Reading


class OfDevice(Value):
    """A device with the readings of its sensors."""

    card: Card
    sensors: Sensors


_Quota = tuple[str, str, Callable[[Quota, Use], Optional[float]]]
_Device = tuple[str, str, Callable[[OfDevice], Optional[float]]]
_Slice = tuple[str, str, Callable[[OfSlice], Optional[float]]]

DEVICES: tuple[_Device, ...] = (
    (
        "healthy",
        "0: the device has a fault, or is no longer on the node.",
        lambda of: of.card.device is not None and of.card.device.fault is None,
    ),
    (
        "drained",
        "1: the device gets no new slices until `xpu undrain`.",
        lambda of: _is_marked(of.card, of.card.why_drained),
    ),
    (
        "reserved",
        "1: only containers that name its reservation get it (`xpu reserve`).",
        lambda of: _is_marked(of.card, of.card.reservation),
    ),
    ("slices", "Slices granted on the device.", lambda of: len(of.card.rows)),
    (
        "memory_bytes",
        "Memory of the device, without what the driver keeps for itself.",
        lambda of: of.card.memory_total,
    ),
    (
        "memory_granted_bytes",
        "Memory granted to containers or reserved for pods.",
        lambda of: of.card.use.booked(of.card.memory_total or 0),
    ),
    (
        "memory_reserved_bytes",
        "Memory reserved for pods whose containers do not have it yet; part of the granted memory.",
        lambda of: of.card.use.reserved(of.card.memory_total or 0),
    ),
    (
        "memory_used_bytes",
        "Memory in use by any process, as the driver reports it.",
        lambda of: of.sensors.memory_used_bytes,
    ),
    (
        "cores_granted_ratio",
        "Share of the device's time granted as caps or reserved for pods.",
        lambda of: of.card.use.cores / 100,
    ),
    (
        "cores_reserved_ratio",
        "Share reserved for pods whose containers do not have it yet; part of the granted share.",
        lambda of: of.card.use.reserved_cores / 100,
    ),
    (
        "utilization_ratio",
        "Share of the device's time in use by any process.",
        lambda of: _ratio(of.card.busy),
    ),
    (
        "temperature_celsius",
        "Temperature; absent for a MIG device.",
        lambda of: of.sensors.temperature_celsius,
    ),
    ("power_watts", "Power draw; absent for a MIG device.", lambda of: of.sensors.power_watts),
)

SLICES: tuple[_Slice, ...] = (
    (
        "memory_granted_bytes",
        "Memory booked: the request, or all of the device.",
        lambda of: of.slice.memory_bytes,
    ),
    (
        "memory_limit_bytes",
        "Memory limit in force; absent for a whole device.",
        lambda of: _limit(of, MEMORY),
    ),
    (
        "memory_used_bytes",
        "Memory in use, by the container's own account, or by the driver where there is no account.",
        lambda of: of.row.memory,
    ),
    (
        "memory_reported_bytes",
        "Memory in use by the container's processes, as the driver reports it.",
        lambda of: of.reading.usage.by_driver(of.row.grant, of.row.position),
    ),
    (
        "cores_granted_ratio",
        "Cap on the device's time (`XPU_CORES`); absent without a cap.",
        lambda of: _ratio(of.row.asked),
    ),
    (
        "cores_allowed_ratio",
        "Share of the device's time that `xpu agent` allows now; MAY of `xpu top`.",
        lambda of: _ratio(of.row.allowed),
    ),
    (
        "cores_got_ratio",
        "Share of the device's time used since the last reading; GOT of `xpu top`.",
        lambda of: _ratio(of.row.got),
    ),
    ("waiting", "1: a launch has waited for its turn since the last reading.", lambda of: of.row.waits),
    (
        "held_strictly",
        "1: `xpu agent` holds the slice more strictly because it used more than its cap.",
        lambda of: bool(of.row.strict),
    ),
)

QUOTAS: tuple[_Quota, ...] = (
    ("slices", "Slices granted to the containers that count towards the quota.", lambda _, now: now.slices),
    ("max_slices", "The most slices that the quota allows.", lambda quota, _: quota.max_slices),
    ("memory_granted_bytes", "Memory booked for these containers.", lambda _, now: now.memory_bytes),
    ("max_memory_bytes", "The most memory that the quota allows.", lambda quota, _: quota.max_memory),
    (
        "cores_granted_ratio",
        "Shares of devices' time granted to these containers; a slice without a cap counts as 1.",
        lambda _, now: now.cores / 100,
    ),
    (
        "max_cores_ratio",
        "The largest sum of shares that the quota allows.",
        lambda quota, _: _ratio(quota.max_cores),
    ),
)


#: Counters of slices with a cap, by their own accounts. Whatever a container writes into its page, it has had
#: no more of the device than the time since it began. Its threads can have waited all at the same time, and
#: their true number is unknown: the bound only keeps an invented number plausible.
SECONDS: tuple[tuple[str, str, Callable[[Compute, float], float]], ...] = (
    (
        "device",
        "Device time charged to the slice, by its own account; absent without a cap.",
        lambda page, age: min(page.used / 1e9, age),
    ),
    (
        "held_back",
        "Time that launches waited, summed over threads, by the slice's own account; absent without a cap.",
        lambda page, age: min(page.held / 1e9, age * pages.SLOTS),
    ),
)


def _is_marked(card: Card, mark: object) -> bool | None:
    """None if it is not known."""
    return None if card.marks is None else mark is not None


def _limit(of: OfSlice, kind: str) -> int | None:
    if of.slice.limit(kind) is None:
        return None
    in_force = of.reading.usage.in_force(of.row.grant, of.row.position, kind)
    return None if in_force is None else in_force.limit


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
