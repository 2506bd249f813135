"""The history of slices: a table in the ledger's file, of bounded size; the oldest rows go first.

The event of a changed grant is written in the same transaction, so neither exists without the other, even
after a `kill -9`. Marks on devices, refusals, failures and the agent's stricter holds are no rows of the
ledger: their events are written afterwards, and one is missing if the ledger could not be written then. Rows
that go are counted in a second table, so that totals only grow, as a counter has to, and a container's start
pays nothing for them; a third counts how long starts took; a fourth has containers' names, which stay as long
as there is an event of theirs or a grant. They are no part of the ledger's layout: a ledger without them gets
them when they are needed, and an earlier version of this runtime does without. They go with the ledger's
file: at a reboot, where the run folder is on a tmpfs; on a disk they stay, while the grants of another boot
go.
"""

from __future__ import annotations

import time

from xpu_runtime import jsonlite
from xpu_runtime.ledger.sqlite import rows_if_any
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from xpu_runtime.ledger.grants import Slice

#: Rows that are kept: some megabytes, as reasons are rarely long. The oldest beyond that go once in so many
#: events.
MOST = 10_000
TRIMMED_EVERY = 64
_LONGEST_TEXT = 8000
#: runc takes no longer one.
_LONGEST_ID = 1024

_TABLE = """CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL,
    container_id TEXT NOT NULL, devices TEXT NOT NULL, text TEXT NOT NULL)"""
#: With the code "": the number of trimmed events of the kind. With a code: all refusals of that code, which
#: rows of events do not have.
_TOTALS = """CREATE TABLE IF NOT EXISTS event_totals (
    kind TEXT NOT NULL, code TEXT NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (kind, code)) WITHOUT ROWID"""
#: A container's name from the event `since` on; "": not known, or ambiguous. One has several names where it
#: was renamed, or another has had its id.
_NAMES = """CREATE TABLE IF NOT EXISTS container_names (
    container_id TEXT NOT NULL, since INTEGER NOT NULL, name TEXT NOT NULL,
    PRIMARY KEY (container_id, since)) WITHOUT ROWID"""
#: Names that nothing needs any more are looked for once in so many events: with 10,000 that takes 5 ms.
_NAMES_TRIMMED_EVERY = 1024
#: Starts by how long they took: `bucket` is the place of the least bound in BUCKETS_S that is no less.
_STARTS = """CREATE TABLE IF NOT EXISTS start_seconds (
    mode TEXT NOT NULL, bucket INTEGER NOT NULL, number INTEGER NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (mode, bucket)) WITHOUT ROWID"""
#: Up to the longest wait of a start for the ledger; longer ones are counted after the last. A version with
#: other bounds needs a table with another name.
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)

#: The kinds of rows; vocabulary.py has their meanings.
GRANTED, REFUSED, FAILED, RESIZED, RELEASED, REAPED = (
    "granted",
    "refused",
    "failed",
    "resized",
    "released",
    "reaped",
)
DRAINED, UNDRAINED = "drained", "undrained"
#: By an operator, with a mark (`xpu reserve`).
RESERVED, UNRESERVED = "reserved", "unreserved"
#: Beginning and end of a pod's part of this node, for all its containers. An earlier version wrote these with
#: the kinds of marks; such rows have a text that says "pod".
POD_RESERVED, POD_UNRESERVED = "pod-reserved", "pod-unreserved"
#: More strictly, by the agent, and no longer.
HELD, UNHELD = "held", "unheld"


class Part(Value):
    """A device of an event, and the container's share of it from then on (or until then)."""

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
    #: The engine's name of the container when it was granted or refused a slice; "": not known; None: nothing
    #: was written down.
    name: str | None = None
    #: False: a version with another form has written its devices, which are left out.
    is_whole: bool = True


class Starts(Value):
    """How long starts took: how many by bucket (BUCKETS_S, and one for all beyond), and all together."""

    numbers: tuple[int, ...]
    seconds: float


