"""Workers in a sandbox, and their view of NVML.

The worker is that of the simulator's tests. It finds the interposers in the place of the driver's libraries.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support import REPOSITORY
from support.simulation import Process

from .sandboxes import MACHINE, ROOT, Sandbox

WORKER = REPOSITORY / "tests/support/worker/worker.py"
#: A root with the interposers in the place of a driver's libraries.
VIEW = f"{ROOT}/view"
_LIBRARIES = f"{VIEW}/usr/lib/{MACHINE}-linux-gnu"


def setup(sandbox: Sandbox) -> str:
    """Adds to a sandbox: the interposers below VIEW, and the nodes of MIG devices."""
    caps = f"{sandbox.driver_root}/dev/nvidia-caps"
    return (
        f"mkdir -p {_LIBRARIES}; ln -s {ROOT}/lib/* {_LIBRARIES}\n"
        f"if test -d {caps}; then mkdir /dev/nvidia-caps; mount --rbind {caps} /dev/nvidia-caps; fi"
    )


def interposed(sandbox: Sandbox, *before: str) -> Process:
    """A worker in the sandbox; `before`: a command that starts it, such as unshare."""
    command = sandbox.command([*before, sys.executable, str(WORKER), VIEW], setup(sandbox))
    return Process(command, sandbox.environ(), None)


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


def nvml(sandbox: Sandbox, script: str, *before: str, more: str = "") -> Any:
    """The value of `said` after a script with all of pynvml's names and `ask`; `more`: shell before it."""
    program = f"{_NVML}\nnvmlInit()\ncard = nvmlDeviceGetHandleByIndex(0)\n{script}\nprint(json.dumps(said))"
    done = sandbox.run(
        [*before, sys.executable, "-c", program, str(WORKER.parent)], setup=f"{setup(sandbox)}\n{more}"
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def smi(sandbox: Sandbox, *arguments: str, before: tuple[str, ...] = ()) -> str:
    """The output of nvidia-smi in the sandbox."""
    (program,) = Path(sandbox.driver_root).glob("usr/bin/nvidia-smi")
    done = sandbox.run([*before, str(program), *arguments], setup=setup(sandbox))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
