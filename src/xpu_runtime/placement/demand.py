"""The demands of a pod's containers, as values; kubernetes/resources.py reads them from the pod's limits.

The device plugin, the scheduler extender and the ledger's side of a pod all have it in this form.
"""

from __future__ import annotations

from xpu_runtime.request.assignment import Share
from xpu_runtime.request.units import share_of
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Shares = dict[str, tuple[Share, ...]]


class Demand(Value):
    """One container's demand: so much of each of `count` devices.

    `memory_bytes` or `memory_percent` of a device's memory; neither: whole devices, for this container alone.
    """

    count: int
    memory_bytes: int | None
    #: Percent of each device's time; None: no cap.
    cores: int | None
    memory_percent: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it wants its devices for itself alone."""
        return self.memory_bytes is None and self.memory_percent is None

    @property
    def limits(self) -> tuple[bool, bool]:
        """Whether its devices need a limit on memory, and one on cores: 100 percent need none."""
        return not self.is_whole, 0 < (self.cores or 0) < 100

    def memory_on(self, device_bytes: int) -> int:
        """Bytes that it takes of a device with `device_bytes`."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        if self.memory_percent is None:
            return device_bytes
        return share_of(device_bytes, self.memory_percent * 10_000)

    def share(self, device_uuid: str, device_bytes: int) -> Share:
        """Its share of that device."""
        amount = None if self.is_whole else self.memory_on(device_bytes)
        return Share(device_uuid, amount, self.cores or None)


class PodDemand(Value):
    """The demands of a pod's containers, by their names; those without a demand are left out."""

    containers: tuple[tuple[str, Demand], ...] = ()
    #: Init containers, which have ended before `containers` start.
    init: tuple[tuple[str, Demand], ...] = ()
    #: Init containers with restartPolicy Always, which run beside all that follow.
    sidecars: tuple[tuple[str, Demand], ...] = ()
    #: The pod's annotation: binpack or spread; None: it has none.
    policy: str | None = None

    @property
    def every(self) -> tuple[tuple[str, Demand], ...]:
        return *self.containers, *self.init, *self.sidecars

    def of(self, container: str) -> Demand | None:
        """The demand of that container; None: it asks for nothing."""
        return next((demand for name, demand in self.every if name == container), None)

    def shares(
        self, places: Iterable[Iterable[Iterable[int]]], uuids: Sequence[str], totals: Sequence[int]
    ) -> tuple[Shares, Shares, Shares]:
        """The shares of containers, init containers and sidecars in their places (pod.place), of devices with
        these UUIDs and bytes."""
        containers, init, sidecars = (
            {
                name: tuple(demand.share(uuids[position], totals[position]) for position in positions)
                for (name, demand), positions in zip(group, chosen)
            }
            for group, chosen in zip((self.containers, self.init, self.sidecars), places)
        )
        return containers, init, sidecars

    @property
    def is_empty(self) -> bool:
        """Whether no container asks for anything."""
        return not (self.containers or self.init or self.sidecars)
