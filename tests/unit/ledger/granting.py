"""Processes that ask for slices of one device."""

from __future__ import annotations

import subprocess

from xpu_runtime.ledger.grants import Grant, Holding, Slice, Use
from xpu_runtime.linux import proc

GIB = 1 << 30
CAPACITY = 15 * GIB


class Process:
    """A process that holds a grant."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(["/bin/sleep", "600"])
        self.pid = self._child.pid
        self.start_time = proc.start_time(self.pid) or 0

    def end(self) -> None:
        self._child.kill()
        self._child.wait()


def wanted(process: Process, name: str = "c1", *, mode: str = "hook", state: str = "pending") -> Grant:
    return Grant(0, name, f"/bundles/{name}", process.pid, process.start_time, "", state, mode, 0.0, ())


def take(memory: int, uses: dict[str, Use]) -> tuple[Slice, ...] | None:
    if uses.get("GPU-0", Use()).memory_bytes + memory > CAPACITY:
        return None
    return (Slice("0", "GPU-0", memory, True, 30, Holding()),)
