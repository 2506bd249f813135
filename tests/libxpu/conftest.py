"""What tests of the wrapper libraries share: a simulated card, the wrappers built for tests, and cells.

A cell (packaging/cell.py) is what a container with a slice is to a program, without an engine. Programs in
one cell share its account. tests/doors has the same in real containers.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.conftest import native, run_dir, up  # noqa: F401  (fixtures)
from xpu_runtime.devices.simulated import SimState
from xpu_runtime.quota import pages

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "packaging"))

import cell as cells  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
#: Where test builds of the wrappers look for the pages and the real libraries.
ROOT, FOLDER, LIBRARIES = cells.ROOT, cells.FOLDER, cells.LIBRARIES


def build(kind: str = "") -> Path:
    """Builds native/libxpu for cells; `kind`: sanitizers, such as "address,undefined"."""
    return Path(cells.build(kind))


@pytest.fixture(scope="session")
def wrappers() -> Path:
    """The folder of the two wrapper libraries, built for cells."""
    return build()


class Cell:
    """Runs programs that see one slice."""

    def __init__(self, folder: Path, root: str, wrappers: Path) -> None:
        self.pages = folder
        self.driver_root = root
        self.wrappers = wrappers

    def command(self, arguments: list[str], setup: str = "") -> list[str]:
        """The command that runs `arguments` in the cell; `setup` is shell run in it before."""
        (driver,) = Path(self.driver_root).glob("usr/lib/*-linux-gnu")
        return cells.command(
            arguments,
            pages=str(self.pages),
            real=str(driver),
            wrappers=str(self.wrappers),
            simulation=self.driver_root,
            setup=setup,
        )

    def environ(self, **more: str) -> dict[str, str]:
        """The environment of a program in the cell: the loader finds the wrappers as in a container."""
        return cells.environ(more)

    def start(
        self, arguments: list[str], *, setup: str = "", env: dict[str, str] | None = None, **options: Any
    ) -> Any:
        """A Popen of the program in the cell."""
        return subprocess.Popen(self.command(arguments, setup), env=self.environ(**(env or {})), **options)

    def run(
        self,
        arguments: list[str],
        *,
        setup: str = "",
        env: dict[str, str] | None = None,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """The finished program, with its output as text."""
        return subprocess.run(
            self.command(arguments, setup),
            env=self.environ(**(env or {})),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def python(self, script: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a Python script; ctypes.CDLL("libcuda.so.1") in it is the wrapper."""
        return self.run([sys.executable, "-c", script, *arguments], **options)

    def set_limit(self, limit: int | None, device: int = 0) -> None:
        """What `xpu set` does to the page."""
        pages.set_limit(str(self.pages), device, limit)

    def usage(self, devices: int = 1) -> list[pages.ProcessUsage]:
        """What the usage page says."""
        return pages.usage(str(self.pages), devices)

    def total(self, device: int = 0) -> int:
        """The total of the account in bytes, as the page has it."""
        page = (self.pages / pages.USAGE).read_bytes()
        at = 1024 + 64 * device
        return (int.from_bytes(page[at : at + 8], "little") >> 31) * 512


@pytest.fixture
def cell(
    up: Callable[..., SimState],  # noqa: F811
    wrappers: Path,
    tmp_path: Path,
) -> Iterator[Callable[..., Cell]]:
    """`cell(4 * GIB)` is a cell with that limit on each device of the topology; None: no limit."""
    made = 0

    def make(*limits: int | None, topology: str = "1xT4-R580", libraries: Path | None = None) -> Cell:
        nonlocal made
        state = up(topology)
        uuids = _uuids(state.root)
        folder = tmp_path / f"pages{made}"
        made += 1
        folder.mkdir()
        wanted = limits or (None,)
        entries = tuple(pages.Entry(uuid, wanted[min(at, len(wanted) - 1)]) for at, uuid in enumerate(uuids))
        pages.create(str(folder), "a-cell", entries)
        return Cell(folder, state.root, libraries or wrappers)

    yield make


def _uuids(root: str) -> list[str]:
    (smi,) = Path(root).glob("usr/bin/nvidia-smi")
    listed = subprocess.run(
        [str(smi), "--query-gpu=uuid", "--format=csv,noheader"], check=True, capture_output=True, text=True
    )
    return listed.stdout.split()


def compile_c(source: Path, out: Path, *options: str) -> Path:
    """Compiles a test program with the machine's compiler."""
    compiler = shutil.which("gcc") or "cc"
    subprocess.run(
        [compiler, "-std=c11", "-O2", "-g", "-Wall", "-Werror", "-o", out, source, *options], check=True
    )
    return out


MACHINE = platform.machine()
