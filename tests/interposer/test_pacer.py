"""Launches under a cap on the device's time: every way to launch is held back and charged; nothing that a
program does with streams, threads, signals, forks or contexts hangs or breaks; and whoever dies leaves the
others going.

How exactly a cap holds is bench/share's to say: bounds are wide here.
"""

from __future__ import annotations

import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.timing import within
from xpu_runtime.limits import compute, pages

from .sandboxes import RUNTIMES, Sandbox, build, compile_c, runtime_of

Make = Callable[..., Sandbox]

WAYS = ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch")
SUFFIXES = ("", "_ptsz")
#: Those that have no form of their own for the default stream of each thread.
OLDER_WAYS = ("cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync", "cuLaunchCooperativeKernelMultiDevice")
FOUND = ("symbol", "lookup")
MILLION = 1_000_000
#: Place of the first device's `paid` and `paid_cap` in a usage page.
PAID = 2048


class Paced:
    """A sandbox with a cap in percent on each device (None: none), and the program of paced_work.c in it."""

    def __init__(self, sandbox: Sandbox, program: Path, *caps: int | None) -> None:
        self.sandbox, self.program = sandbox, program
        for device, cap in enumerate(caps):
            self.set_cores(cap, device)

    def set_cores(self, percent: int | None, device: int = 0) -> None:
        with pages.OpenQuota(str(self.sandbox.pages)) as page:
            page.set_cores(device, percent)

    def compute(self, device: int = 0) -> pages.Compute:
        return pages.compute(str(self.sandbox.pages), device + 1)[device]

    def run(self, *words: str, **options: Any) -> str:
        """What the program says, which must end well."""
        done = self.sandbox.run([str(self.program), *words], **{"timeout": 60, **options})
        assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr)
        return done.stdout

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        pipe = subprocess.PIPE
        one = self.sandbox.start([str(self.program), *words], stdin=pipe, stdout=pipe, text=True)
        try:
            yield one
        finally:
            one.kill()
            one.communicate()

    def used_in(self, seconds: float, device: int = 0) -> float:
        """The part of the device's time that was charged in so many seconds from now on, in percent."""
        began, used = time.monotonic(), self.compute(device).used
        time.sleep(seconds)
        return (self.compute(device).used - used) / 1e7 / (time.monotonic() - began)

    def until(self, holds: Callable[[], bool], seconds: float) -> float:
        """Seconds until it held; fails if it does not within so many."""
        began = time.monotonic()
        while not holds():
            assert time.monotonic() - began < seconds
            time.sleep(0.002)
        return time.monotonic() - began


@pytest.fixture
def paced(sandbox: Make, tmp_path: Path) -> Callable[..., Paced]:
    """`paced(30)` is a sandbox with a cap of 30 %, with its program; `fenced`: see fork_fence.c."""

    def make(*caps: int | None, fenced: str = "", **options: Any) -> Paced:
        one = sandbox(*(None for _ in caps), **options)
        (library,) = Path(one.driver_root).glob("usr/lib/*-linux-gnu/libcuda.so.1")
        source, *parts = (Path(__file__).with_name(f"paced_{name}.c") for name in ("work", "costs", "lives"))
        fence = [Path(__file__).with_name("fork_fence.c"), f"-l{RUNTIMES[fenced]}"] if fenced else []
        more = map(str, [*parts, *fence, library])
        program = compile_c(source, tmp_path / "paced_work", "-Wextra", *more, "-pthread")
        return Paced(one, program, *caps)

    return make


def share(line: str) -> float:
    """Percent of the device's time, of launches of 1 ms: `COUNT MICROSECONDS`."""
    count, passed = (int(word) for word in line.split())
    return count * 1000 / passed * 100


def asks(one: subprocess.Popen[str], *words: object) -> str:
    assert one.stdin and one.stdout
    one.stdin.write(" ".join(str(word) for word in words) + "\n")
    one.stdin.flush()
    return one.stdout.readline()


