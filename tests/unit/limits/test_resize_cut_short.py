"""A limit that changes: cut short anywhere, many at once, a container in its way."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from xpu_runtime.ledger.grants import Holding, Use
from xpu_runtime.ledger.refusal import Refused
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import pages
from xpu_runtime.limits.resize import Wanted
from xpu_runtime.request.units import Memory

from .resizing import GIB, UUIDS, Container, killed_at

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("before", "after"), [(4 * GIB, 6 * GIB), (6 * GIB, 4 * GIB)])
def test_killed_at_any_line_the_ledger_never_says_less_than_the_page(
    container: Container, before: int, after: int
) -> None:
    line = 0
    outcomes = set()
    while True:
        container.set(before)
        cut = killed_at(line, lambda: container.set(after))
        (booked,), (in_force,) = container.booked(), container.in_force()
        assert in_force is not None
        assert booked >= in_force
        outcomes.add((booked, in_force))
        container.set(after)
        assert container.booked() == container.in_force() == [after]
        if not cut:
            break
        line += 1
    # Both steps were seen on their own.
    assert outcomes == {(before, before), (max(before, after), min(before, after)), (after, after)}


def test_killed_at_any_line_one_slice_that_grows_and_one_that_shrinks(pair: Container) -> None:
    line = 0
    while True:
        pair.set(4 * GIB, 0)
        pair.set(8 * GIB, 1)
        cut = killed_at(line, lambda: pair.set(6 * GIB, 0, 1))
        assert len(pair.booked()) == len(pair.in_force())
        for booked, in_force in zip(pair.booked(), pair.in_force()):
            assert in_force is not None
            assert booked >= in_force
        pair.set(6 * GIB, 0, 1)
        assert pair.booked() == pair.in_force() == [6 * GIB, 6 * GIB]
        if not cut:
            break
        line += 1


@pytest.mark.parametrize(("before", "after"), [(30, 60), (60, 30)])
def test_killed_at_any_line_a_cap_in_the_page_is_never_more_than_is_booked(
    run_dir: Path, before: int, after: int
) -> None:
    held = Holding("library", "soft", "library", "soft")
    capped = Container("c1", 4 * GIB, 4 * GIB, holding=held, cores=before)
    wanted = Wanted(Memory(bytes=6 * GIB), after, "burst", "high")
    line = 0
    outcomes = set()
    while True:
        capped.change(Wanted(Memory(bytes=4 * GIB), before, "fixed", "normal"), 0, 1)
        cut = killed_at(line, lambda: capped.change(wanted, 0, 1))
        page = pages.quota(str(capped.folder))
        for slice_, in_force, policy in zip(capped.slices(), page.cores, page.policies):
            assert slice_.cores is not None
            assert in_force is not None
            assert slice_.cores >= in_force
            outcomes.add((slice_.cores, in_force, policy.sched, policy.priority))
        capped.change(wanted, 0, 1)
        page = pages.quota(str(capped.folder))
        assert [slice_.cores for slice_ in capped.slices()] == [after, after] == list(page.cores)
        assert page.policies == (pages.Policy("burst", "high"),) * 2
        if not cut:
            break
        line += 1
    capped.close()
    # How time is shared changes last.
    larger, smaller = max(before, after), min(before, after)
    assert outcomes == {
        (before, before, "fixed", "normal"),
        (larger, smaller, "fixed", "normal"),
        (after, after, "fixed", "normal"),
        (after, after, "burst", "high"),
    }


# At once.


def test_many_changes_at_once_end_with_one_of_them_whole(run_dir: Path) -> None:
    containers = [Container(f"c{n}", GIB) for n in range(3)]
    problems: list[BaseException] = []

    def change(container: Container, amounts: tuple[int, ...]) -> None:
        for amount in amounts:
            try:
                container.set(amount)
            except Refused:
                continue
            except BaseException as error:
                problems.append(error)

    threads = [
        threading.Thread(target=change, args=(container, amounts))
        for container in containers
        for amounts in ((6 * GIB, GIB) * 6, (2 * GIB, 9 * GIB) * 6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sum(container.booked()[0] for container in containers) <= 15 * GIB
    for container in containers:
        assert container.booked() == container.in_force()
        container.close()


def test_a_containers_lease_on_its_quota_page_holds_up_no_other_container(container: Container) -> None:
    # A read lease can be had on a read-only mount by the file's owner; a writer then waits up to 45 seconds.
    program = (
        "import fcntl, os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)\n"
        "print('leased', flush=True)\n"
        "signal.sigwait([signal.SIGIO])\n"
        "print('somebody waits', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, container.folder / pages.QUOTA],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"leased\n"
    change = threading.Thread(target=container.set, args=(6 * GIB,))
    change.start()
    assert holder.stdout.readline() == b"somebody waits\n"
    # Meanwhile another container starts.
    other = Container("c9", GIB)
    assert change.is_alive()
    holder.communicate(b"\n")
    change.join()
    assert container.booked() == container.in_force() == [6 * GIB]
    with Ledger() as ledger:
        assert ledger.uses()[UUIDS[0]] == Use(7 * GIB, 0, 2, False)
    other.close()
