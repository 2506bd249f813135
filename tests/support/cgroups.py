"""A test's own cgroups, the processes in them, and the devices that such a process may open."""

from __future__ import annotations

import os
import signal
import stat
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest


@pytest.fixture
def in_child() -> Callable[[Callable[[], None]], None]:
    """Runs a function in a forked process, which may change its namespaces; the test fails if it fails."""

    def run(function: Callable[[], None]) -> None:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            status = 0
            try:
                function()
            except BaseException:
                os.write(write_end, traceback.format_exc().encode())
                status = 1
            os._exit(status)
        os.close(write_end)
        with os.fdopen(read_end) as said:
            text = said.read()
        if os.waitpid(child, 0)[1]:
            pytest.fail(text)

    return run


@pytest.fixture
def new_cgroup() -> Iterator[Callable[[str], Path]]:
    """`new_cgroup(hierarchy) -> path` of a cgroup below /sys/fs/cgroup; it is removed when the test ends."""
    made: list[Path] = []

    def make(hierarchy: str) -> Path:
        folder = Path("/sys/fs/cgroup", hierarchy, f"xpu-test-{uuid.uuid4().hex[:12]}")
        folder.mkdir()
        made.append(folder)
        return folder

    yield make
    for top in made:
        below = [Path(path) for path, _, _ in os.walk(top, topdown=False)]
        for folder in below:
            assert not (folder / "cgroup.procs").read_text(), f"{folder} still has processes"
            folder.rmdir()


@pytest.fixture
def sleeper(new_cgroup: Callable[[str], Path]) -> Iterator[Callable[[Path], int]]:
    """`sleeper(cgroup) -> pid` of a process that stays in it until the test ends."""
    started: list[int] = []

    def start(folder: Path) -> int:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                (folder / "cgroup.procs").write_text("0")
                os.write(write_end, b".")
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        started.append(child)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as ready:
            assert ready.read(1) == b".", f"no process can be put into {folder}"
        return child

    yield start
    for child in started:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Opener(Protocol):
    """The errno (0: none) with which a process in a cgroup opens a device node, or makes one with `mknod`."""

    def __call__(
        self,
        cgroup: Path,
        major: int,
        minor: int,
        *,
        flags: int = os.O_RDWR,
        kind: int = stat.S_IFCHR,
        mknod: bool = False,
    ) -> int: ...


@pytest.fixture
def opens(tmp_path: Path) -> Opener:
    def ask(
        cgroup: Path,
        major: int,
        minor: int,
        *,
        flags: int = os.O_RDWR,
        kind: int = stat.S_IFCHR,
        mknod: bool = False,
    ) -> int:
        node = tmp_path / f"node-{uuid.uuid4().hex[:8]}"
        if not mknod:
            os.mknod(node, kind | 0o600, os.makedev(major, minor))
        child = os.fork()
        if child == 0:
            status = 255
            try:
                (cgroup / "cgroup.procs").write_text("0")
                if mknod:
                    os.mknod(node, kind | 0o600, os.makedev(major, minor))
                else:
                    os.open(node, flags)
                status = 0
            except OSError as error:
                status = error.errno or 255
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        node.unlink(missing_ok=True)
        return status

    return ask
