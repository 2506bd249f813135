"""SQLite's connection to the ledger's file. A start worker keeps its last one for its next call.

A new connection reads the file's schema and prepares each statement anew; that was a fifth of the time of a
start and an end in a worker. A kept connection holds no lock. It is used again only by the process that has
opened it, as SQLite's must not cross a fork, and only while the same file lies at the path. Knows no table.
"""

from __future__ import annotations

import os

from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.sqlite import sqlite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The process that keeps its last one; 0: none does.
_keeper = 0
#: The kept connection, and the file that it was opened for.
_kept: tuple[Any, tuple[str, int, int]] | None = None


def keep() -> None:
    """Has this process keep its last connection, from now on until it ends."""
    global _keeper
    _keeper = os.getpid()


def connect(path: str) -> Any:
    """A connection to the file at `path`, which is there. OSError, or an error of SQLite."""
    global _kept
    if _kept is not None and _keeper == os.getpid():
        (db, file), _kept = _kept, None
        if file == _file(path):
            db.execute(f"PRAGMA busy_timeout = {int(waiting.left() * 1000)}")
            return db
        db.close()
    db = sqlite.connect(path, timeout=waiting.left(), isolation_level=None)
    db.execute("PRAGMA synchronous=OFF")
    db.execute("PRAGMA journal_mode=TRUNCATE")
    return db


def done(db: Any, path: str, inode: int) -> None:
    """Closes a connection that nothing went wrong with, or keeps it; `inode`: that of the ledger's file."""
    global _kept
    if _keeper == os.getpid() and _kept is None and not db.in_transaction:
        file = _file(path)
        if file is not None and file[-1] == inode:
            _kept = db, file
            return
    db.close()


def _file(path: str) -> tuple[str, int, int] | None:
    try:
        there = os.stat(path)
    except OSError:
        return None
    return path, there.st_dev, there.st_ino
