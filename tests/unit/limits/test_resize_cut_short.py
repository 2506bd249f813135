"""A limit that changes: cut short anywhere, a container in its way."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from xpu_runtime.ledger.grants import Holding, Use
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import pages
from xpu_runtime.limits.resize import Wanted
from xpu_runtime.request.units import Memory

from .resizing import GIB, UUIDS, Container, killed_at

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("first", "second", "cores"),
    [((4, 6), (4, 6), (30, 60)), ((6, 4), (6, 4), (60, 30)), ((4, 6), (8, 6), (60, 30))],
    ids=["grow", "shrink", "one of each"],
)
def test_killed_at_any_line_no_limit_in_the_page_is_more_than_is_booked(
    run_dir: Path, first: tuple[int, int], second: tuple[int, int], cores: tuple[int, int]
) -> None:
    """GiB of two slices and percent of their cores, before and after."""
    held = Holding("library", "soft", "library", "soft")
    capped = Container("c1", first[0] * GIB, second[0] * GIB, holding=held, cores=cores[0])
    wanted = Wanted(Memory(bytes=first[1] * GIB), cores[1], "burst", "high")
    line = 0
    outcomes = set()
    while True:
        for position, (gib, _) in enumerate((first, second)):
            capped.change(Wanted(Memory(bytes=gib * GIB), cores[0], "fixed", "normal"), position)
        cut = killed_at(line, lambda: capped.change(wanted, 0, 1))
        page = pages.quota(str(capped.folder))
        assert len(page.limits) == len(page.cores) == 2
        for slice_, memory, in_force, policy in zip(capped.slices(), page.limits, page.cores, page.policies):
            assert memory is not None and slice_.memory_bytes >= memory
            assert slice_.cores is not None and in_force is not None and slice_.cores >= in_force
            outcomes.add((slice_.cores, in_force, policy.sched, policy.priority))
        capped.change(wanted, 0, 1)
        page = pages.quota(str(capped.folder))
        assert capped.booked() == list(page.limits) == [first[1] * GIB] * 2
        assert [slice_.cores for slice_ in capped.slices()] == list(page.cores) == [cores[1]] * 2
        assert page.policies == (pages.Policy("burst", "high"),) * 2
        if not cut:
            break
        line += 1
    capped.close()
    # Each step was seen on its own, and how time is shared changes last.
    before, after = cores
    assert outcomes == {
        (before, before, "fixed", "normal"),
        (max(cores), min(cores), "fixed", "normal"),
        (after, after, "fixed", "normal"),
        (after, after, "burst", "high"),
    }


# At once.


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
