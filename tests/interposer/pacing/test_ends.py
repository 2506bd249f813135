"""Launches under a cap: streams, threads, signals, forks and contexts neither hang nor break a program, and a
process that dies leaves the others running.
"""

from __future__ import annotations

import time

import pytest

from support.timing import within

from ..sandboxes import build
from .paced import MILLION, Make, asks, share


@pytest.mark.parametrize("mode", ["global", "thread", "relaxed"])
def test_a_capture_has_the_programs_own_launches_alone(paced: Make, mode: str) -> None:
    one = paced(40)
    one.run("capture", mode)
    assert one.compute().waits


def test_streams_end_and_are_captured_while_they_are_measured(paced: Make) -> None:
    """The simulated driver reports a stream that has ended."""
    kind = "address,undefined"
    one = paced(60, sanitized=kind)
    one.run_sanitized(kind, "streams")
    assert one.compute().used > 100 * MILLION


def test_a_kernel_may_wait_for_one_that_is_launched_after_it(paced: Make) -> None:
    paced(5).run("spin")


def test_a_kernel_may_wait_until_others_are_launched_behind_it(paced: Make) -> None:
    paced(30).run("spin-behind", "100")


def test_a_signal_may_end_the_program_during_a_launch(paced: Make) -> None:
    """A measurement at the program's end must not wait for the interrupted launch's lock of the driver."""
    one = paced(95)
    for after_us in range(5000, 25000, 1000):
        one.run("interrupted", str(after_us), timeout=10)


def test_children_and_parents_go_on_after_a_fork(paced: Make) -> None:
    one = paced(30)
    one.run("forks")
    assert one.compute().waits


@pytest.mark.parametrize("what", ["forever", "long"])
def test_a_killed_process_leaves_the_others_of_its_container_running(paced: Make, what: str) -> None:
    one = paced(30)
    with one.running("ways") as other:
        assert asks(other, "cuLaunchKernel", "symbol", 0.1)
        with one.running(what, ready=True):
            time.sleep(0.3)
        began = time.monotonic()
        assert asks(other, "cuLaunchKernel", "symbol", 0.05)
        # At most the time that it used and did not pay for; 0.3 s at 30 %.
        assert time.monotonic() - began < 3
        within(20, 40, lambda: share(asks(other, "cuLaunchKernel", "symbol", 1)))


@pytest.mark.parametrize("way", ["destroy", "reset", "release"])
def test_a_context_may_end_while_launches_wait_in_it(paced: Make, way: str) -> None:
    one = paced(20)
    one.run("ends", way)
    assert one.compute().waits


@pytest.mark.parametrize("way", ["return", "exit", "thread", "main", "fault", "atexit"])
def test_a_program_ends_whatever_is_under_way(paced: Make, way: str) -> None:
    one = paced(30)
    loop = f"for i in $(seq 10); do timeout -s KILL 10 {one.program} leave {way} || exit 1$?; done"
    done = one.sandbox.run(["sh", "-c", loop], timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "what", ["threads 8", "forks", "ends destroy", "ends reset", "capture global", "streams"]
)
@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(paced: Make, kind: str, what: str) -> None:
    one = paced(50, libraries=build(kind), fenced=kind if what == "forks" else "")
    one.run_sanitized(kind, *what.split())
