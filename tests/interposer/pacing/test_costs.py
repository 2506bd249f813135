"""The charge of a launch under a cap: its real time, however it changes and is waited for."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from support.timing import within

from .paced import MILLION, Make


@pytest.mark.parametrize("beside", [False, True])
def test_work_that_becomes_longer_is_charged_its_new_time(paced: Make, beside: bool) -> None:
    """No marker follows it, and the program waits for the context: nothing says when it has ended."""
    one = paced(30)
    with ExitStack() as others:
        if beside:
            others.enter_context(one.running("forever"))  # of the same budget
        within(15, 45, lambda: one.share(50_000, "grows"))


@pytest.mark.alone
@pytest.mark.parametrize(
    ("what", "us", "cap", "low", "high", "beside"),
    [
        ("outgrows", 250, 30, 20, 36, True),
        ("mixes", 1660, 30, 27, 33, False),
        ("mixes", 1660, 30, 27, 33, True),
        ("shrinks", 10, 60, 40, 63, False),
        ("shrinks", 10, 60, 40, 63, True),
    ],
)
def test_launches_of_one_kind_that_take_different_times_are_charged_their_own_time(
    paced: Make, what: str, us: int, cap: int, low: int, high: int, beside: bool
) -> None:
    one, other = paced(cap), paced(None)
    with ExitStack() as others:
        if beside:
            others.enter_context(other.running("forever", ready=True))
        within(low, high, lambda: one.share(us, what))


@pytest.mark.alone
@pytest.mark.parametrize("way", ["context", "event", "event-query", "stream-query", "copy", "sleep"])
@pytest.mark.parametrize("where", ["", "default-", "thread-", "threadless-"])
def test_the_last_launch_is_charged_its_own_time(paced: Make, where: str, way: str) -> None:
    """By the time of the launch before, it would cost next to nothing."""
    one, said = paced(30), "no thread can be started" if where == "threadless-" else ""
    within(20, 34, lambda: one.share(1540, "varies", where + way, said=said))


@pytest.mark.alone
@pytest.mark.parametrize("way", ["1-600-1", "2-250-2"])
def test_work_that_has_ended_before_it_is_measured_is_charged_its_own_time(paced: Make, way: str) -> None:
    """Every measurement says that its kind is short. Without this rule it had 42 to 66 percent."""
    one = paced(20)
    streams, us, shorts = (int(word) for word in way.split("-"))
    within(12, 28, lambda: one.share(streams * (us + 1 + 10 * shorts), "hides", way))


def test_the_charged_launch_is_the_one_that_runs(paced: Make) -> None:
    paced(10).run("rewrites")


@pytest.mark.parametrize("way", ["exit", "_exit", "destroy"])
def test_the_only_kernel_of_a_short_process_is_charged(paced: Make, way: str) -> None:
    one = paced(90)
    loop = f"for i in $(seq 10); do {one.program} once {way} || exit 1$?; done"
    done = one.sandbox.run(["sh", "-c", loop], timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert 38 * MILLION < one.compute().used < 60 * MILLION
