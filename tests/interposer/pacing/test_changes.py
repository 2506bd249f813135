"""Caps that change while programs launch: by `xpu set`, and by the agent, which lends unused time."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.sharing_time import until
from support.timing import within
from xpu_runtime.limits import compute, pages

from .paced import MILLION, Make, Paced

#: Offset of the first device's `paid` and `paid_cap` in a usage page.
PAID = 2048


@pytest.mark.alone  # shares of time are measured
def test_a_cap_that_changes_holds_at_once(paced: Make) -> None:
    one = paced(10)
    with one.running("forever", ready=True):
        within(5, 16, lambda: one.used_in(0.5))
        one.set_cores(90)
        time.sleep(0.1)
        assert one.used_in(0.3) > 60
        one.set_cores(10)
        time.sleep(0.1)
        assert one.used_in(0.5) < 20


def test_a_raised_cap_lets_a_launch_go_that_waits_beside_others(paced: Make) -> None:
    one, other = paced(1), paced(None)
    with (one.sandbox.pages / pages.USAGE).open("r+b") as usage:  # the budget owes ten seconds
        usage.seek(PAID)
        usage.write(struct.pack("<2Q", time.monotonic_ns() + 10_000 * MILLION, 100))
    with other.running("forever", ready=True), one.running("forever", ready=True):
        until(lambda: one.compute().waits > 50, "it waits", 20)
        assert one.compute().used < 10 * MILLION
        one.set_cores(90)
        until(lambda: one.compute().used > 100 * MILLION, "it goes on", 2)


class Agent:
    """The agent's part: it writes the cap that holds, every 20 ms."""

    def __init__(self, one: Paced) -> None:
        self.grant = compute.GrantPages(str(one.sandbox.pages))
        self._rounds = 0

    def gives(self, percent: int) -> None:
        self._rounds += 1
        self.grant.slices[0].adjust(self._rounds << compute.ROUND_SHIFT | percent * 100)
        time.sleep(0.02)


@contextmanager
def agent_of(one: Paced) -> Iterator[Agent]:
    agent = Agent(one)
    try:
        yield agent
    finally:
        agent.grant.close()


@pytest.mark.alone  # shares of time are measured
def test_an_agent_holds_launches_back_and_lets_them_go_and_is_not_missed_for_long(paced: Make) -> None:
    one = paced(50)

    def used(agent: Agent, percent: int, seconds: float) -> float:
        """The charged time in percent, without that of the first moment."""
        end, used, began = time.monotonic() + seconds, 0, time.monotonic() + 0.1
        while time.monotonic() < end:
            agent.gives(percent)
            if not used and time.monotonic() > began:
                began, used = time.monotonic(), one.compute().used
        return (one.compute().used - used) / 1e7 / (time.monotonic() - began)

    with agent_of(one) as agent, one.running("forever", ready=True):
        assert used(agent, 30, 0.6) < 45
        assert used(agent, 0, 0.8) < 2
        waits = one.compute().waits
        within(60, 101, lambda: used(agent, 80, 0.6))
        assert used(agent, 0, 0.3) < 4
        # Without the agent the cap holds again half a second later.
        until(lambda: one.compute().waits > waits, "the cap holds", 1)
        time.sleep(0.6)
        within(40, 60, lambda: one.used_in(0.6))


def test_the_agent_sees_a_container_that_others_slow_down_though_no_budget_holds_it_back(paced: Make) -> None:
    """A container that was lent the whole device must give it back. Its owner's launches wait for no
    budget."""
    one = paced(50)

    def waits_within(agent: Agent, seconds: float) -> bool:
        before, end = one.compute().waits, time.monotonic() + seconds
        while time.monotonic() < end and one.compute().waits == before:
            agent.gives(100)
        return one.compute().waits != before

    with agent_of(one) as agent:
        waits_within(agent, 0.1)
        with one.running("forever", ready=True):
            until(lambda: not waits_within(agent, 0.3), "nothing holds it back", 20)
            with one.running("forever"):
                assert waits_within(agent, 20)