class Totals(Value):
    """How many events there have been: by kind; and refusals by their code, those of older versions not."""

    kinds: dict[str, int]
    refusals: dict[str, int]
    #: By mode.
    starts: dict[str, Starts]


def record(
    db: Any,
    kind: str,
    container_id: str,
    slices: Sequence[Slice | Part] = (),
    text: str = "",
    code: str = "",
    when: float | None = None,
    name: str | None = None,
) -> None:
    """Adds a row, within a transaction. `code`: of a refusal. `when`: the time, if it was not just now.
    `name`: the container's name from now on ("": not known); None: as in its earlier rows."""
    db.execute(_TABLE)
    devices = jsonlite.dumps([_row(each) for each in slices])
    if len(text) > _LONGEST_TEXT:
        text = text[: _LONGEST_TEXT - 1] + "…"
    cursor = db.execute(
        "INSERT INTO events (time, kind, container_id, devices, text) VALUES (?, ?, ?, ?, ?)",
        (time.time() if when is None else when, kind, container_id[:_LONGEST_ID], devices, text),
    )
    if name is not None:
        db.execute(_NAMES)
        db.execute(_NAMED, (container_id[:_LONGEST_ID], cursor.lastrowid, name))
    if code:
        db.execute(_TOTALS)
        db.execute(f"INSERT INTO event_totals (kind, code, number) VALUES (?, ?, 1) {_ADDED}", (kind, code))
    if cursor.lastrowid % TRIMMED_EVERY == 0:
        _trim(db, cursor.lastrowid - MOST)
    if cursor.lastrowid % _NAMES_TRIMMED_EVERY == 0:
        db.execute(_NAMES)
        db.execute(_NAMES_OF_NOBODY)
        db.execute(_NAMES_BEFORE)


def count_start(db: Any, mode: str, seconds: float) -> None:
    """Counts a start, within the transaction that enters its grant as running."""
    db.execute(_STARTS)
    bucket = sum(bound < seconds for bound in BUCKETS_S)
    db.execute(
        "INSERT INTO start_seconds (mode, bucket, number, seconds) VALUES (?, ?, 1, ?) "
        "ON CONFLICT (mode, bucket) DO UPDATE SET number = number + 1, seconds = seconds + excluded.seconds",
        (mode, bucket, seconds),
    )


#: Two containers of different containerd namespaces can have one id. If the name changes while a grant
#: exists, it is ambiguous, and "" is written. An unchanged name is not written again.
_NAMED = """WITH last (name) AS (SELECT coalesce((SELECT name FROM container_names WHERE container_id = ?1
        ORDER BY since DESC LIMIT 1), '')),
    new (name) AS (SELECT CASE WHEN EXISTS (SELECT 1 FROM grants WHERE container_id = ?1) THEN '' ELSE ?3 END)
    INSERT INTO container_names (container_id, since, name) SELECT ?1, ?2, new.name FROM new, last
    WHERE last.name NOT IN (?3, new.name)"""
_NAMES_OF_NOBODY = """DELETE FROM container_names WHERE container_id NOT IN (SELECT container_id FROM events)
    AND container_id NOT IN (SELECT container_id FROM grants)"""
#: Names that a later name replaced before the oldest event.
_NAMES_BEFORE = """DELETE FROM container_names WHERE EXISTS (SELECT 1 FROM container_names AS later
    WHERE later.container_id = container_names.container_id AND later.since > container_names.since
    AND later.since <= (SELECT MIN(id) FROM events))"""
_ADDED = "ON CONFLICT (kind, code) DO UPDATE SET number = number + excluded.number"


def _trim(db: Any, last: int) -> None:
    db.execute(_TOTALS)
    gone = "SELECT kind, '', COUNT(*) FROM events WHERE id <= ? GROUP BY kind"
    db.execute(f"INSERT INTO event_totals (kind, code, number) {gone} {_ADDED}", (last,))
    db.execute("DELETE FROM events WHERE id <= ?", (last,))


