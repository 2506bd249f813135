"""Device time that the driver counts for a container and its account lacks: a program goes round the cap.

For commands that people run; never on the start path. The driver's samples of processes are compared with the
usage page, which the container can write. A container under MPS cannot be told from the others of its server.
No backend is named here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from xpu_runtime.ledger.grants import Grant
from xpu_runtime.limits import sharing, unaccounted
from xpu_runtime.limits.sharing import Shares
from xpu_runtime.limits.usage import processes
from xpu_runtime.vendors import registry
from xpu_runtime.vendors.inventory import Inventory

#: In percent of the device. The driver tells whole percents of times of its own, and counts pauses between
#: short kernels as work: of honest programs on an H200 it counted up to 8 more than was charged.
ALLOWANCE = 15.0
#: Seconds for which it is watched, and by which samples are late.
_WATCHED_S, _LATE_S = 1.0, 0.3
_TOLD = "told-time"

_Ask = Callable[[], dict[str, dict[int, float]]]


def add(inventory: Inventory, grants: list[Grant], shares: Shares) -> Shares:
    """The shares, each with what the driver counts beyond it; None stays where it tells nothing.

    Takes 1.3 s where the driver's last samples say more than one of `shares`, otherwise next to no time.
    DeviceError if the driver cannot be asked.
    """
    capped = {
        (grant.id, position): grant.slices[position].device_uuid
        for grant in grants
        for position in range(len(grant.slices))
        if (grant.id, position) in shares and sharing.shared(grant.slices[position]) == sharing.CAP
    }
    if not capped:
        return shares
    ask = registry.utilization(inventory)
    beyond = _beyond(ask(), capped, grants, shares)
    if any(beyond.values()):
        beyond = _watch(ask, capped, grants)
    return {key: got.replace(unaccounted=beyond.get(key)) for key, got in shares.items()}


def _watch(
    ask: _Ask, capped: dict[tuple[int, int], str], grants: list[Grant]
) -> dict[tuple[int, int], float]:
    before = {key: (when, used) for key, when, used in sharing.readings(grants)}
    time.sleep(_LATE_S)
    ask()  # drops the samples from before the watch
    time.sleep(_WATCHED_S - _LATE_S)
    shares = {
        key: sharing.share(before[key][1], used, when - before[key][0])
        for key, when, used in sharing.readings(grants)
        if key in before
    }
    time.sleep(_LATE_S)
    return _beyond(ask(), capped, grants, shares)


def _beyond(
    samples: dict[str, dict[int, float]],
    capped: dict[tuple[int, int], str],
    grants: list[Grant],
    shares: Shares,
) -> dict[tuple[int, int], float]:
    """Percent beyond each share; 0.0 for as good as nothing."""
    theirs = {grant.id: processes(grant) for grant in grants}
    found = {}
    for key, uuid in capped.items():
        got, pids = shares.get(key), theirs[key[0]]
        if uuid not in samples or pids is None or got is None or got.percent is None:
            continue
        counted = 100 * min(1.0, sum(samples[uuid].get(pid, 0.0) for pid in pids))
        found[key] = beyond(counted, got.percent)
    return found


def beyond(counted: float, got: float) -> float:
    """What the driver has counted beyond a share, both in percent; 0.0 for as good as nothing."""
    return counted - got if counted - got > ALLOWANCE else 0.0


def warn(grants: list[Grant], shares: Shares) -> list[str]:
    """A line for each slice that has more; each container is told of in the system's log too, once."""
    told = []
    for grant in grants:
        found = [(position, shares.get((grant.id, position))) for position in range(len(grant.slices))]
        lines = [
            _warning(grant, position, got.unaccounted) for position, got in found if got and got.unaccounted
        ]
        told += unaccounted.tell(grant, lines, _TOLD)
    return told


def _warning(grant: Grant, position: int, percent: float) -> str:
    return (
        f"container {grant.container_id}: the driver counts {percent:.0f}% of the time of GPU "
        f"{grant.slices[position].device_index} that its account has not: a program goes round the cap "
        "(see `xpu inspect`)"
    )
