"""What a pod's containers hold of each device at one time, by the shares of each.

A pod's containers run together, after its init containers, which run one after the other. Sidecars (init
containers with restartPolicy: Always) run beside all of them. Who gives shares, and where they stand, is
not known here.
"""

from __future__ import annotations

from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xpu_runtime.request.assignment import Share

    Shares = Mapping[str, tuple[Share, ...]]


class Amount(Value):
    """Of one device: bytes, percent of its cores, and whether a container has all of it."""

    memory_bytes: int = 0
    cores: int = 0
    whole: bool = False
    #: One has all of it, and another one has a share at the same time.
    clash: bool = False

    def larger(self, other: Amount) -> Amount:
        return Amount(
            max(self.memory_bytes, other.memory_bytes),
            max(self.cores, other.cores),
            self.whole or other.whole,
            self.clash or other.clash,
        )


def at_one_time(containers: Shares, init: Shares, sidecars: Shares) -> dict[str, Amount]:
    """What a pod can have of each device at one time, by UUID: the larger of all containers with the
    sidecars, and of each init container with them."""
    found = _sum([*sidecars.values(), *containers.values()])
    for shares in init.values():
        for uuid, each in _sum([shares, *sidecars.values()]).items():
            found[uuid] = found[uuid].larger(each) if uuid in found else each
    return found


def _sum(groups: Iterable[tuple[Share, ...]]) -> dict[str, Amount]:
    found: dict[str, Amount] = {}
    for share in (share for group in groups for share in group):
        is_whole = share.memory_bytes is None
        before = found.get(share.device_uuid)
        if before is None:
            found[share.device_uuid] = Amount(share.memory_bytes or 0, share.cores or 0, is_whole)
            continue
        found[share.device_uuid] = Amount(
            before.memory_bytes + (share.memory_bytes or 0),
            before.cores + (share.cores or 0),
            before.whole or is_whole,
            before.clash or before.whole or is_whole,
        )
    return found
