"""The ledger's lock: every wait for it is bounded, and an error names the process that holds it.

One hanging process must not block every container on the node. When the time is over, a start is refused, and
the end of a container leaves its slices to be reaped later. Knows locks and SQLite's transactions, and
nothing of grants.
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

#: Seconds that each wait of an `xpu` command may take: a hundred starts may be ahead of it.
_WAIT_S = 30.0
#: Seconds that all waits of the shim, and again all of the hook, may take. With the end of a container whose
#: start has failed, that is less than a minute.
START_S = 25.0
#: The same for the end of a container, which engines expect to be quick.
STOP_S = 8.0

_left: float | None = None
#: `allow`'s value: a caller that may not wait gets no holder's name either, as finding it takes a look at all
#: processes.
_allowed = 0.0


class LedgerError(XpuError):
    """The ledger cannot be read or written; nothing is granted then."""


class LedgerBusy(LedgerError):
    """Another process has held the ledger's lock for too long."""


def allow(seconds: float) -> None:
    """Limits all further waits of this process together to `seconds`."""
    global _left, _allowed
    _left = _allowed = seconds


def left() -> float:
    """The seconds that the next wait may take."""
    return _WAIT_S if _left is None else _left


def _spend(seconds: float) -> None:
    global _left
    if _left is not None:
        _left = max(0.0, _left - seconds)


def busy(path: str, waited: float) -> LedgerBusy:
    """The error for a wait of `waited` seconds that was not long enough."""
    if not waited or (_left is not None and not _allowed):
        return LedgerBusy(f"the ledger {path} is locked just now")
    from xpu_runtime.linux import lock_holders  # only where something is wrong

    names = lock_holders.of(path, path + ".lock")
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


def failed(path: str, verb: str, error: Exception) -> LedgerError:
    """The error for an OSError, or one of SQLite, with which the ledger could not be opened, read or
    written."""
    reason = getattr(error, "strerror", None) or str(error)
    file = getattr(error, "filename", None)
    if file and not path.startswith(str(file)):  # such as a cgroup, when grants are read from there
        reason = f"{file}: {reason}"
    if is_locked(error):
        return busy(path, left())
    if "malformed" in reason or "not a database" in reason:
        return LedgerError(
            f"the ledger {path} is damaged ({reason})",
            "remove the file: it is made anew from the containers that run, without its events",
        )
    if "full" in reason or "No space" in reason:
        return LedgerError(
            f"cannot {verb} the ledger {path}: {reason}",
            f"free space on the file system of {os.path.dirname(path)}",
        )
    todo = "run it as root" if os.geteuid() else ""
    if "Read-only" in reason or "readonly" in reason:
        todo = f"make the file system of {os.path.dirname(path)} writable"
    elif isinstance(error, FileNotFoundError):
        todo = f"the folder {os.path.dirname(path)} cannot be made: is XPU_RUN_DIR right?"
    return LedgerError(f"cannot {verb} the ledger {path}: {reason}", todo)


class LedgerErrors:
    """A context in which an OSError or an error of SQLite becomes a LedgerError of the ledger at `path`."""

    def __init__(self, path: str, verb: str) -> None:
        self._path = path
        self._verb = verb

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, (OSError, sqlite.Error)):
            raise failed(self._path, self._verb, error) from error


class LedgerRemoved(LedgerError):
    """The open file is no longer the ledger."""


class Transaction:
    """BEGIN IMMEDIATE under the lock file; commits, or on an exception rolls back. LedgerBusy."""

    def __init__(self, db: Any, path: str, inode: int) -> None:
        """Waits for `left()` seconds."""
        self._most = left()
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
        lock = files.Lock(self._path + ".lock", self._most)
        lock.__enter__()
        try:
            # SQLite's own lock is free, unless a program holds it that does not use the lock file.
            remaining = max(0.0, self._most - (time.monotonic() - started))
            self._db.execute(f"PRAGMA busy_timeout = {int(remaining * 1000)}")
            self._db.execute("BEGIN IMMEDIATE")
            self._check_file()
        except BaseException:
            lock.__exit__(None, None, None)
            raise
        self._lock = lock

    def _check_file(self) -> None:
        """LedgerRemoved where the open file is no longer the ledger, so that no other process would see the
        change."""
        try:
            inode = os.stat(self._path).st_ino
        except FileNotFoundError:
            inode = 0
        if inode != self._inode:
            self._db.execute("ROLLBACK")
            raise LedgerRemoved(
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
