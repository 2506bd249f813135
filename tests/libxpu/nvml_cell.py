"""Workers in a cell, and NVML as they see it: tests/sim's worker, which finds the wrappers in place of the
libraries of the driver.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.conftest import Process

from .conftest import MACHINE, ROOT, Cell

WORKER = Path(__file__).resolve().parents[1] / "sim" / "worker.py"
#: A root in which the wrappers lie where a driver's libraries do.
VIEW = f"{ROOT}/view"
_LIBRARIES = f"{VIEW}/usr/lib/{MACHINE}-linux-gnu"


def setup(cell: Cell) -> str:
    """What a cell has besides: the wrappers below VIEW, and the nodes of MIG devices."""
    caps = f"{cell.driver_root}/dev/nvidia-caps"
    return (
        f"mkdir -p {_LIBRARIES}; ln -s {ROOT}/lib/* {_LIBRARIES}\n"
        f"if test -d {caps}; then mkdir /dev/nvidia-caps; mount --rbind {caps} /dev/nvidia-caps; fi"
    )


def wrapped(cell: Cell, *before: str) -> Process:
    """A worker in the cell; `before`: a command that starts it, such as unshare."""
    command = cell.command([*before, sys.executable, str(WORKER), VIEW], setup(cell))
    return Process(command, cell.environ(), None)


@pytest.fixture(name="worker")
def worker_fixture() -> Iterator[Callable[..., Process]]:
    """`worker(cell)` starts a worker there; all are gone in the end."""
    started: list[Process] = []

    def start(cell: Cell, *before: str) -> Process:
        started.append(wrapped(cell, *before))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.popen.communicate()


_NVML = """
import ctypes, json, os, signal, sys, time
import pynvml
from pynvml import *
sys.path.insert(0, sys.argv[1])
from worker import plain
def ask(function, *arguments):
    try:
        return plain(function(*arguments))
    except NVMLError as error:
        return {"error": error.value}
"""


def nvml(cell: Cell, script: str, *before: str, more: str = "") -> Any:
    """What a script that has all of pynvml's names, and `ask`, leaves in `said`; `more`: shell before it."""
    program = f"{_NVML}\nnvmlInit()\ncard = nvmlDeviceGetHandleByIndex(0)\n{script}\nprint(json.dumps(said))"
    done = cell.run(
        [*before, sys.executable, "-c", program, str(WORKER.parent)], setup=f"{setup(cell)}\n{more}"
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def smi(cell: Cell, *arguments: str, before: tuple[str, ...] = ()) -> str:
    """What nvidia-smi prints in the cell."""
    (program,) = Path(cell.driver_root).glob("usr/bin/nvidia-smi")
    done = cell.run([*before, str(program), *arguments], setup=setup(cell))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
