"""The most that a pod's containers hold of each device at one time.

A pod's containers run together, after its init containers. Those run one after the other. Sidecars (init
containers with restartPolicy: Always) run beside all of them. The pod holds the larger amount of both phases
from the beginning to the end, so that a restart has room.
"""

from __future__ import annotations

from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeVar

    from xpu_runtime.request.assignment import Share

    Shares = Mapping[str, tuple[Share, ...]]
    Device = TypeVar("Device", str, int)  # its UUID or position
    Part = tuple[Device, int, int]
    Held = dict[Device, tuple[int, int]]

#: The bytes of a whole device of any size: more than any device has, and more than a pod may have in all.
_WHOLE = 1 << 100


class Amount(Value):
    """An amount of one device: bytes (0 for the whole device), percent of its cores, and whether a container
    has the whole device."""

    memory_bytes: int = 0
    cores: int = 0
    whole: bool = False
    #: One container has the whole device, and another one has a share at the same time.
    clash: bool = False


def of_shares(containers: Shares, init: Shares, sidecars: Shares) -> dict[str, Amount]:
    """The most that a pod can have of each device at one time, by UUID."""
    groups = ([_parts(shares) for shares in group.values()] for group in (containers, init, sidecars))
    return {
        uuid: Amount(0 if memory >= _WHOLE else memory, cores, memory >= _WHOLE, memory > _WHOLE)
        for uuid, (memory, cores) in at_one_time(*groups).items()
    }


def _parts(shares: Iterable[Share]) -> list[tuple[str, int, int]]:
    return [
        (each.device_uuid, _WHOLE if each.memory_bytes is None else each.memory_bytes, each.cores or 0)
        for each in shares
    ]


def at_one_time(
    containers: Iterable[Iterable[Part[Device]]],
    init: Iterable[Iterable[Part[Device]]],
    sidecars: Iterable[Iterable[Part[Device]]],
) -> Held[Device]:
    """(Bytes, percent) of each device. It is the larger of two: all containers with the sidecars, or each
    init container with them."""
    beside = together(sidecars)
    held = together(containers, beside)
    for parts in init:
        hold_at_first(held, beside, parts)
    return held


def together(
    containers: Iterable[Iterable[Part[Device]]], beside: Held[Device] | None = None
) -> Held[Device]:
    """The sum of containers that run at the same time, and of others `beside` them."""
    found = dict(beside or {})
    for parts in containers:
        for device, memory, cores in parts:
            before = found.get(device, (0, 0))
            found[device] = before[0] + memory, before[1] + cores
    return found


def hold_at_first(held: Held[Device], beside: Held[Device], parts: Iterable[Part[Device]]) -> None:
    """Adds an init container to `held`. `beside` are the sidecars' shares. For devices that the init
    container does not use, `held` includes them already."""
    for device, memory, cores in parts:
        side, before = beside.get(device, (0, 0)), held.get(device, (0, 0))
        held[device] = max(before[0], side[0] + memory), max(before[1], side[1] + cores)
