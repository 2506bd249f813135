"""One device and its slices: reads their demand, decides shares, and writes these into their pages.

Values come from demand.py and go through policy.py. A slice that is held more strictly (crosscheck.py) never
gets more than that allows.

Looks at pages take most of the agent's time, so a slice is looked at only as often as it matters. If a slice
borrows, its lenders are looked at each round: they must get their share back within 100 ms, and a share that
they do not want must not lie idle. A slice with a backlog is looked at the more often the larger its share.
If no slice is at work, or none can borrow, a few looks a second are enough.
"""

from __future__ import annotations

from xpu_runtime.agent import crosscheck, policy
from xpu_runtime.agent.demand import DemandEstimator
from xpu_runtime.agent.policy import TimeDemand
from xpu_runtime.limits.compute import LOST_S, ROUND_SHIFT, WHOLE, SlicePages, unpack

_S = 1_000_000_000
#: Between two looks at slices that have lent, where there are few of them.
ROUND_NS = _S // 50
#: Between two looks at a slice with a backlog: this, divided by its share of the device.
_BACKLOG_NS, _LONGEST_BACKLOG_NS = ROUND_NS // 2, 4 * ROUND_NS
#: For a slice without a backlog, while no slice wants more than its own share.
_UNLENT_NS = 4 * ROUND_NS
#: The largest distance of two looks, while nothing is shared.
LOOK_NS = int(LOST_S * _S) * 2 // 5
#: Round numbers are renewed so often where shares stay the same: a container has its cap when it has seen the
#: same number for LOST_S.
RENEW_NS = int(LOST_S * _S) * 3 // 10
#: A device that is idle for this long is left alone.
_QUIET_NS = _S
#: Bytes of a look at a page that was not cut.
_WHOLE_LOOK = 16


class SliceState:
    """A slice, and all that is known of it."""

    __slots__ = (
        "_highest",
        "_terms",
        "adjusted",
        "container",
        "debt",
        "demand",
        "folder",
        "governed",
        "look",
        "look_at",
        "page",
        "position",
        "sampled",
        "seen",
        "share",
    )

    def __init__(self, folder: str, container: str, position: int, page: SlicePages, now: int) -> None:
        self.folder, self.container, self.position, self.page = folder, container, position, page
        self.look = page.look
        self.seen = page.look()
        self._terms = page.terms()
        used, waits = unpack(self.seen) if len(self.seen) == _WHOLE_LOOK else (0, 0)
        self.demand = DemandEstimator(page.cap, *page.policy, used, waits, now)
        self.debt = crosscheck.Debt()
        #: Whether the driver's samples separate it from others.
        self.sampled = True
        #: The next look is not before this time.
        self.look_at = 0
        #: Whether its share is ever another than its cap.
        self.governed = self.demand.governed
        #: Its present share (`set_share`), and the highest one since the last question.
        self.share = self._highest = self.demand.cap
        #: Whether something other than 0 is in its page.
        self.adjusted = True

    @property
    def told(self) -> bool:
        """Whether a share must be written into its page."""
        return self.governed or self.debt.held

    def reread(self) -> bool:
        """Takes over changes by `xpu set`; returns whether there were any."""
        terms = self.page.terms()
        if terms == self._terms:
            return False
        self._terms = terms
        changed = self.demand.set(self.page.cap, *self.page.policy)
        self.governed = self.demand.governed
        return changed

    def set_share(self, share: int) -> None:
        self.share = share
        self._highest = max(self._highest, share)

    def highest_share(self) -> int:
        """Since this was asked last.

        And not on average: the driver's samples are of the time in which a process was at work.
        """
        highest, self._highest = self._highest, self.share
        return highest

    def free(self) -> None:
        """Only its cap holds."""
        self.set_share(self.demand.cap)
        if self.adjusted:
            self.adjusted = False
            self.page.adjust(0)

    def write(self, number: int) -> None:
        """Writes its share, or the stricter hold if that is less, with the number of the agent's round."""
        if self.debt.held:
            # Regardless of unused shares: it must come down to its cap, by the driver's samples.
            self.share = min(self.share, self.debt.share(self.demand.cap))
        elif not self.governed:
            self.free()
            return
        self.adjusted = True
        self.page.adjust(number << ROUND_SHIFT | self.share)


