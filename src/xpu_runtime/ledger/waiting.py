"""Waiting for the ledger's lock, with an end, and the name of whoever has it.

One stuck holder must not stop every container's start and end on the node. Who waits in vain learns which
process it is; a start is refused then, and an end leaves its slices to reaping.
"""

from __future__ import annotations

import os
import time

from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.sqlite import sqlite
from xpu_runtime.linux import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Seconds that a command for people waits, each time. It may meet a hundred starts at once.
_WAIT_S = 30.0
#: Seconds in which a start, from the shim's first step to the hook's last, gets the lock or fails: each of
#: the two has this much, and the failed container's end comes after them. Together less than a minute.
START_S = 25.0
#: The same for a container's end, of which an engine expects that it is quick.
STOP_S = 8.0

_left: float | None = None


class LedgerError(XpuError):
    """The ledger cannot be read or written; nothing is granted then."""

    code = "ledger"


class LedgerBusy(LedgerError):
    """Somebody else has had the ledger locked for too long."""

    code = "ledger-busy"


def allow(seconds: float) -> None:
    """From here on this process waits no longer than `seconds`, all its waits together."""
    global _left
    _left = seconds


def left() -> float:
    """The seconds that the next wait may take."""
    return _WAIT_S if _left is None else _left


def _spend(seconds: float) -> None:
    global _left
    if _left is not None:
        _left = max(0.0, _left - seconds)


def busy(path: str, waited: float) -> LedgerBusy:
    """The error of who has waited in vain for the ledger at `path`."""
    from xpu_runtime.linux import holders  # only where something is wrong

    names = holders.of(path, path + ".lock")
    if not names:
        return LedgerBusy(
            f"the ledger {path} is locked: waited {waited:.0f} s for a process that cannot be seen from here",
            f"find it on the host (`fuser {path} {path}.lock`), and end it if it hangs",
        )
    pids = " ".join(str(each.pid) for each in names)
    return LedgerBusy(
        f"the ledger {path} is locked: waited {waited:.0f} s for {', '.join(map(str, names))}",
        f"if it hangs, end it: kill -9 {pids}",
    )


class Transaction:
    """BEGIN IMMEDIATE under the lock file; commits, or on an exception rolls back. LedgerBusy."""

    def __init__(self, db: Any, path: str, inode: int) -> None:
        self._db = db
        self._path = path
        self._inode = inode
        self._lock: files.Lock | None = None

    def __enter__(self) -> None:
        started = time.monotonic()
        try:
            self._begin(started)
        except TimeoutError:
            raise busy(self._path, time.monotonic() - started) from None
        except sqlite.OperationalError as error:
            if is_locked(error):
                raise busy(self._path, time.monotonic() - started) from error
            raise
        finally:
            _spend(time.monotonic() - started)

    def _begin(self, started: float) -> None:
        lock = files.Lock(self._path + ".lock", left())
        lock.__enter__()
        try:
            # SQLite's own lock is free, unless a program has it that does not know the lock file.
            remaining = max(0.0, left() - (time.monotonic() - started))
            self._db.execute(f"PRAGMA busy_timeout = {int(remaining * 1000)}")
            self._db.execute("BEGIN IMMEDIATE")
            self._check_file()
        except BaseException:
            lock.__exit__(None, None, None)
            raise
        self._lock = lock

    def _check_file(self) -> None:
        """LedgerError where the open file is no longer the ledger: nobody else would see the change."""
        try:
            inode = os.stat(self._path).st_ino
        except FileNotFoundError:
            inode = 0
        if inode != self._inode:
            self._db.execute("ROLLBACK")
            raise LedgerError(
                f"the ledger {self._path} was removed while it was in use", "try again: it is made anew"
            )

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._db.execute("COMMIT")
        finally:
            try:
                # Still open after an error, or after a commit that failed; SQLite itself has ended
                # the transaction where the disk is full.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            finally:
                assert self._lock is not None
                self._lock.__exit__(None, None, None)


def is_locked(error: Exception) -> bool:
    """Whether SQLite says that another connection has the file locked (SQLITE_BUSY)."""
    return isinstance(error, sqlite.OperationalError) and "is locked" in str(error)