def run_sanitized(one: Paced, kind: str, what: str) -> None:
    environ = {
        "LD_PRELOAD": runtime_of(kind),
        "ASAN_OPTIONS": "detect_leaks=0",
        # (a child starts a thread, of ours)
        "TSAN_OPTIONS": "exitcode=66 die_after_fork=0",
    }
    # (unshare and sh come first, and are not to have it)
    words = ["env", *(f"{name}={value}" for name, value in environ.items())]
    done = one.sandbox.run([*words, str(one.program), *what.split()])
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.alone  # shares of time are measured
def test_a_cap_holds_what_is_completed_and_tells_so(paced: Callable[..., Paced]) -> None:
    one = paced(30)
    with one.running("ways") as program:
        before, then = one.compute(), time.monotonic_ns()
        within(24, 36, lambda: share(asks(program, "cuLaunchKernel", "symbol", 2)))
        after, now = one.compute(), time.monotonic_ns()
        assert after.used - before.used > 400 * MILLION
        assert after.waits > before.waits
        # One thread waits for most of the time that is not its share.
        assert 0.4 < (after.held - before.held) / (now - then) < 1
        assert after.guesses == before.guesses


def test_what_has_no_cap_is_not_charged(paced: Callable[..., Paced]) -> None:
    one = paced(None)
    with one.running("ways") as program:
        assert share(asks(program, "cuLaunchKernel", "symbol", 0.3)) > 80
    assert one.compute() == pages.Compute(0, 0, 0)


def test_every_way_to_launch_is_held_back_and_charged(paced: Callable[..., Paced]) -> None:
    one = paced(30)
    with one.running("ways") as program:
        for way in (*(way + suffix for way in WAYS for suffix in SUFFIXES), *OLDER_WAYS):
            for found in FOUND:
                before = one.compute()
                got = share(asks(program, way, found, 0.4))
                after = one.compute()
                assert 15 < got < 50, (way, found, got)
                assert after.waits > before.waits, (way, found)
                assert after.used - before.used > 60 * MILLION, (way, found)


@pytest.mark.parametrize("beside", [False, True])
def test_work_that_takes_longer_than_it_did_is_charged_what_it_takes(
    paced: Callable[..., Paced], beside: bool
) -> None:
    """No marker follows it, and the program waits for the context: nothing says when it has ended."""
    one = paced(30)
    with ExitStack() as others:
        if beside:
            others.enter_context(one.running("forever"))  # (of the same budget)

        def got() -> float:
            count, microseconds = map(int, one.run("grows").split())
            return count * 50_000 / microseconds * 100

        within(15, 45, got)


@pytest.mark.alone
def test_short_work_that_takes_longer_beside_others_is_charged_what_it_takes(
    paced: Callable[..., Paced],
) -> None:
    one, other = paced(30), paced(None)
    with other.running("forever") as load:
        assert load.stdout and load.stdout.readline() == "ready\n"

        def got() -> float:
            count, microseconds = map(int, one.run("outgrows").split())
            return count * 250 / microseconds * 100

        within(20, 36, got)


@pytest.mark.alone
@pytest.mark.parametrize("beside", [False, True])
def test_launches_of_one_kind_that_take_different_times_are_charged_what_they_take(
    paced: Callable[..., Paced], beside: bool
) -> None:
    one, other = paced(30), paced(None)
    with ExitStack() as others:
        if beside:
            load = others.enter_context(other.running("forever"))
            assert load.stdout and load.stdout.readline() == "ready\n"

        def got() -> float:
            count, microseconds = map(int, one.run("mixes").split())
            return count * 1660 / microseconds * 100

        within(27, 33, got)


@pytest.mark.alone
@pytest.mark.parametrize("beside", [False, True])
def test_work_that_takes_much_less_than_it_did_has_its_share(
    paced: Callable[..., Paced], beside: bool
) -> None:
    one, other = paced(60), paced(None)
    with ExitStack() as others:
        if beside:
            load = others.enter_context(other.running("forever"))
            assert load.stdout and load.stdout.readline() == "ready\n"

        def got() -> float:
            count, microseconds = map(int, one.run("shrinks").split())
            return count * 10 / microseconds * 100

        within(40, 63, got)


@pytest.mark.alone
@pytest.mark.parametrize("way", ["context", "event", "event-query", "stream-query", "copy", "sleep"])
@pytest.mark.parametrize("where", ["", "default-", "thread-", "threadless-"])
def test_what_is_launched_last_is_charged_what_it_takes(
    paced: Callable[..., Paced], where: str, way: str
) -> None:
    """However the program waits for it, and wherever it was launched: by what was learnt from the launch
    before, it would cost next to nothing."""
    one = paced(30)

    def got() -> float:
        done = one.sandbox.run([str(one.program), "varies", where + way], timeout=60)
        assert done.returncode == 0 and done.stderr.count("\n") == (where == "threadless-"), done.stderr
        count, microseconds = map(int, done.stdout.split())
        return count * 1540 / microseconds * 100

    within(20, 34, got)


