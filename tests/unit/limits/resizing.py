"""A container whose limits change: a grant on a real ledger with real pages, and a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from support.example_backend import ExampleChange
from xpu_runtime.ledger import cgroup_records
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.ledger.waiting import Transaction
from xpu_runtime.limits import enforce, folders, pages
from xpu_runtime.limits.resize import Wanted, resize
from xpu_runtime.limits.usage import Usage
from xpu_runtime.linux import proc
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import Memory
from xpu_runtime.vendors.inventory import Device, Inventory

MIB, GIB = 1 << 20, 1 << 30
UUIDS = ("GPU-00112233-4455-6677-8899-aabbccddee00", "GPU-00112233-4455-6677-8899-aabbccddee01")
GPUS = tuple(Device(str(n), uuid, "Tesla T4", 15 * GIB, (), "nvidia") for n, uuid in enumerate(UUIDS))
#: A driver that reports nothing of processes.
FOUND = Inventory("/", True, GPUS, (), ())
HELD = Holding("library", "soft", None, None)

#: The functions whose lines count: the ledger or the limit changes there, or between them.
_OURS = tuple(
    function.__code__
    for function in (
        Ledger.resize,
        Transaction.__enter__,
        Transaction._begin,
        Transaction.__exit__,
        pages.OpenQuota.set_limit,
        pages.OpenQuota.set_cores,
        pages.OpenQuota.set_policy,
        pages.OpenQuota._store,
        ExampleChange.set,
        cgroup_records.keep,
    )
)


class Container:
    """A grant with a process, its limits held by `holding`: memory of each device, and a cap on cores."""

    def __init__(self, name: str, *amounts: int, holding: Holding = HELD, cores: int | None = None) -> None:
        self.process = subprocess.Popen(["/bin/sleep", "600"])
        started = proc.start_time(self.process.pid) or 0
        slices = tuple(
            Slice(str(n), UUIDS[n], amount, True, cores, holding) for n, amount in enumerate(amounts)
        )
        wanted = Grant(0, name, f"/b/{name}", self.process.pid, started, "", "running", "hook", 0.0, ())
        with Ledger() as ledger:
            granted, _ = ledger.grant(wanted, lambda uses: slices)
        assert granted is not None
        self.grant = granted
        enforce.prepare(granted, Request())
        self.folder = Path(folders.of(granted))

    def set(self, amount: int, *positions: int, force: bool = True, oversubscribe: float = 1.0) -> Grant:
        wanted = Wanted(Memory(bytes=amount))
        return self.change(wanted, *positions, force=force, oversubscribe=oversubscribe)

    def change(
        self, wanted: Wanted, *positions: int, force: bool = True, oversubscribe: float = 1.0
    ) -> Grant:
        return resize(
            FOUND,
            self.grant,
            positions or (0,),
            wanted,
            oversubscribe=oversubscribe,
            usage=None if force else Usage(FOUND),
            clear=lambda dead: enforce.clear(FOUND, dead),
        )

    def in_force(self) -> list[int | None]:
        return list(pages.quota(str(self.folder)).limits)

    def slices(self) -> tuple[Slice, ...]:
        with Ledger() as ledger:
            (grant,) = (each for each in ledger.grants() if each.id == self.grant.id)
        return grant.slices

    def booked(self) -> list[int]:
        return [part.memory_bytes for part in self.slices()]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        folders.remove(str(self.folder))


def killed_at(line: int, change: Callable[[], object]) -> bool:
    """Runs the change in a process that kills itself at the `line`-th line; False: it came through."""
    child = os.fork()
    if child == 0:
        left = line

        def step(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            code = frame.f_code
            if code not in _OURS and not code.co_filename.endswith("/resize.py"):
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return step

        try:
            sys.settrace(step)
            change()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    return status != 0
