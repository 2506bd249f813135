"""The sharing of devices' time, and a container's present share, for commands that people run.

The container can write its usage page, which has the use: no number in it counts for more than the time that
has passed. This module names no backend.
"""

from __future__ import annotations

import time

from xpu_runtime.ledger.grants import CORES, MEMORY, Grant, Slice
from xpu_runtime.limits import pages, registry
from xpu_runtime.limits.pages import Compute, Policy
from xpu_runtime.value import Value

#: Seconds between two readings of the use. A person waits for it: `xpu top` shows longer times.
WINDOW_S = 0.2


class Got(Value):
    """A container's share of a device's time in a window."""

    #: None if it is not known.
    percent: float | None
    #: Charges were guessed: `percent` is None for that.
    unmeasured: bool = False
    #: Percent that the driver counts beyond it, 0.0 for as good as nothing; None if it reports nothing
    #: (unaccounted_time.py).
    unaccounted: float | None = None


#: By grant and position of the slice in it.
Shares = dict[tuple[int, int], Got]


#: How a device's time is shared: by caps; in equal turns, as the driver gives each container that has work
#: (time slices); or at the same time.
CAP, TURNS, SIDE_BY_SIDE = "cap", "turns", "side by side"


def shared(slice_: Slice) -> str | None:
    """How a slice's container shares the device's time with others; None: it has the device alone."""
    if slice_.holder(CORES) not in (None, registry.NONE) and slice_.cores is not None:
        return CAP
    if not slice_.limited:
        return None
    holder = registry.known_holder(slice_, MEMORY)
    return SIDE_BY_SIDE if holder is not None and holder.SIDE_BY_SIDE else TURNS


def policy(grant: Grant, position: int) -> Policy | None:
    """How the device's time is shared; None if no cap is held, or if its backend leaves no choice."""
    holder = registry.known_holder(grant.slices[position], CORES)
    return None if holder is None else holder.policy(grant, position)


def depends_on_others(grant: Grant) -> bool:
    """Whether the agent decides the share of any of its slices: burst, weight, or a priority."""
    policies = (policy(grant, position) for position in range(len(grant.slices)))
    return any(each and pages.needs_agent(each.sched, each.priority) for each in policies)


def share(before: Compute, after: Compute, elapsed_ns: int) -> Got:
    """The share of the device's time between two readings that are `elapsed_ns` apart."""
    if after.guesses != before.guesses:
        return Got(None, unmeasured=True)
    if elapsed_ns <= 0:
        return Got(None)
    return Got(100 * min(max(after.used - before.used, 0), elapsed_ns) / elapsed_ns)


def got(grants: list[Grant], window_s: float = WINDOW_S) -> Shares:
    """The present share of each slice with a cap on cores; unreadable ones are left out.

    Takes `window_s`, and no time where no slice has a cap.
    """
    capped = [grant for grant in grants if any(slice_.holder(CORES) for slice_ in grant.slices)]
    before = {key: (when, usage) for key, when, usage in readings(capped)}
    if not before:
        return {}
    time.sleep(window_s)
    return {
        key: share(before[key][1], usage, when - before[key][0])
        for key, when, usage in readings(capped)
        if key in before
    }


def readings(grants: list[Grant]) -> list[tuple[tuple[int, int], int, Compute]]:
    """Each capped slice's use, and the time of the reading (CLOCK_MONOTONIC, ns)."""
    found = []
    for grant in grants:
        for backend in registry.known(grant.slices):
            try:
                usages = backend.compute(grant)
            except OSError:
                continue
            when = time.monotonic_ns()
            found += [
                ((grant.id, position), when, usage)
                for position, (slice_, usage) in enumerate(zip(grant.slices, usages))
                if slice_.holder(CORES) == backend.NAME
            ]
    return found