class Card:
    """One device, and the slices on it."""

    def __init__(self, uuid: bytes) -> None:
        self.uuid = uuid
        #: As the driver writes it; "": not known yet.
        self.name = ""
        self.slices: list[SliceState] = []
        #: Whether the driver reports its use by process; None: not asked yet.
        self.compared: bool | None = None
        #: A slice is at work whose share depends on others, or was a moment ago.
        self.busy = False
        #: There are slices with a share in their pages.
        self.told = False
        #: The time of its next look (`round`).
        self.due = 0
        #: There are others to lend to, or to take back from.
        self._contended = False
        #: A slice borrows, or is about to.
        self._borrowing = False
        #: A slice's demand has changed since the last decision.
        self._changed = True
        self._shares: list[int] = []
        self._working = False
        self._working_at = 0
        self._written_at = 0

    def reread(self) -> None:
        """Takes over changes by `xpu set` in the pages."""
        changed = False
        for each in self.slices:
            changed = each.reread() or changed
        if changed:
            self.arrange()
            if not self.busy:
                # No round decides while no slice is at work: their reported shares are their caps.
                for each in self.slices:
                    if not each.debt.held:
                        each.free()

    def arrange(self) -> None:
        """Called after a change of the slices, of their caps and policies, or of holds."""
        self._changed = True
        self.told = any(each.told for each in self.slices)
        self._contended = sum(each.demand.cap > 0 for each in self.slices) > 1
        self.due = 0
        for each in self.slices:
            if not each.told:
                each.free()

    def round(self, now: int, number: int, round_ns: int) -> bool:
        """Looks at the slices whose turn it is, and decides; returns whether it wrote anything, with this
        number.

        `round_ns`: between two looks at slices that have lent. All looks are at multiples of it, so that
        those of several devices are at the same time.
        """
        was = self.busy
        self._look(now, round_ns)
        if self.busy:
            return self._decide(now, number, round_ns)
        if was or any(each.debt.held for each in self.slices):
            self._rest(number)
            return True
        return False

    def _look(self, now: int, round_ns: int) -> None:
        due = _before(now + LOOK_NS, round_ns)
        others_at = _before(now + (round_ns if self._borrowing else _UNLENT_NS), round_ns)
        for each in self.slices:
            if now >= each.look_at:
                current = each.demand.current
                content = each.look()
                if content != each.seen or current.need:
                    each.seen = content
                    current = self._take(each, content, now)
                if current.backlog:
                    wait = min(_BACKLOG_NS * WHOLE // (each.share or 1), _LONGEST_BACKLOG_NS)
                    each.look_at = _before(now + max(wait, round_ns), round_ns)
                else:
                    each.look_at = others_at
            if each.look_at < due:
                due = each.look_at
        if self._changed:
            self._working = any(each.governed and each.demand.is_active for each in self.slices)
        if self._working:
            self._working_at = now
        self.busy = self._working or now - self._working_at < _QUIET_NS
        self.due = due if self.busy and self._contended else _before(now + LOOK_NS, round_ns)

    def _take(self, each: SliceState, content: bytes, now: int) -> TimeDemand:
        demand = each.demand
        before = demand.current
        if len(content) != _WHOLE_LOOK:
            demand.lost(now)
        elif not demand.see(*unpack(content), now):
            return before
        current = demand.update(each.share, now)
        if current is not before:
            self._changed = True
        return current

    def _decide(self, now: int, number: int, round_ns: int) -> bool:
        if self._changed:
            self._changed = False
            self._shares = policy.shares([each.demand.current for each in self.slices])
            borrowing = any(each.demand.borrows for each in self.slices)
            if borrowing and not self._borrowing:
                for each in self.slices:
                    each.look_at = 0
                self.due = min(self.due, _before(now + round_ns, round_ns))
            self._borrowing = borrowing
        elif now - self._written_at < RENEW_NS:
            return False
        renew = now - self._written_at >= RENEW_NS
        if renew:
            self._written_at = now
        wrote = False
        for each, share in zip(self.slices, self._shares):
            if renew or share != each.share:
                each.set_share(share)
                each.write(number)
                wrote = True
        return wrote

    def _rest(self, number: int) -> None:
        """No slice is at work: all get their caps; held slices stay held."""
        self._changed = True
        self._borrowing = False
        for each in self.slices:
            each.set_share(each.demand.cap)
            if each.debt.held:
                each.write(number)
            else:
                each.free()


def _before(time: int, step: int) -> int:
    """The last multiple of `step` that is not after `time`."""
    return time - time % step