@pytest.mark.alone
@pytest.mark.parametrize("way", ["1-600-1", "2-250-2"])
def test_work_that_has_ended_before_it_is_measured_is_charged_what_it_takes(
    paced: Callable[..., Paced], way: str
) -> None:
    """Its kind is known to be short, as it is each time that it is measured: it had 42 to 66 percent."""
    one = paced(20)
    streams, us, shorts = (int(word) for word in way.split("-"))

    def got() -> float:
        count, microseconds = map(int, one.run("hides", way).split())
        return count * streams * (us + 1 + 10 * shorts) / microseconds * 100

    within(12, 28, got)


def test_a_cap_holds_where_no_event_is_left_for_markers(paced: Callable[..., Paced]) -> None:
    one = paced(10, None, topology="2xT4-R580")
    done = one.sandbox.run([str(one.program), "exhausts"], timeout=60)
    assert done.returncode == 0, done.stderr
    count, microseconds = map(int, done.stdout.split())
    assert 0 < count * 100_000 / microseconds < 0.3


def test_work_that_waits_itself_lets_no_launch_through(paced: Callable[..., Paced]) -> None:
    count, microseconds = map(int, paced(5, None, topology="2xT4-R580").run("stalls").split())
    assert 0 < count * 500_000 / microseconds < 0.12


def test_what_is_launched_is_what_was_charged(paced: Callable[..., Paced]) -> None:
    paced(10).run("rewrites")


