"""Launches under a cap on the device's time: every way to launch is held back and charged.

bench/share measures how exactly a cap holds. The bounds here are wide.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from support.timing import within
from xpu_runtime.limits import pages

from ..sandboxes import compile_c
from .paced import MILLION, Make, asks, share

WAYS = ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch")
SUFFIXES = ("", "_ptsz")
#: Functions without a variant for the default stream of each thread.
OLDER_WAYS = ("cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync", "cuLaunchCooperativeKernelMultiDevice")
FOUND = ("symbol", "lookup")


@pytest.mark.alone  # shares of time are measured
def test_a_cap_holds_completed_work_and_reports_the_wait(paced: Make) -> None:
    one = paced(30)
    with one.running("ways") as program:
        before, then = one.compute(), time.monotonic_ns()
        within(24, 36, lambda: share(asks(program, "cuLaunchKernel", "symbol", 1.2)))
        after, now = one.compute(), time.monotonic_ns()
        assert after.used - before.used > 240 * MILLION
        assert after.waits > before.waits
        # One thread waits for most of the time beyond its share.
        assert 0.4 < (after.held - before.held) / (now - then) < 1
        assert after.guesses == before.guesses


def test_a_launch_without_a_cap_is_not_charged(paced: Make) -> None:
    one = paced(None)
    with one.running("ways") as program:
        assert share(asks(program, "cuLaunchKernel", "symbol", 0.3)) > 80
    assert one.compute() == pages.Compute(0, 0, 0)


def test_every_way_to_launch_is_held_back_and_charged(paced: Make) -> None:
    one = paced(30)
    with one.running("ways") as program:
        for way in (*(way + suffix for way in WAYS for suffix in SUFFIXES), *OLDER_WAYS):
            for found in FOUND:
                before = one.compute()
                got = share(asks(program, way, found, 0.3))
                after = one.compute()
                assert 15 < got < 50, (way, found, got)
                assert after.waits > before.waits, (way, found)
                assert after.used - before.used > 45 * MILLION, (way, found)


def test_a_cap_holds_where_no_event_is_left_for_markers(paced: Make) -> None:
    one, said = paced(10, None, topology="2xT4-R580"), "some launches cannot be measured"
    assert 0 < one.share(100_000, "exhausts", said=said) < 30


def test_work_that_waits_itself_lets_no_launch_through(paced: Make) -> None:
    assert 0 < paced(5, None, topology="2xT4-R580").share(200_000, "stalls") < 12


@pytest.mark.alone
def test_a_cap_holds_while_the_program_ends(paced: Make) -> None:
    one = paced(30)
    within(24, 33, lambda: one.share(20_000, "at-exit"))
    assert not one.compute().guesses


@pytest.mark.alone
@pytest.mark.parametrize("way", ["goes on", "waits"])
def test_a_cap_holds_where_no_thread_can_be_started(paced: Make, way: str) -> None:
    one, said = paced(30), "no thread can be started"
    within(24, 33, lambda: one.share(20_000, "threadless", way, said=said))
    assert not one.compute().guesses


@pytest.mark.alone
def test_beside_others_a_cap_is_used_in_whole_time_slices(paced: Make) -> None:
    """Each switch between two contexts costs the card time that no context gets."""
    one, other = paced(30), paced(None)
    with other.running("forever", ready=True):
        # Slices of a millisecond make 300 waits a second. A wait for each launch's own budget would make
        # 1,500.
        within(100, 600, lambda: float(one.run("slices")))


@pytest.mark.alone  # shares of time are measured
@pytest.mark.parametrize(("how", "each_ns"), [("once", MILLION), ("alternately", MILLION // 100)])
def test_launches_on_two_devices_are_charged_to_each(paced: Make, how: str, each_ns: int) -> None:
    one = paced(50, 20, topology="2xT4-R580")
    count = int(one.run("both", how))
    first, second = one.compute(0), one.compute(1)
    assert count * each_ns > 50 * MILLION
    assert second.waits, "the smaller cap holds back both"
    for device in first, second:
        assert 0.8 < device.used / (count * each_ns) < 1.3, (first, second, count)


def test_a_graph_is_charged_to_the_device_that_runs_it(paced: Make) -> None:
    one = paced(20, None, topology="2xT4-R580")
    with one.running("elsewhere") as program:
        within(12, 30, lambda: share(asks(program, "cuGraphLaunch", "symbol", 0.6)))
        assert one.compute(0).used > 60 * MILLION


def test_signals_wake_no_launch_before_its_time(paced: Make) -> None:
    assert paced(40).share(2000, "signals") < 55


@pytest.mark.alone  # shares of time are measured
def test_many_threads_share_one_budget(paced: Make) -> None:
    one = paced(50)
    within(35, 65, lambda: one.share(1, "threads", "64"))


#: Commands that give the program another clock than the host's.
CLOCKS = {
    "ten times as fast": ["env", "RATE=10"],
    "a day ahead": ["env", "SHIFT_S=86400"],
    "behind": ["env", "SHIFT_S=-100"],
    "a time namespace": ["unshare", "--time", "--fork", "--kill-child", "--monotonic", "86400", "env"],
}


@pytest.mark.alone
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_cap_holds_whatever_clock_a_program_has_and_for_those_after_it(
    paced: Make, tmp_path: Path, clock: str
) -> None:
    one = paced(30)
    library = compile_c(
        Path(__file__).with_name("shifted_clock.c"), tmp_path / "shifted.so", "-shared", "-fPIC"
    )
    preload = [] if clock == "a time namespace" else [f"LD_PRELOAD={library}"]
    words = [*CLOCKS[clock], *preload, str(one.program), "ways"]
    pipe = subprocess.PIPE
    rate = 10 if "ten" in clock else 1

    def got(program: subprocess.Popen[str]) -> float:
        began = time.monotonic()
        count = int(asks(program, "cuLaunchKernel", "symbol", rate).split()[0])
        return count / 10 / (time.monotonic() - began)  # of 1 ms each

    shifted = one.sandbox.start(words, stdin=pipe, stdout=pipe, text=True)
    try:
        within(22, 36, lambda: got(shifted))
    finally:
        shifted.stdin.close()
        shifted.wait(20)
    with one.running("ways") as program:
        within(22, 36, lambda: got(program))
