"""The agent's open pages, and containers that would keep it out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.sharing_time import until
from xpu_runtime import paths
from xpu_runtime.agent.grants import OpenGrants
from xpu_runtime.limits import folders, pages

UUID = "GPU-00000000-0000-0000-0000-000000000001"

#: Holds a lease on a file, gives it up each time that somebody wants to open it, and takes it again at once.
HOLDER = """
import fcntl, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
def renew(*_):
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        # The next signal may come within this one: print cannot be entered twice.
        os.write(1, b"no more\\n")
signal.signal(signal.SIGIO, renew)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print("leased", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def folder(run_dir: Path) -> Path:
    """The folder of a grant, without pages, made long ago."""
    made = Path(paths.in_run_dir(paths.GRANT_FOLDERS, "1-1"))
    made.mkdir(parents=True)
    os.utime(made.parent, (0, 0))
    return made


def make_pages(folder: Path) -> None:
    pages.create(str(folder), "c1", (pages.Entry(UUID, None, cores=30),))


def test_pages_that_a_start_makes_late_are_found(folder: Path) -> None:
    """The folder of all grants' folders does not change then."""
    grants = OpenGrants(print)
    assert not grants.refresh()
    make_pages(folder)
    assert grants.refresh() and [Path(each).name for each in grants.by_folder] == ["1-1"]
    assert not grants.refresh()
    grants.close()


def test_a_folder_that_is_complete_without_pages_is_not_looked_at_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "complete").touch()
    grants = OpenGrants(print)
    looks: list[str] = []

    def left() -> list[str]:
        looks.append(str(folder))
        return [str(folder)]

    monkeypatch.setattr(folders, "left", left)
    for _ in range(3):
        assert not grants.refresh()
    assert len(looks) == 1


def test_a_lease_that_is_taken_again_and_again_keeps_nobody_out(folder: Path) -> None:
    make_pages(folder)
    told: list[str] = []
    grants = OpenGrants(told.append)
    command = [sys.executable, "-c", HOLDER, str(folder / pages.QUOTA)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "leased\n"

            def opened() -> bool:
                grants.refresh()
                return bool(grants.by_folder)

            until(opened, "its pages are open", 20)
            assert [Path(each).name for each in grants.by_folder] == ["1-1"]
            assert len(told) == 1, "the container's lease is told once"
            assert holder.stdout.readline() == "no more\n"
        finally:
            holder.kill()
    before = len(os.listdir("/proc/self/fd"))
    grants.close()
    assert len(os.listdir("/proc/self/fd")) < before
