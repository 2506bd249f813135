"""What a slice wants of its device, by what its container's page says from round to round.

The container writes that page: it can claim to want its share for ever, or never. Neither gives it more than
an honest claim does: its cap, and of what is left a part beside others (policy.py). Numbers that are no
counter's are bounded here. No page is read and nothing is decided here.
"""

from __future__ import annotations

from xpu_runtime.agent.policy import FIXED, NORMAL, Wish
from xpu_runtime.limits.compute import WHOLE

MS = 1_000_000
#: A slice wants its share for so long after the last sign of it: a program that launches in bursts pauses
#: between them, and what it was lent back for a moment costs it more than its neighbours gain.
HOLD_NS = 150 * MS
#: Use is measured over windows of at least this: kernels of tens of ms are charged in one piece.
_WINDOW_NS = 100 * MS
#: Charged in one piece, at most: a longer kernel, or a container that writes nonsense, counts as this.
_LONGEST_NS = 30_000 * MS
#: A slice that uses this much of its share wants it, whether it was seen to wait or not.
_ABOUT = 0.9
#: What a slice without a backlog may use next: half as much again as its recent peak, and 2 %. Less would let
#: a neighbour's use slow it down, which would look as if it needed less still.
_HEADROOM, _LEAST = 1.5, 200
#: The recent peak fades by half in a second.
_FADING = 0.93
#: Needs are told in steps, so that small changes do not make a new decision each round.
_STEP = 250


class Demand:
    """One slice, looked at each round. Times in ns of one clock, shares in ten-thousandths."""

    __slots__ = (
        "_peak",
        "_running_until",
        "_used",
        "_waits",
        "_wants_until",
        "_window_from",
        "_window_used",
        "cap",
        "priority",
        "sched",
    )

    def __init__(self, cap: int, sched: int, priority: int, used: int, waits: int, now: int) -> None:
        self.cap, self.sched, self.priority = cap, sched, priority
        self._used, self._waits = used, waits
        self._running_until = self._wants_until = now - HOLD_NS
        self._window_from, self._window_used = now, 0
        self._peak = 0.0

    @property
    def governed(self) -> bool:
        """Whether its share is ever another than its cap."""
        return self.cap > 0 and (self.sched != FIXED or self.priority != NORMAL)

    def changed(self, used: int, waits: int, now: int) -> None:
        """The page says something new."""
        if waits != self._waits:
            self._waits = waits
            self._wants_until = now + HOLD_NS
        # A counter that went back was corrected: a launch was predicted to take longer than it did.
        more = min(max(0, used - self._used), _LONGEST_NS)
        self._used = used
        if more:
            if not self.is_active(now):
                # What it will use is not known yet: until it is, its whole cap is its own again.
                self._peak, self._window_from, self._window_used = float(WHOLE), now, 0
            # It will be on the device for as long as what it launched takes.
            self._running_until = min(max(self._running_until, now) + more, now + _LONGEST_NS)
            self._window_used += more

    def lost(self, now: int) -> None:
        """The container has cut its page: nothing in it launches with that any more."""
        self._running_until = self._wants_until = now - HOLD_NS

    def measure(self, share: int, now: int) -> None:
        """Each round: reckons the use of the last window, once it is over; `share` is what it may have."""
        passed = now - self._window_from
        if passed < _WINDOW_NS:
            return
        rate = min(self._window_used * WHOLE / passed, WHOLE)
        self._window_from, self._window_used = now, 0
        self._peak = max(rate, self._peak * _FADING ** (passed / _WINDOW_NS))
        if rate and rate >= _ABOUT * share:
            self._wants_until = max(self._wants_until, now + HOLD_NS + _WINDOW_NS)

    def is_active(self, now: int) -> bool:
        """Whether it uses the device or waits for it, or did a moment ago."""
        return now < self._wants_until or now < self._running_until + HOLD_NS

    def wish(self, now: int) -> Wish:
        """For policy.py. Equal wishes from round to round mean that nothing need be decided anew."""
        if now < self._wants_until:
            return Wish(self.cap, self.sched, self.priority, True, WHOLE)
        if now >= self._running_until + HOLD_NS:
            return Wish(self.cap, self.sched, self.priority, False, 0)
        need = int(self._peak * _HEADROOM) + _LEAST
        return Wish(self.cap, self.sched, self.priority, False, min(-(-need // _STEP) * _STEP, WHOLE))
