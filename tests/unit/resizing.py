"""A container whose limit changes: a grant on a real ledger with real pages, and a process."""

from __future__ import annotations

import subprocess
from pathlib import Path

from xpu_runtime.devices.inventory import Device, Inventory
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import proc
from xpu_runtime.quota import folders, pages
from xpu_runtime.quota.resize import resize
from xpu_runtime.request.units import Memory

MIB, GIB = 1 << 20, 1 << 30
UUIDS = ("GPU-00112233-4455-6677-8899-aabbccddee00", "GPU-00112233-4455-6677-8899-aabbccddee01")
GPUS = tuple(Device(str(n), uuid, "Tesla T4", 15 * GIB, ()) for n, uuid in enumerate(UUIDS))
#: A driver that tells nothing of processes.
FOUND = Inventory("/", True, "580.82.07", "13.0", GPUS, (), (), False, "", ())
HELD = Holding("library", "soft", None, None)


class Container:
    """A grant of the `library` backend with a process and pages."""

    def __init__(self, name: str, *amounts: int) -> None:
        self.process = subprocess.Popen(["/bin/sleep", "600"])
        started = proc.start_time(self.process.pid) or 0
        slices = tuple(Slice(str(n), UUIDS[n], amount, True, None, HELD) for n, amount in enumerate(amounts))
        wanted = Grant(0, name, f"/b/{name}", self.process.pid, started, "", "running", "hook", 0.0, ())
        with Ledger() as ledger:
            granted, _ = ledger.grant(wanted, lambda uses: slices)
        assert granted is not None
        self.grant = granted
        folders.create(granted)
        self.folder = Path(folders.of(granted))

    def set(self, amount: int, *positions: int, force: bool = True, oversubscribe: float = 1.0) -> Grant:
        return resize(
            FOUND,
            self.grant,
            positions or (0,),
            Memory(bytes=amount),
            oversubscribe=oversubscribe,
            force=force,
        )

    def in_force(self) -> list[int | None]:
        return pages.limits(str(self.folder))

    def booked(self) -> list[int]:
        with Ledger() as ledger:
            (grant,) = (each for each in ledger.grants() if each.id == self.grant.id)
        return [part.memory_bytes for part in grant.slices]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        folders.remove(str(self.folder))
