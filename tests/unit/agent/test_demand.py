"""A slice's demand, by its page, on the test's own clock."""

from __future__ import annotations

from xpu_runtime.agent.demand import HOLD_NS, MS, DemandEstimator
from xpu_runtime.agent.policy import BURST, FIXED, HIGH, LOW, NORMAL, TimeDemand
from xpu_runtime.limits.compute import WHOLE

ROUND = 20 * MS


def demand(cap: int = 3000, sched: int = BURST, priority: int = NORMAL) -> DemandEstimator:
    return DemandEstimator(cap, sched, priority, 0, 0, 0)


class Slice:
    """A slice whose page is looked at each round."""

    def __init__(self, cap: int = 3000) -> None:
        self.demand = demand(cap)
        self.used = self.waits = self.now = 0
        #: How often there was reason to update the demand.
        self.updates = 0

    def rounds(self, number: int, *, used: int = 0, waits: int = 0, share: int = 3000) -> None:
        for _ in range(number):
            self.now += ROUND
            self.used += used
            self.waits += waits
            if self.demand.see(self.used, self.waits, self.now):
                self.updates += 1
                self.demand.update(share, self.now)

    def demand_after(self, passed: int) -> TimeDemand:
        """So much later, with nothing new in the page."""
        now = self.now + passed
        if self.demand.see(self.used, self.waits, now):
            self.demand.update(3000, now)
        return self.demand.current


def test_a_slice_that_has_done_nothing_is_idle() -> None:
    each = Slice()
    each.rounds(10)
    assert not each.demand.is_active
    assert each.demand.current.need == 0


def test_a_launch_that_waits_is_a_backlog_at_once_and_for_a_while() -> None:
    each = Slice()
    each.rounds(1, waits=1)
    assert each.demand.current.backlog
    assert each.demand_after(HOLD_NS - 1).backlog
    assert not each.demand_after(HOLD_NS).backlog


def test_use_of_about_its_share_is_a_backlog_until_it_ends_even_if_nothing_was_seen_to_wait() -> None:
    each = Slice()
    each.rounds(20, used=ROUND * 20 // 100, share=3000)
    assert not each.demand.current.backlog
    each = Slice()
    each.rounds(21, used=ROUND * 29 // 100, share=3000)
    assert each.demand_after(HOLD_NS - 1).backlog
    assert each.demand_after(HOLD_NS).need == 0


def test_the_first_use_asks_for_the_whole_cap_and_small_use_for_less_after_some_seconds() -> None:
    each = Slice()
    each.rounds(1, used=MS)
    assert each.demand.current.need == WHOLE
    each.rounds(200, used=ROUND * 8 // 100)
    need = each.demand.current.need
    assert 800 < need < 2000
    each.rounds(50)
    assert each.demand.current.need == 0


def test_a_correction_of_what_was_used_is_no_sign_of_use() -> None:
    each = Slice()
    each.rounds(20, used=8 * MS)
    each.rounds(2, used=-MS)
    assert each.demand.current.need == 0


def test_the_use_stays_known_over_short_pauses_and_not_over_long_ones() -> None:
    each = Slice()
    for _ in range(60):
        each.rounds(1, used=8 * MS)
        each.rounds(4)  # 80 ms: longer than its share is held for it
        assert each.demand.current.need == 0
    each.rounds(1, used=8 * MS)
    assert 800 < each.demand.current.need < 2000
    each.rounds(20)
    each.rounds(1, used=8 * MS)
    assert each.demand.current.need == WHOLE


def test_a_long_kernel_keeps_its_slice_at_work_while_it_runs() -> None:
    each = Slice()
    each.rounds(1, used=1000 * MS)
    each.rounds(45)
    assert each.demand.is_active
    each.rounds(20)
    assert not each.demand.is_active


def test_most_looks_at_a_slice_at_work_cost_no_reckoning() -> None:
    for how in ({"used": MS, "waits": 1}, {"used": MS}, {"waits": 1}):
        each = Slice()
        each.rounds(1, **how)
        before = each.updates
        each.rounds(50, **how)
        assert each.updates - before <= 10  # a second: once in each window


def test_a_slice_that_uses_more_than_its_share_borrows() -> None:
    each = Slice()
    each.rounds(200, used=ROUND * 25 // 100, share=10000)
    assert not each.demand.borrows
    each.rounds(20, used=ROUND * 35 // 100, share=10000)
    assert each.demand.borrows
    each.rounds(20)
    assert not each.demand.borrows
    each.rounds(1, waits=1)
    assert each.demand.borrows
    assert each.demand.set(3000, FIXED, NORMAL)
    assert not each.demand.borrows
    assert each.demand.set(3000, FIXED, LOW)
    assert each.demand.borrows


def test_numbers_that_are_no_counters_are_bounded() -> None:
    each = Slice()
    each.used = (1 << 64) - 1
    each.rounds(1)
    each.used = 0
    each.rounds(1)
    assert each.demand.is_active
    each.rounds(31_000 // 20)
    assert not each.demand.is_active


def test_whose_share_depends_on_others() -> None:
    assert demand(3000, BURST).governed
    assert demand(3000, FIXED, LOW).governed
    assert demand(3000, FIXED, HIGH).governed
    assert not demand(3000, FIXED).governed
    assert not demand(0, BURST).governed
