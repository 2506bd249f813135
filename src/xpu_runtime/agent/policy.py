"""The present share of a device's time for each slice on it: values in, shares out.

A slice that wants its cap gets it, except for low priority. The rest (unwanted caps, and unbooked time) goes
to burst and weight slices that want more, high priority first: to burst slices in equal parts, to weight
slices in proportion to their caps. No page, no clock and no driver is known here: demand.py knows a slice's
demand. Shares are in ten-thousandths (compute.WHOLE).
"""

from __future__ import annotations

from typing import NamedTuple

from xpu_runtime.limits.compute import WHOLE

#: Indexes in pages.SCHEDS and pages.PRIORITIES: enum xpu_sched, enum xpu_priority.
FIXED, BURST, WEIGHT = range(3)
NORMAL, LOW, HIGH = range(3)

#: The least share of a slice of low priority that wants it: it must not starve, and its watchdogs must not
#: fire.
FLOOR = 100


class TimeDemand(NamedTuple):
    """A slice's settings, and its present demand."""

    cap: int
    sched: int
    priority: int
    #: It wants all that it may have.
    backlog: bool
    #: Its likely greatest use without a backlog; 0: it is idle.
    need: int


def shares(demands: list[TimeDemand]) -> list[int]:
    """The share of each slice, in the same order.

    No slice with a backlog has less than its cap or FLOOR (see `_guaranteed`); if one of them is burst or
    weight, shares and the others' needs add up to WHOLE. A slice without a backlog gets at least its cap,
    used or not, so that its first launches do not wait; the next round then takes back the lent share. With
    low priority it gets the unused part of its cap. If no other slice has a cap, burst and weight slices have
    the whole device, wanted or not.
    """
    if sum(demand.cap > 0 for demand in demands) == 1:
        return [WHOLE if demand.cap and demand.sched != FIXED else demand.cap for demand in demands]
    most = [_most(demand) for demand in demands]
    have = _guaranteed(demands, most)
    left = WHOLE - sum(have)
    hungry = [n for n, share in enumerate(have) if share < most[n]]
    if left > 0 and hungry:
        for priority in (HIGH, NORMAL, LOW):
            of = [n for n in hungry if demands[n].priority == priority]
            left -= _fill(demands, have, most, of, left)
    if left > 0:
        # No slice is known to want it; working slices may find a use for it.
        _spread(demands, have, left)
    return [_with_head_start(demand, share, max(left, 0)) for demand, share in zip(demands, have)]


def _guaranteed(demands: list[TimeDemand], most: list[int]) -> list[int]:
    """Each slice's share before the rest is shared out: its cap as far as it needs it; low: FLOOR.

    Caps of a device add up to WHOLE at most, as the ledger books them. If they exceed it, all but fixed ones
    are cut in proportion.
    """
    have = [
        min(demand.cap, need, FLOOR if demand.priority == LOW else WHOLE)
        for demand, need in zip(demands, most)
    ]
    over = sum(have) - WHOLE
    elastic = [n for n, demand in enumerate(demands) if demand.sched != FIXED and have[n]]
    if over > 0 and elastic:
        sum_elastic = sum(have[n] for n in elastic)
        for n in elastic:
            have[n] = max(min(FLOOR, have[n]), have[n] - -(-over * have[n] // sum_elastic))
    return have


def _most(demand: TimeDemand) -> int:
    """The share that a slice can make use of."""
    allowed = demand.cap if demand.sched == FIXED else WHOLE
    return allowed if demand.backlog else min(demand.need, allowed)


def _weights(demands: list[TimeDemand], of: list[int]) -> list[int]:
    """The proportions in which the slices `of` share time beyond their caps.

    A burst slice beside weight slices counts as one of the average cap.
    """
    caps = [demands[n].cap for n in of]
    if all(demands[n].sched != BURST for n in of):
        return caps
    average = -(-sum(caps) // len(caps))
    return [average if demands[n].sched == BURST else cap for n, cap in zip(of, caps)]


def _fill(demands: list[TimeDemand], have: list[int], most: list[int], hungry: list[int], left: int) -> int:
    """Shares `left` out among the slices `hungry`, by their weights, as far as each can use it.

    Returns how much that was.
    """
    given = 0
    while left > given and (total := sum(weights := _weights(demands, hungry))):
        before, rest = given, left - given
        for n, weight in zip(hungry, weights):
            part = min(rest * weight // total, most[n] - have[n])
            have[n] += part
            given += part
        if given == before:  # less than one for each
            have[hungry[0]] += 1
            given += 1
        hungry = [n for n in hungry if have[n] < most[n]]
    return given


def _spread(demands: list[TimeDemand], have: list[int], left: int) -> None:
    working = [
        n for n, demand in enumerate(demands) if demand.sched != FIXED and (demand.backlog or demand.need)
    ]
    weights = _weights(demands, working)
    for n, weight in zip(working, weights):
        have[n] = min(WHOLE, have[n] + left * weight // sum(weights))


def _with_head_start(demand: TimeDemand, share: int, left: int) -> int:
    if demand.priority == LOW:
        # It gets less than its cap, because its first launches must not take from the slices above it.
        return max(share, min(demand.cap, share + left), min(demand.cap, FLOOR))
    if demand.sched == FIXED:
        return demand.cap
    return share if demand.backlog else max(share, demand.cap)
