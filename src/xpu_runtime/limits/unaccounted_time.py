"""Device time that the driver counts for a container and its account lacks: a program goes round the cap.

For commands that people run; never on the start path. The driver's samples of processes are compared with the
usage page, which the container can write. A container that is charged ahead is left out: a kernel of seconds
counts in its account at its launch, and with the driver while it runs. So is one under MPS, whose server the
driver takes for all of its containers. This module names no backend.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from xpu_runtime.ledger.grants import Grant
from xpu_runtime.limits import sharing, unaccounted
from xpu_runtime.limits.sharing import Got, Shares
from xpu_runtime.limits.usage import processes
from xpu_runtime.vendors import registry
from xpu_runtime.vendors.inventory import Inventory

#: In percent of the device. The driver tells whole percents of times of its own, and counts pauses between
#: short kernels as work: of honest programs on an H200 it counted up to 8 more than was charged.
ALLOWANCE = 15.0
#: Seconds for which it is watched, and by which samples are late.
_WATCHED_S, _LATE_S = 1.0, 0.3
#: Nanoseconds of the device's time that a container owes when it is charged ahead. Short kernels have no more
#: than 20 ms under way.
_AHEAD_NS = 50_000_000
_TOLD = "told-time"

_Key = tuple[int, int]
_Ask = Callable[[], dict[str, dict[int, float]]]


def got(inventory: Inventory, grants: list[Grant]) -> Shares:
    """As `sharing.got`, with the driver's count beyond each share; None if the driver reports none.

    Takes 1.3 s longer if that is more than ALLOWANCE at the first look. DeviceError if the driver cannot be
    asked.
    """
    capped = {
        (grant.id, position): grant.slices[position].device_uuid
        for grant in grants
        for position in range(len(grant.slices))
        if sharing.shared(grant.slices[position]) == sharing.CAP
    }
    ask = registry.utilization(inventory) if capped else dict
    before = ask()  # of the time before, too: they count only where there are no newer ones
    shares = sharing.got(grants)
    samples = {uuid: newer or before.get(uuid, {}) for uuid, newer in ask().items()}
    beyond = _beyond(samples, capped, grants, shares)
    if any(beyond.values()):
        beyond = _watch(ask, capped, grants)
    return {key: share.replace(unaccounted=beyond.get(key)) for key, share in shares.items()}


def _watch(ask: _Ask, capped: dict[_Key, str], grants: list[Grant]) -> dict[_Key, float]:
    caps = {(g.id, p): g.slices[p].cores or 100 for g in grants for p in range(len(g.slices))}
    before = {key: (when, used) for key, when, used in sharing.readings(grants)}
    time.sleep(_LATE_S)
    ask()  # drops the samples from before the watch
    time.sleep(_WATCHED_S - _LATE_S)
    shares: Shares = {}
    for key, when, used in sharing.readings(grants):
        if key not in before:
            continue
        then, was = before[key]
        ahead = max(was.paid - then, used.paid - when) * caps[key] // 100
        shares[key] = Got(None) if ahead > _AHEAD_NS else sharing.share(was, used, when - then)
    time.sleep(_LATE_S)
    return _beyond(ask(), capped, grants, shares)


def _beyond(
    samples: dict[str, dict[int, float]], capped: dict[_Key, str], grants: list[Grant], shares: Shares
) -> dict[_Key, float]:
    """Percent beyond each share; 0.0 for negligible amounts. Unknown ones are left out."""
    theirs = {grant.id: processes(grant) for grant in grants}
    # In a PID namespace that containers share it is not known whose a process is.
    owners: dict[int, int] = {}
    for pids in theirs.values():
        for pid in pids or ():
            owners[pid] = owners.get(pid, 0) + 1
    found = {}
    for key, uuid in capped.items():
        share, pids = shares.get(key), theirs[key[0]]
        known = pids is not None and all(owners[pid] == 1 for pid in pids)
        if uuid not in samples or not known or share is None or share.percent is None:
            continue
        counted = 100 * min(1.0, sum(samples[uuid].get(pid, 0.0) for pid in pids or ()))
        found[key] = beyond(counted, share.percent)
    return found


def beyond(counted: float, got: float) -> float:
    """The driver's count beyond a share, both in percent; 0.0 for negligible amounts."""
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
        f"{grant.slices[position].device_index} that its account lacks: a program goes round the cap "
        "(see `xpu inspect`)"
    )