def _row(each: Slice | Part) -> list[Any]:
    if isinstance(each, Part):
        return [each.uuid, each.index, each.memory_bytes, each.cores]
    return [each.device_uuid, each.device_index, each.memory_bytes if each.limited else None, each.cores]


def read(db: Any, after: int, since: float, most: int = -1) -> list[Event]:
    """The first `most` rows (-1: all) with a greater number than `after`, not older than `since`."""
    rows = rows_if_any(
        db,
        "SELECT id, time, kind, container_id, devices, text FROM events WHERE id > ? AND time >= ? "
        "ORDER BY id LIMIT ?",
        after,
        since,
        most,
    )
    names: dict[str, list[tuple[int, str]]] = {}
    for container, began, name in rows_if_any(db, _NAMES_OF, rows[0][0], rows[-1][0]) if rows else ():
        names.setdefault(container, []).append((began, name))
    found = []
    last_names: dict[str, str] = {}
    for number, when, kind, container, devices, text in rows:
        parts = _parts(devices)
        later = names.get(container, [])
        while later and later[0][0] <= number:
            last_names[container] = later.pop(0)[1]
        last = last_names.get(container)
        found.append(Event(number, when, kind, container, parts or (), text, last, parts is not None))
    return found


#: The names of the containers of these rows.
_NAMES_OF = """SELECT container_id, since, name FROM container_names WHERE container_id IN
    (SELECT container_id FROM events WHERE id BETWEEN ? AND ?) ORDER BY since"""


def _parts(devices: str) -> tuple[Part, ...] | None:
    """None where they are not as `_row` writes them. A newer version may have added fields at the end."""
    try:
        parts = tuple(Part(*row[: len(Part._fields)]) for row in jsonlite.loads(devices))
    except (ValueError, TypeError, LookupError):
        return None
    names = all(isinstance(part.uuid, str) and isinstance(part.index, str) for part in parts)
    amounts = (amount for part in parts for amount in (part.memory_bytes, part.cores))
    return parts if names and all(each is None or isinstance(each, int) for each in amounts) else None


def read_on(db: Any, last: int, when: float, since: float = 0.0, most: int = -1) -> list[Event]:
    """As `read`, for a reader whose last row had the number `last` (0: none) and the time `when`: only later
    rows. In a ledger that was made anew, where numbers begin again, all rows."""
    if last:
        found = read(db, last - 1, since, most + 1 if most >= 0 else most)
        if found and found[0].id == last and found[0].time == when:
            return found[1:]
        if found and found[0].id > last:
            return found[: most if most >= 0 else None]  # so many have come that the last one is gone
    return read(db, 0, since, most)


def totals(db: Any) -> Totals:
    """How many there have been since the ledger was made."""
    kinds: dict[str, int] = {}
    refusals: dict[str, int] = {}
    for kind, code, number in rows_if_any(db, "SELECT kind, code, number FROM event_totals") + rows_if_any(
        db, "SELECT kind, '', COUNT(*) FROM events GROUP BY kind"
    ):
        if code:
            refusals[code] = number
        else:
            kinds[kind] = kinds.get(kind, 0) + number
    return Totals(kinds, refusals, _starts(db))


def _starts(db: Any) -> dict[str, Starts]:
    found: dict[str, Starts] = {}
    for mode, bucket, number, seconds in rows_if_any(
        db, "SELECT mode, bucket, number, seconds FROM start_seconds"
    ):
        earlier = found.get(mode, Starts((0,) * (len(BUCKETS_S) + 1), 0.0))
        numbers = [*earlier.numbers[:bucket], number, *earlier.numbers[bucket + 1 :]]
        found[mode] = Starts(tuple(numbers), earlier.seconds + seconds)
    return found
