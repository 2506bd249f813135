"""The node's ledger as the plugin's threads use it: one at a time, each for so many seconds at the most.

The longest wait for the ledger's lock is one number of the whole process (ledger/waiting.py), so each turn
sets it. Each reading is kept as a value.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from xpu_runtime import paths
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.grants import Use
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.ledger.waiting import LedgerBusy
from xpu_runtime.value import Value

#: A file's time stamp has the clock's ticks: two changes can have the same.
_TICK_NS = 1_000_000_000


class Taken(Value):
    """All shares by device UUID; the shares without a reservation (of others than pods, and of containers
    that outlive their pod); pods' slices beyond their reservation; and the reservations by the pod's UID."""

    uses: Mapping[str, Use] = {}
    others: Mapping[str, Use] = {}
    allocations: Mapping[str, Allocation] = {}


def _beyond(use: Use, allocation: Allocation, uuid: str) -> Use:
    """The slices of a pod's containers on a device beyond the pod's reservation, as after `xpu set`."""
    reserved = allocation.amounts().get(uuid)
    if reserved is None:
        return use
    if reserved.whole:
        return Use()
    memory, cores = use.memory_bytes - reserved.memory_bytes, use.cores - reserved.cores
    return Use(max(memory, 0), max(cores, 0), 0, use.exclusive)


class SharedLedger:
    """The ledger, shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def turn(self, seconds: float) -> Iterator[None]:
        """In it, a Ledger may be opened by this thread, and by no other; LedgerBusy after `seconds`."""
        until = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            raise LedgerBusy(f"another thread has used the ledger for {seconds:.0f} s")
        try:
            waiting.allow(max(until - time.monotonic(), 0.0))
            yield
        finally:
            self._lock.release()

    def read(self, seconds: float) -> Taken:
        """LedgerError if the ledger cannot be read."""
        with self.turn(seconds), PodLedger() as ledger:
            of_pods = ledger.pods_of_grants()
            grants = ledger.grants()
            allocations = {each.uid: each for each in ledger.allocations()}
            held: dict[tuple[str, str], Use] = {}
            for grant in grants:
                uid, _ = of_pods.get(grant.id, ("", ""))
                for slice_ in grant.slices:
                    use = Use(slice_.memory_bytes, slice_.cores or 0, 1, not slice_.limited)
                    key = uid if uid in allocations else "", slice_.device_uuid
                    held[key] = held.get(key, Use()).plus(use)
            others: dict[str, Use] = {}
            for (uid, uuid), use in held.items():
                more = _beyond(use, allocations[uid], uuid) if uid else use
                others[uuid] = others.get(uuid, Use()).plus(more)
            return Taken(ledger.uses(), others, allocations)

    def is_allocated(self, key: tuple[str, str, str], seconds: float) -> bool:
        """Whether the pod with this Allocation.key has one; LedgerError."""
        with self.turn(seconds), PodLedger() as ledger:
            found = ledger.allocation(key[0])
            return found is not None and found.key == key

    def deallocate(self, uids: list[str], seconds: float) -> list[Allocation]:
        """Ends the reservations of these pods, and returns them; LedgerError."""
        with self.turn(seconds), PodLedger() as ledger:
            return ledger.deallocate(uids)

    @staticmethod
    def stamp() -> tuple[int, ...]:
        """A value that changes with the ledger; () while it is unknown."""
        path = paths.in_run_dir("ledger.db")
        try:
            there = os.stat(path)
        except OSError:
            return ()
        if time.time_ns() - there.st_mtime_ns < _TICK_NS:
            return ()
        return there.st_ino, there.st_size, there.st_mtime_ns
