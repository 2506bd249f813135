"""The shares of a device, by each slice's demand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_runtime.agent.policy import BURST, FIXED, FLOOR, HIGH, LOW, NORMAL, WEIGHT, TimeDemand, shares
from xpu_runtime.limits.compute import WHOLE


def wants(percent: int, sched: int = FIXED, priority: int = NORMAL) -> TimeDemand:
    return TimeDemand(percent * 100, sched, priority, True, WHOLE)


def idle(percent: int, sched: int = FIXED, priority: int = NORMAL) -> TimeDemand:
    return TimeDemand(percent * 100, sched, priority, False, 0)


def uses(percent: int, need: int, sched: int = FIXED, priority: int = NORMAL) -> TimeDemand:
    return TimeDemand(percent * 100, sched, priority, False, need * 100)


@pytest.mark.parametrize(
    ("demands", "percents"),
    [
        # fixed: always the cap
        ([wants(30), wants(70)], [30, 70]),
        ([wants(30), idle(70)], [30, 70]),
        # burst: the rest
        ([wants(30, BURST)], [100]),
        ([wants(30, BURST), idle(70, BURST)], [100, 70]),
        # alone: it need not be seen to want anything
        ([idle(30, BURST)], [100]),
        ([uses(30, 10, WEIGHT, LOW)], [100]),
        ([uses(30, 10, FIXED, HIGH)], [30]),
        ([wants(30, BURST), wants(70, BURST)], [30, 70]),
        ([wants(30, BURST), wants(30, FIXED)], [70, 30]),
        # in equal parts
        ([wants(10, BURST), wants(30, BURST), idle(60)], [40, 60, 60]),
        ([wants(20, BURST), wants(60, BURST)], [30, 70]),
        ([wants(10, BURST), uses(30, 35, BURST), idle(60)], [65, 35, 60]),
        ([wants(30, BURST), uses(70, 20, FIXED)], [80, 70]),
        ([wants(30, BURST), uses(70, 20, BURST)], [80, 70]),
        # a slice that is alone and waits for nothing must not be cut to its cap, because it would have to
        # wait there
        ([uses(30, 90, BURST)], [100]),
        # weight: all of it, in proportion
        ([wants(20, WEIGHT), wants(60, WEIGHT)], [25, 75]),
        ([wants(20, WEIGHT), wants(20, WEIGHT)], [50, 50]),
        ([wants(60, WEIGHT), wants(20, WEIGHT), idle(20, WEIGHT)], [75, 25, 20]),
        ([wants(60, WEIGHT), wants(20, WEIGHT), wants(20, WEIGHT)], [60, 20, 20]),
        # both: the burst slices count as one with the average cap
        ([wants(10, WEIGHT), wants(20, BURST), wants(30, WEIGHT)], [10 + 40 / 6, 20 + 40 / 3, 50]),
        # priority: the rest goes to high first; low is guaranteed only the floor
        ([wants(30, BURST, HIGH), wants(30, BURST)], [70, 30]),
        ([wants(30, BURST, HIGH), wants(30, BURST, LOW)], [99, 1]),
        ([wants(30, FIXED, HIGH), wants(70, FIXED, LOW)], [30, 70]),
        ([wants(30, FIXED, HIGH), wants(30, BURST, LOW)], [30, 70]),
        ([wants(30, BURST, LOW), idle(70, FIXED, HIGH)], [100, 70]),
        ([wants(50, BURST), idle(50, BURST, LOW)], [100, 1]),
        ([wants(30), idle(30, BURST, LOW)], [30, 30]),
    ],
)
def test_shares(demands: list[TimeDemand], percents: list[int]) -> None:
    assert shares(demands) == pytest.approx([percent * 100 for percent in percents], abs=2)


@st.composite
def devices(draw: st.DrawFn) -> list[TimeDemand]:
    """Slices whose caps are no more than the device, as the ledger books them."""
    demands: list[TimeDemand] = []
    left = WHOLE
    for _ in range(draw(st.integers(1, 8))):
        if left < 1:
            break
        cap = draw(st.integers(1, left))
        left -= cap
        backlog = draw(st.booleans())
        need = WHOLE if backlog else draw(st.sampled_from([0, 0, 250, 3000, WHOLE]))
        demands.append(TimeDemand(cap, draw(st.integers(0, 2)), draw(st.integers(0, 2)), backlog, need))
    return demands


@given(devices())
def test_a_cap_is_always_available_but_to_low_priority_and_fixed_is_never_above_it(
    demands: list[TimeDemand],
) -> None:
    for demand, share in zip(demands, shares(demands)):
        assert 0 < share <= WHOLE
        if demand.priority == LOW:
            assert share >= min(FLOOR, demand.cap)
        else:
            assert share >= demand.cap
        if demand.sched == FIXED:
            assert share <= demand.cap


@given(devices())
def test_the_wanted_time_is_given_out_whole_and_once(demands: list[TimeDemand]) -> None:
    """Together with the needs of slices without a backlog, the shares add up to exactly the device."""
    told = shares(demands)
    given_out = 0
    for demand, share in zip(demands, told):
        if demand.backlog:
            given_out += share
    hungry = [demand for demand in demands if demand.backlog and demand.sched != FIXED]
    needed = sum(
        min(demand.need, demand.cap) for demand in demands if not demand.backlog and demand.priority != LOW
    )
    assert given_out + needed <= WHOLE
    if hungry and all(demand.backlog or not demand.need for demand in demands):
        assert given_out == WHOLE


@given(devices())
def test_those_of_one_kind_have_shares_in_proportion_to_their_caps(demands: list[TimeDemand]) -> None:
    alike = [TimeDemand(demand.cap, WEIGHT, NORMAL, True, WHOLE) for demand in demands]
    caps = sum(demand.cap for demand in alike)
    for demand, share in zip(alike, shares(alike)):
        assert abs(share - demand.cap * WHOLE / caps) <= len(alike)


@given(devices(), st.data())
def test_a_claim_to_want_more_takes_nothing_that_another_is_guaranteed(
    demands: list[TimeDemand], data: st.DataObject
) -> None:
    liar = data.draw(st.integers(0, len(demands) - 1))
    claimed = list(demands)
    claimed[liar] = claimed[liar]._replace(backlog=True, need=WHOLE)
    for n, (demand, share) in enumerate(zip(claimed, shares(claimed))):
        if n != liar and demand.priority != LOW:
            assert share >= demand.cap


@given(st.lists(st.integers(1, WHOLE), min_size=1, max_size=12), st.data())
def test_caps_that_are_more_than_the_device_leave_nobody_without(
    caps: list[int], data: st.DataObject
) -> None:
    demands = [
        TimeDemand(cap, data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2)), need == WHOLE, need)
        for cap in caps
        for need in [data.draw(st.sampled_from([0, 250, WHOLE]))]
    ]
    for demand, share in zip(demands, shares(demands)):
        assert share >= min(FLOOR, demand.cap)
        assert share <= WHOLE
