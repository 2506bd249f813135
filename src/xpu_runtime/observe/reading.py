"""One reading of the node's devices and containers, as values; live.py takes it."""

from __future__ import annotations

from xpu_runtime.ledger.grants import Grant, Use
from xpu_runtime.limits.pages import Compute
from xpu_runtime.limits.usage import Usage
from xpu_runtime.value import Value
from xpu_runtime.vendors import marks
from xpu_runtime.vendors.inventory import Device, Inventory
from xpu_runtime.vendors.marks import Marks, Reservation


class Row(Value):
    """One slice of a container. Shares in percent of the device, memory in bytes; None: not known or none."""

    grant: Grant
    #: The position of the slice in it.
    position: int
    container_id: str
    asked: int | None
    got: float | None
    #: Its present share, by the agent.
    allowed: float | None
    sched: str | None
    priority: str | None
    #: A launch has waited for its turn since the last reading.
    waits: bool
    memory: int | None
    memory_limit: int
    #: The use charged in its page; None: it has no page, or an unreadable one.
    compute: Compute | None
    #: Why the agent holds it more strictly; "": it does not.
    strict: str
    #: A note: why it is held more strictly, an unknown part, or a fault.
    note: str = ""
    #: As its engine has it; None: none is known.
    name: str | None = None


class Card(Value):
    index: str
    uuid: str
    name: str
    #: Percent of its time in use; None: not known.
    busy: float | None
    memory: int | None
    #: None: it is not on this node any more.
    memory_total: int | None
    rows: tuple[Row, ...]
    #: The granted part, with reservations of pods.
    use: Use = Use()
    #: None: it is not on this node any more, and still has slices.
    device: Device | None = None
    #: An operator's marks of devices; None: those of this device, or of all devices, cannot be read.
    marks: Marks | None = None

    @property
    def why_drained(self) -> str | None:
        """As in Marks; None also if it is not known."""
        return None if self.marks is None or self.device is None else self.marks.why_drained(self.device)

    @property
    def reservation(self) -> Reservation | None:
        return None if self.marks is None or self.device is None else self.marks.reservation(self.device)

    @property
    def note(self) -> str:
        """Why its use is restricted: a fault, drained, reserved; "": it is not."""
        found = [self.device.fault] if self.device is not None and self.device.fault else []
        if (reason := self.why_drained) is not None:
            found.append(marks.as_drained(reason))
        if (reservation := self.reservation) is not None:
            found.append(marks.as_reserved(reservation))
        return "; ".join(found)


class Reading(Value):
    """The node at one time."""

    agent: bool
    cards: tuple[Card, ...]
    inventory: Inventory
    #: Facts of this time, asked at their first use.
    usage: Usage

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(self.usage.problems)

    @property
    def missing(self) -> str:
        """Why no start gets a device, where the node has none that a driver tells of; "": it has."""
        why = filter(None, (self.inventory.missing, *self.inventory.problems))
        return "" if self.inventory.devices else "; ".join(why) or "there are no devices"
