"""A slice's demand for its device's time, by its container's page from round to round.

The container writes that page: it can claim to want its share for ever, or never. Neither claim gives it more
than an honest one does: its cap, and a part of unused shares beside others (policy.py). Implausible numbers
are bounded here. This module reads no page and decides nothing.

Looks take most of the agent's time, dozens a second at each slice, and hardly one of them matters: `see`
takes a look's values and returns whether they matter; only then is the demand computed anew.
"""

from __future__ import annotations

from xpu_runtime.agent.policy import FIXED, LOW, NORMAL, TimeDemand
from xpu_runtime.limits.compute import WHOLE

MS = 1_000_000
#: A slice wants its share for this long after the last sign of it; then the share is lent. A waiting launch
#: shows every 2 ms, and work under way takes up to 20 ms. A shorter pause is not worth lending: a neighbour
#: would have to give the share back before it could use it.
HOLD_NS = 35 * MS
#: After a longer pause than this a slice's use is unknown. Before, it counts as going on: one that answers a
#: request now and then does not take back its whole cap for each.
_FORGET_NS = 300 * MS
#: Use is measured over windows of at least this: kernels of tens of ms are charged in one piece.
_WINDOW_NS = 100 * MS
#: A charge between two looks that is longer than this occupies the device for its whole length.
_LONG_NS = 20 * MS
#: Charged in one piece, at most: a longer kernel, or a container that writes nonsense, counts as this.
_LONGEST_NS = 30_000 * MS
#: A slice that uses this much of its share wants it, whether it was seen to wait or not.
_ABOUT = 0.9
#: The next share of a slice without a backlog: half as much again as its recent peak, and 2 %. Less would let
#: a neighbour's use slow it down, which would look as if it needed less still.
_HEADROOM, _LEAST = 1.5, 200
#: The recent peak fades by half in a second.
_FADING = 0.93
#: Needs are told in steps, so that small changes do not make a new decision each round.
_STEP = 250


class DemandEstimator:
    """One slice. Times in ns of one clock, shares in ten-thousandths."""

    __slots__ = (
        "_about",
        "_peak",
        "_running_until",
        "_used",
        "_used_at",
        "_waits",
        "_wants_until",
        "_window_from",
        "_window_used",
        "cap",
        "current",
        "priority",
        "sched",
    )

    def __init__(self, cap: int, sched: int, priority: int, used: int, waits: int, now: int) -> None:
        self.cap, self.sched, self.priority = cap, sched, priority
        self._used, self._waits = used, waits
        self._used_at = self._running_until = self._wants_until = now - _FORGET_NS
        #: The window began then, with the counter there.
        self._window_from, self._window_used = now, used
        self._peak = 0.0
        #: It used about its share in the last window.
        self._about = False
        #: As reckoned last, for policy.py.
        self.current = TimeDemand(cap, sched, priority, False, 0)

    @property
    def governed(self) -> bool:
        """Whether its share is ever another than its cap."""
        return self.cap > 0 and (self.sched != FIXED or self.priority != NORMAL)

    @property
    def is_active(self) -> bool:
        """Whether it used the device or waited for it, at the last computation."""
        return self.current.need > 0

    @property
    def borrows(self) -> bool:
        """Whether it can use more than its own share when others leave some."""
        if self.priority == LOW:
            return self.is_active
        return self.sched != FIXED and (self.current.backlog or (self.is_active and self._peak > self.cap))

    def set(self, cap: int, sched: int, priority: int) -> bool:
        """Takes over changes by `xpu set`; returns whether there were any."""
        if (cap, sched, priority) == (self.cap, self.sched, self.priority):
            return False
        self.cap, self.sched, self.priority = cap, sched, priority
        self.current = self.current._replace(cap=cap, sched=sched, priority=priority)
        return True

    def see(self, used: int, waits: int, now: int) -> bool:
        """Takes the page's present values; returns whether the demand must be computed anew."""
        if waits != self._waits:
            self._waits = waits
            self._wants_until = max(self._wants_until, now + HOLD_NS)
            if not self.current.backlog:
                self._take(used, now)
                return True
        if used > self._used:
            idle = not self.current.need
            self._take(used, now)
            if idle:
                return True
        elif used < self._used:
            # A correction: a launch took less time than predicted. It is no sign of another launch.
            self._used = used
        return self.current.need > 0 and (now >= self._window_from + _WINDOW_NS or now >= self._until())

    def _until(self) -> int:
        """When the present demand ends, if there is no further sign of it."""
        if not self.current.backlog:
            return self._last_use() + HOLD_NS
        return max(self._wants_until, self._last_use() + HOLD_NS) if self._about else self._wants_until

    def _take(self, used: int, now: int) -> None:
        if not self.current.need and now >= self._last_use() + _FORGET_NS:
            # Its next use is not known yet: until it is, it keeps its whole cap.
            self._peak, self._window_from, self._window_used = float(WHOLE), now, self._used
        more = used - self._used
        if more > _LONG_NS:
            self._running_until = min(max(self._running_until, now) + more, now + _LONGEST_NS)
        if more > 0:
            self._used_at = now
        self._used = used

    def _last_use(self) -> int:
        return max(self._running_until, self._used_at)

    def lost(self, now: int) -> None:
        """The container has cut its page: nothing in it launches with that any more."""
        self._used_at = self._running_until = self._wants_until = now - HOLD_NS

    def update(self, share: int, now: int) -> TimeDemand:
        """The slice's demand, after `see` has returned True; `share` is its present share.

        If the demand equals the last one, nothing has to be decided again.
        """
        passed = now - self._window_from
        if passed >= _WINDOW_NS:
            self._measure(share, passed, now)
        active = now < self._last_use() + HOLD_NS
        self._about = self._about and active
        backlog = now < self._wants_until or self._about
        if backlog:
            need = WHOLE
        elif not active:
            need = 0
        else:
            need = int(self._peak * _HEADROOM) + _LEAST
            need = min(-(-need // _STEP) * _STEP, WHOLE)
        if (backlog, need) != (self.current.backlog, self.current.need):
            self.current = TimeDemand(self.cap, self.sched, self.priority, backlog, need)
        return self.current

    def _measure(self, share: int, passed: int, now: int) -> None:
        """The window is over: how much was used in it."""
        used = min(max(0, self._used - self._window_used), _LONGEST_NS)
        rate = min(used * WHOLE / passed, WHOLE)
        self._window_from, self._window_used = now, self._used
        self._peak = max(rate, self._peak * _FADING ** (passed / _WINDOW_NS))
        self._about = rate > 0 and rate >= _ABOUT * share
