"""What tests of the system call layer share: a C compiler, processes of their own, a root of a container."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from xpu_runtime.linux.rootfs import Root


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`compile_c(name, source, *flags) -> path` of what gcc made of it."""
    folder = tmp_path_factory.mktemp("c")

    def compile_source(name: str, source: str, *flags: str) -> Path:
        (folder / f"{name}.c").write_text(source)
        subprocess.run(["gcc", "-O1", *flags, "-o", folder / name, folder / f"{name}.c"], check=True)
        return folder / name

    return compile_source


@pytest.fixture
def in_child() -> Callable[[Callable[[], None]], None]:
    """Runs a function in a forked process, which may change its namespaces; its failure is the test's."""

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
    """`sleeper(cgroup) -> pid` of a process that is in it until the test ends."""
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


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What lies beside the root, and must never be read or changed through it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    return folder


@pytest.fixture
def inside(tmp_path: Path, outside: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/hostname").write_text("box")
    return folder


@pytest.fixture
def root(inside: Path) -> Iterator[Root]:
    with Root(str(inside)) as opened:
        yield opened


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below `folder`: type and mode, device, content or target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        there = path.lstat()
        content = b""
        if path.is_symlink():
            content = os.fsencode(os.readlink(path))
        elif path.is_file():
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = (there.st_mode, there.st_rdev, content)
    return found