@pytest.mark.parametrize("way", ["exit", "_exit", "destroy"])
def test_the_only_kernel_of_a_short_process_is_charged(paced: Callable[..., Paced], way: str) -> None:
    one = paced(90)
    loop = f"for i in $(seq 10); do {one.program} once {way} || exit 1$?; done"
    done = one.sandbox.run(["sh", "-c", loop], timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert 38 * MILLION < one.compute().used < 60 * MILLION


@pytest.mark.alone
def test_a_cap_holds_while_the_program_ends(paced: Callable[..., Paced]) -> None:
    one = paced(30)

    def got() -> float:
        count, microseconds = map(int, one.run("at-exit").split())
        return count * 20_000 / microseconds * 100

    within(24, 33, got)
    assert not one.compute().guesses


@pytest.mark.alone
@pytest.mark.parametrize("way", ["goes on", "waits"])
def test_a_cap_holds_where_no_thread_can_be_started(paced: Callable[..., Paced], way: str) -> None:
    one = paced(30)

    def got() -> float:
        done = one.sandbox.run([str(one.program), "threadless", way], timeout=60)
        assert done.returncode == 0 and "no thread can be started" in done.stderr, done.stderr
        count, microseconds = map(int, done.stdout.split())
        return count * 20_000 / microseconds * 100

    within(24, 33, got)
    assert not one.compute().guesses


@pytest.mark.alone
def test_beside_others_a_cap_is_used_in_whole_turns(paced: Callable[..., Paced]) -> None:
    """Each change between two contexts costs the card time that is nobody's."""
    one, other = paced(30), paced(None)
    with other.running("forever") as load:
        assert load.stdout and load.stdout.readline() == "ready\n"
        # Turns of a millisecond are 300 a second; waits for each launch's own budget would be 1,500.
        within(100, 600, lambda: float(one.run("turns")))


@pytest.mark.alone  # shares of time are measured
@pytest.mark.parametrize(("how", "each_ns"), [("once", MILLION), ("turns", MILLION // 100)])
def test_launches_on_two_devices_are_charged_to_each(
    paced: Callable[..., Paced], how: str, each_ns: int
) -> None:
    one = paced(50, 20, topology="2xT4-R580")
    count = int(one.run("both", how))
    first, second = one.compute(0), one.compute(1)
    assert count * each_ns > 50 * MILLION
    assert second.waits, "the smaller cap holds back both"
    for device in first, second:
        assert 0.8 < device.used / (count * each_ns) < 1.3, (first, second, count)


def test_a_graph_is_charged_to_the_device_that_runs_it(paced: Callable[..., Paced]) -> None:
    one = paced(20, None, topology="2xT4-R580")
    with one.running("elsewhere") as program:
        within(12, 30, lambda: share(asks(program, "cuGraphLaunch", "symbol", 0.6)))
        assert one.compute(0).used > 60 * MILLION


@pytest.mark.parametrize("mode", ["global", "thread", "relaxed"])
def test_a_capture_has_what_the_program_launched_and_nothing_else(
    paced: Callable[..., Paced], mode: str
) -> None:
    one = paced(40)
    one.run("capture", mode)
    assert one.compute().waits


def test_streams_end_and_are_captured_while_they_are_measured(
    paced: Callable[..., Paced],
) -> None:
    """The driver itself says when it is given a stream that has ended."""
    kind = "address,undefined"
    one = paced(60, sanitized=kind)
    run_sanitized(one, kind, "streams")
    assert one.compute().used > 100 * MILLION


def test_a_kernel_may_wait_for_one_that_is_launched_after_it(paced: Callable[..., Paced]) -> None:
    paced(5).run("spin")


def test_a_kernel_may_wait_until_others_are_launched_behind_it(paced: Callable[..., Paced]) -> None:
    paced(30).run("spin-behind", "100")


def test_signals_wake_no_launch_before_its_time(paced: Callable[..., Paced]) -> None:
    count, passed = (int(word) for word in paced(40).run("signals").split())
    assert count * 2000 / passed < 0.55


def test_a_signal_may_end_the_program_in_the_midst_of_a_launch(paced: Callable[..., Paced]) -> None:
    """What is measured at its end is not to wait for a lock of the driver's that the launch has."""
    one = paced(95)
    for after_us in range(5000, 25000, 1000):
        one.run("interrupted", str(after_us), timeout=10)


def test_children_and_parents_go_on_after_a_fork(paced: Callable[..., Paced]) -> None:
    one = paced(30)
    one.run("forks")
    assert one.compute().waits


@pytest.mark.parametrize("what", ["forever", "long"])
def test_who_is_killed_leaves_the_others_of_its_container_going(
    paced: Callable[..., Paced], what: str
) -> None:
    one = paced(30)
    with one.running("ways") as other:
        assert asks(other, "cuLaunchKernel", "symbol", 0.1)
        with one.running(what) as program:
            assert program.stdout and program.stdout.readline() == "ready\n"
            time.sleep(0.3)
        began = time.monotonic()
        assert asks(other, "cuLaunchKernel", "symbol", 0.05)
        # At most what it has used and was not paid for; 0.3 s at 30 %.
        assert time.monotonic() - began < 3
        within(20, 40, lambda: share(asks(other, "cuLaunchKernel", "symbol", 1)))


@pytest.mark.parametrize("way", ["destroy", "reset", "release"])
def test_a_context_may_end_while_launches_wait_in_it(paced: Callable[..., Paced], way: str) -> None:
    one = paced(20)
    one.run("ends", way)
    assert one.compute().waits


@pytest.mark.alone  # shares of time are measured
def test_many_threads_share_one_budget(paced: Callable[..., Paced]) -> None:
    one = paced(50)
    ended = [int(word) for word in one.run("threads", "64").split()]
    assert 0.35 < ended[0] / ended[1] < 0.65


@pytest.mark.alone  # shares of time are measured
def test_a_cap_that_changes_holds_at_once(paced: Callable[..., Paced]) -> None:
    one = paced(10)
    with one.running("forever") as program:
        assert program.stdout and program.stdout.readline() == "ready\n"
        within(5, 16, lambda: one.used_in(0.5))
        one.set_cores(90)
        time.sleep(0.1)
        assert one.used_in(0.3) > 60
        one.set_cores(10)
        time.sleep(0.1)
        assert one.used_in(0.5) < 20


def test_a_cap_that_grows_frees_what_waits_beside_others(paced: Callable[..., Paced]) -> None:
    one, other = paced(1), paced(None)
    with (one.sandbox.pages / pages.USAGE).open("r+b") as usage:  # it owes ten seconds
        usage.seek(PAID)
        usage.write(struct.pack("<2Q", time.monotonic_ns() + 10_000 * MILLION, 100))
    with other.running("forever") as load, one.running("forever") as program:
        for each in load, program:
            assert each.stdout and each.stdout.readline() == "ready\n"
        one.until(lambda: one.compute().waits > 50, 20)
        assert one.compute().used < 10 * MILLION
        one.set_cores(90)
        one.until(lambda: one.compute().used > 100 * MILLION, 2)


@pytest.mark.alone  # shares of time are measured
def test_an_agent_holds_launches_back_and_lets_them_go_and_is_not_missed_for_long(
    paced: Callable[..., Paced],
) -> None:
    one = paced(50)
    grant = compute.GrantPages(str(one.sandbox.pages), write=True)
    rounds = 0

    def adjust(percent: int, seconds: float) -> float:
        """What is charged meanwhile in percent, but for the begin."""
        nonlocal rounds
        end, used = time.monotonic() + seconds, 0
        began = time.monotonic() + 0.1
        while time.monotonic() < end:
            rounds += 1
            grant.slices[0].adjust(rounds << compute.ROUND_SHIFT | percent * 100)
            if not used and time.monotonic() > began:
                began, used = time.monotonic(), one.compute().used
            time.sleep(0.02)
        return (one.compute().used - used) / 1e7 / (time.monotonic() - began)

    try:
        with one.running("forever") as program:
            assert program.stdout and program.stdout.readline() == "ready\n"
            assert adjust(30, 0.6) < 45
            assert adjust(0, 0.8) < 2
            waits = one.compute().waits
            within(60, 101, lambda: adjust(80, 0.6))
            assert adjust(0, 0.3) < 4
            # The agent is gone: the cap holds again, half a second later.
            one.until(lambda: one.compute().waits > waits, 1)
            time.sleep(0.6)
            within(40, 60, lambda: one.used_in(0.6))
    finally:
        grant.close()


def test_the_agent_sees_who_is_slowed_down_by_others_though_no_budget_holds_it_back(
    paced: Callable[..., Paced],
) -> None:
    """One that was lent the whole device is to give it back, and its owner's launches wait for none."""
    one = paced(50)
    grant = compute.GrantPages(str(one.sandbox.pages), write=True)
    rounds = 0

    def waits_within(seconds: float) -> bool:
        nonlocal rounds
        before, end = one.compute().waits, time.monotonic() + seconds
        while time.monotonic() < end and one.compute().waits == before:
            rounds += 1
            grant.slices[0].adjust(rounds << compute.ROUND_SHIFT | 10_000)
            time.sleep(0.02)
        return one.compute().waits != before

    try:
        waits_within(0.1)
        with one.running("forever") as first:
            assert first.stdout and first.stdout.readline() == "ready\n"
            one.until(lambda: not waits_within(0.3), 20)
            with one.running("forever"):
                assert waits_within(20)
    finally:
        grant.close()


@pytest.mark.parametrize("way", ["return", "exit", "thread", "main", "fault", "atexit"])
def test_a_program_ends_whatever_is_under_way(paced: Callable[..., Paced], way: str) -> None:
    one = paced(30)
    loop = f"for i in $(seq 10); do timeout -s KILL 10 {one.program} leave {way} || exit 1$?; done"
    done = one.sandbox.run(["sh", "-c", loop], timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "what", ["threads 8", "forks", "ends destroy", "ends reset", "capture global", "streams"]
)
@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(paced: Callable[..., Paced], kind: str, what: str) -> None:
    one = paced(50, libraries=build(kind), fenced=kind if what == "forks" else "")
    run_sanitized(one, kind, what)


#: How a program's clock can differ from the host's, as words in front of it.
CLOCKS = {
    "ten times as fast": ["env", "RATE=10"],
    "a day ahead": ["env", "SHIFT_S=86400"],
    "behind": ["env", "SHIFT_S=-100"],
    "a time namespace": ["unshare", "--time", "--fork", "--kill-child", "--monotonic", "86400", "env"],
}


@pytest.mark.alone
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_cap_holds_whatever_clock_a_program_has_and_for_those_after_it(
    paced: Callable[..., Paced], tmp_path: Path, clock: str
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
        count = int(asks(program, "cuLaunchKernel", "symbol", 2 * rate).split()[0])
        return count / 10 / (time.monotonic() - began)  # of 1 ms each

    shifted = one.sandbox.start(words, stdin=pipe, stdout=pipe, text=True)
    try:
        within(22, 36, lambda: got(shifted))
    finally:
        shifted.stdin.close()
        shifted.wait(20)
    with one.running("ways") as program:
        within(22, 36, lambda: got(program))
