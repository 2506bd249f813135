"""What has happened to slices: a table in the ledger's file, of bounded size, the oldest rows first to go.

A row is written in the transaction of what it tells of: neither is there without the other, whatever is
killed. The table is no part of the ledger's layout: a ledger without it gets it with the first event, and an
earlier version of this runtime leaves it alone. It goes with the ledger, at a reboot.
"""

from __future__ import annotations

import time

from xpu_runtime import jsonlite
from xpu_runtime.ledger.sqlite import sqlite
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from xpu_runtime.ledger.grants import Slice

#: Rows that are kept: some megabytes.
MOST = 10_000
_LONGEST_TEXT = 2000

_TABLE = """CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL,
    container_id TEXT NOT NULL, devices TEXT NOT NULL, text TEXT NOT NULL)"""

#: What a row can tell of.
GRANTED, REFUSED, FAILED, RESIZED, RELEASED, REAPED = (
    "granted",
    "refused",
    "failed",
    "resized",
    "released",
    "reaped",
)
DRAINED, UNDRAINED = "drained", "undrained"
RESERVED, UNRESERVED = "reserved", "unreserved"


class Part(Value):
    """A device that an event is about, and what the container had of it from then on (or until then)."""

    uuid: str
    #: As the inventory had it then.
    index: str = ""
    #: In bytes; None: all of it, or not said.
    memory_bytes: int | None = None
    #: In percent; None: no cap, or not said.
    cores: int | None = None


class Event(Value):
    """One thing that happened. `time` in seconds since the epoch; `text` says why, for people."""

    id: int
    time: float
    kind: str
    #: "": of no container.
    container_id: str
    devices: tuple[Part, ...]
    text: str


def record(
    db: Any, kind: str, container_id: str, slices: Sequence[Slice | Part] = (), text: str = ""
) -> None:
    """Adds a row, within a transaction."""
    db.execute(_TABLE)
    devices = jsonlite.dumps([_row(each) for each in slices])
    cursor = db.execute(
        "INSERT INTO events (time, kind, container_id, devices, text) VALUES (?, ?, ?, ?, ?)",
        (time.time(), kind, container_id, devices, text[:_LONGEST_TEXT]),
    )
    db.execute("DELETE FROM events WHERE id <= ?", (cursor.lastrowid - MOST,))


def _row(each: Slice | Part) -> list[Any]:
    if isinstance(each, Part):
        return [each.uuid, each.index, each.memory_bytes, each.cores]
    return [each.device_uuid, each.device_index, each.memory_bytes if each.limited else None, each.cores]


def read(db: Any, after: int, since: float) -> list[Event]:
    """The rows with a greater number than `after`, not older than `since`, in their order."""
    try:
        rows = db.execute(
            "SELECT id, time, kind, container_id, devices, text FROM events WHERE id > ? AND time >= ? "
            "ORDER BY id",
            (after, since),
        ).fetchall()
    except sqlite.OperationalError as error:
        if "no such table" not in str(error):
            raise
        return []
    return [
        Event(number, when, kind, container, tuple(Part(*part) for part in jsonlite.loads(devices)), text)
        for number, when, kind, container, devices, text in rows
    ]
