"""Grants and slices: the ledger's records, as values.

Knows nothing of SQLite, of devices or of the backends: `Holding` has a backend by its name only.
"""

from __future__ import annotations

from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


#: The kinds of limits: memory in bytes, cores in percent of the device.
MEMORY, CORES = "memory", "cores"
KINDS = (MEMORY, CORES)


class Holding(Value):
    """The holder of a slice's limits: a backend's name and `hard`, `soft` or `unenforced`; None: no limit."""

    memory_backend: str | None = None
    memory_strength: str | None = None
    cores_backend: str | None = None
    cores_strength: str | None = None


class Slice(Value):
    """A slice of one device. `memory_bytes` is always booked; `limited` says whether it is also a limit.

    `cores` is in percent, None: no cap. A slice without a memory limit has its device for itself.
    """

    device_index: str
    device_uuid: str
    memory_bytes: int
    limited: bool
    cores: int | None
    holding: Holding

    def limit(self, kind: str) -> int | None:
        """The limit of that kind, in bytes or percent; None for none."""
        if kind == MEMORY:
            return self.memory_bytes if self.limited else None
        return self.cores if self.holding.cores_backend else None

    def holder(self, kind: str) -> str | None:
        """The name of the backend that holds the limit of that kind (`none`: nothing does); None: no limit"""
        if self.limit(kind) is None:
            return None
        return self.holding.memory_backend if kind == MEMORY else self.holding.cores_backend

    def row(self) -> list[Any]:
        """The fields in the order of a database row; those of `holding` follow one by one."""
        *values, holding = self.as_dict().values()
        return [*values, *holding.as_dict().values()]

    @classmethod
    def of_row(cls, row: list[Any]) -> Slice:
        return cls(*[*row[:5], Holding(*row[5:])])


class Grant(Value):
    """Which container holds which slices. `pid` and `start_time` (clock ticks since boot) name the process
    whose end ends the grant: the container's init or, in spec mode until that exists, the runtime that
    creates it.
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

    @property
    def name(self) -> str:
        """A name for files that no other grant ever has, not even one of a ledger that was removed."""
        return f"{self.id}-{int(self.created * 1000)}"


class Use(Value):
    """The granted part of one device, and the part reserved for pods beyond their containers' slices."""

    memory_bytes: int = 0
    cores: int = 0
    slices: int = 0
    #: One container has the whole device.
    exclusive: bool = False
    #: The id of that container, and the cap on its cores in percent (None: no cap).
    holder: str = ""
    holder_cores: int | None = None
    #: The part of the above that is reserved for pods and held by no container.
    reserved_memory: int = 0
    reserved_cores: int = 0
    #: The pod, as NAMESPACE/NAME, that the whole device is reserved for, where no container has it.
    holder_pod: str = ""

    def plus(self, more: Use) -> Use:
        """Plus the grants of others."""
        return self.replace(
            memory_bytes=self.memory_bytes + more.memory_bytes,
            cores=self.cores + more.cores,
            slices=self.slices + more.slices,
            exclusive=self.exclusive or more.exclusive,
            holder=more.holder or self.holder,
        )

    def booked(self, device_bytes: int) -> int:
        """The granted or reserved bytes of a device with so many bytes."""
        return device_bytes if self.holder_pod else self.memory_bytes

    def reserved(self, device_bytes: int) -> int:
        """The part of the booked bytes that is reserved for pods and held by no container."""
        return self.booked(device_bytes) - (self.memory_bytes - self.reserved_memory)
