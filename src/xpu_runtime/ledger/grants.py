"""Grants and slices: what the ledger writes down."""

from __future__ import annotations

from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Holding(Value):
    """What holds a slice's limits: a backend's name and `hard`, `soft` or `unenforced`; None: no limit."""

    memory_backend: str | None = None
    memory_strength: str | None = None
    cores_backend: str | None = None
    cores_strength: str | None = None


class Slice(Value):
    """A part of one device. `memory_bytes` is booked always; `limited` says whether it is also a limit.

    `cores` is in percent, None: no cap. A slice without a memory limit has its device for itself.
    """

    device_index: str
    device_uuid: str
    memory_bytes: int
    limited: bool
    cores: int | None
    holding: Holding

    def held_by(self, backend: str) -> bool:
        """Whether `backend` holds a memory limit on this slice."""
        return self.limited and self.holding.memory_backend == backend

    def row(self) -> list[Any]:
        """The fields as they are written down: those of `holding` one by one, at the end."""
        *values, holding = self.as_dict().values()
        return [*values, *holding.as_dict().values()]

    @classmethod
    def of_row(cls, row: list[Any]) -> Slice:
        """The slice of which that is the `row`."""
        return cls(**dict(zip(cls._fields, [*row[:5], Holding(*row[5:])], strict=True)))


class Grant(Value):
    """Who holds which slices. `pid` and `start_time` (clock ticks since boot) name the process whose end
    ends the grant: the container's init, or in spec mode, until it exists, the runtime that creates it.
    """

    id: int
    container_id: str
    bundle: str
    pid: int
    start_time: int
    cgroup: str
    #: pending: being set up; running: the container has it.
    state: str
    #: hook or spec.
    mode: str
    #: Seconds since the epoch.
    created: float
    slices: tuple[Slice, ...]


class Use(Value):
    """What is granted of one device."""

    memory_bytes: int = 0
    cores: int = 0
    slices: int = 0
    #: Someone has the device for himself.
    exclusive: bool = False
    #: Who that is (a container's id), and the cap on its cores, in percent.
    holder: str = ""
    holder_cores: int | None = None
