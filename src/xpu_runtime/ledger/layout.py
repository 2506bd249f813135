"""The ledger's tables, and their checks at each opening.

A ledger that is missing, empty, or not the file that was made on this boot does not mean that nothing is
granted: it is filled from the containers that run (cgroup_records.py) before a grant can be made from it. Its
process ids are valid in one PID namespace only, so it also records that namespace. Knows SQL and the file;
store.py uses the rows.

A ledger of another layout (this runtime was upgraded, or downgraded, on a running node) is never read: it is
refused while a container that has a grant in it lives, and made anew once none does. For that, every layout
has the table `meta` as it is here, and the columns of `grants` that `check_replaceable` reads.
"""

from __future__ import annotations

import os

from xpu_runtime.ledger import cgroup_records
from xpu_runtime.ledger.grants import Grant, Slice, Use
from xpu_runtime.ledger.sqlite import rows_if_any, sqlite
from xpu_runtime.ledger.waiting import LedgerError
from xpu_runtime.linux import cgroups, proc
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_META = """CREATE TABLE meta (
    boot TEXT NOT NULL, version INTEGER NOT NULL, pid_namespace INTEGER NOT NULL, inode INTEGER NOT NULL)"""
_TABLES = (
    """CREATE TABLE grants (
        id INTEGER PRIMARY KEY AUTOINCREMENT, container_id TEXT NOT NULL, bundle TEXT NOT NULL,
        pid INTEGER NOT NULL, start_time INTEGER NOT NULL, cgroup TEXT NOT NULL,
        state TEXT NOT NULL, mode TEXT NOT NULL, created REAL NOT NULL)""",
    """CREATE TABLE slices (
        grant_id INTEGER NOT NULL REFERENCES grants(id), position INTEGER NOT NULL,
        device_index TEXT NOT NULL, device_uuid TEXT NOT NULL, memory_bytes INTEGER NOT NULL,
        limited INTEGER NOT NULL, cores INTEGER,
        memory_backend TEXT, memory_strength TEXT, cores_backend TEXT, cores_strength TEXT,
        PRIMARY KEY (grant_id, position)) WITHOUT ROWID""",
    "CREATE INDEX by_container ON grants (container_id)",
)
#: The version of these tables.
VERSION = 2

GRANT = "id, container_id, bundle, pid, start_time, cgroup, state, mode, created"
SLICE = (
    "device_index, device_uuid, memory_bytes, limited, cores, "
    "memory_backend, memory_strength, cores_backend, cores_strength"
)


class OtherLayout(LedgerError):
    """The ledger is of this boot, and of another layout."""


class Mark(Value):
    """The identity of a ledger: its boot, its layout, its PID namespace and its file."""

    boot: str
    version: int
    pid_namespace: int
    inode: int


def own_mark(path: str) -> Mark:
    """The mark of a ledger that this process makes at `path`."""
    return Mark(proc.boot_id(), VERSION, proc.pid_namespace(), os.stat(path).st_ino)


def read_mark(db: Any, path: str) -> Mark | None:
    """The mark of the ledger in `db`, None if it has none; OtherLayout if this boot's ledger has another
    layout."""
    try:
        rows = db.execute("SELECT * FROM meta").fetchall()
    except sqlite.OperationalError as error:
        if "no such table" not in str(error):
            raise
        return None
    if rows and rows[0][0] == proc.boot_id() and rows[0][1] != VERSION:
        raise OtherLayout(
            f"the ledger {path} was written by another version of this runtime (layout {rows[0][1]}, "
            f"this one knows {VERSION})",
            "install that version again, or stop all containers that have a slice and remove the file",
        )
    return Mark(*rows[0]) if rows and len(rows[0]) == len(Mark._fields) else None


def check_replaceable(db: Any, error: OtherLayout) -> None:
    """OtherLayout if a container with a grant in the ledger `db`, which is of another layout, lives, or if
    that is not known. `error` is read_mark's."""
    try:
        ((namespace,),) = db.execute("SELECT pid_namespace FROM meta").fetchall()
        rows = db.execute("SELECT container_id, pid, start_time, cgroup FROM grants").fetchall()
    except (sqlite.Error, ValueError):
        raise error from None
    if rows and namespace != proc.pid_namespace():
        raise error
    living = [
        name
        for name, pid, start_time, cgroup in rows
        if proc.is_alive(pid, start_time) or (cgroup and cgroups.has_processes(cgroup))
    ]
    if living:
        names = ", ".join(sorted(proc.printable(str(name))[:12] for name in living))
        raise OtherLayout(
            f"{error.what}, and has the slices of containers that run: {names}",
            "install that version again, or stop these containers: the ledger is then made anew",
        )


def is_current(found: Mark | None, own: Mark, path: str) -> bool:
    """Whether the ledger at `path` can be used as it is, in any PID namespace."""
    if found is None or found.replace(pid_namespace=own.pid_namespace) != own:
        return False
    return _last_made(path) == str(own.inode)


def note_made(path: str, own: Mark) -> None:
    """Records in the lock file which file is the ledger, after it has been made.

    If the ledger is renamed away, another is made, and the first is renamed back, the first knows nothing of
    the grants of the second; the inode in the lock file shows that. Where it cannot be written, every opening
    takes the ledger for an unknown one and fills it again.
    """
    try:
        fd = os.open(path + ".lock", os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, str(own.inode).encode("ascii"))
        finally:
            os.close(fd)
    except OSError:
        pass


def _last_made(path: str) -> str:
    try:
        fd = os.open(path + ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(fd, 32).decode("ascii", "replace")
        finally:
            os.close(fd)
    except OSError:
        return ""


def make(db: Any, path: str, own: Mark) -> None:
    """Turns `db` into a ledger with the mark `own`; within a transaction.

    Grants of this boot stay, and those of running containers that are missing are added.
    """
    found = read_mark(db, path)
    namespace = own.pid_namespace
    if found is None or found.boot != own.boot:
        of_pods = ("reservations", "reserved", "reservation_keys", "of_pods")
        for table in ("slices", "grants", "meta", "counted", *of_pods):
            db.execute(f"DROP TABLE IF EXISTS {table}")
        for statement in (_META, *_TABLES):
            db.execute(statement)
    elif _has_grants(db):
        namespace = found.pid_namespace
    for grant in cgroup_records.running(path, namespace):
        delete(db, grant.id)
        insert(db, grant)
        names, of_pod = cgroup_records.counts_to(grant)
        if names:
            from xpu_runtime.ledger.quotas import count

            count(db, grant, names)
        if of_pod is not None:
            from xpu_runtime.ledger.allocations import belongs

            belongs(db, grant, *of_pod)
    db.execute("DELETE FROM meta")
    mark = own.replace(pid_namespace=namespace)
    db.execute("INSERT INTO meta VALUES (?, ?, ?, ?)", tuple(mark.as_dict().values()))


def granted(db: Any) -> dict[str, Use]:
    """Containers' shares of each device, by UUID; devices without a grant are left out."""
    rows = db.execute(
        "SELECT device_uuid, SUM(memory_bytes), SUM(COALESCE(cores, 0)), COUNT(*), MIN(limited) "
        "FROM slices GROUP BY device_uuid"
    ).fetchall()
    holders: dict[str, tuple[str, int | None]] = {}
    if any(not limited for *_, limited in rows):
        whole = db.execute(
            "SELECT device_uuid, container_id, cores FROM slices JOIN grants ON id = grant_id "
            "WHERE NOT limited"
        )
        holders = {uuid: (container, cores) for uuid, container, cores in whole}
    return {
        uuid: Use(memory, cores, count, not limited, *holders.get(uuid, ()))
        for uuid, memory, cores, count, limited in rows
    }


def has_allocations(db: Any) -> bool:
    """Whether anything is reserved for a pod (allocations.py)."""
    return bool(rows_if_any(db, "SELECT 1 FROM reserved LIMIT 1"))


def _has_grants(db: Any) -> bool:
    return bool(db.execute("SELECT COUNT(*) FROM grants").fetchone()[0])


def load(db: Any, where: str = "", values: tuple[object, ...] = ()) -> list[Grant]:
    """The grants that `where` selects, oldest first."""
    rows = db.execute(f"SELECT {GRANT} FROM grants {where} ORDER BY id", values).fetchall()
    return [Grant(**dict(zip(GRANT.split(", "), row)), slices=_slices(db, row[0])) for row in rows]


def _slices(db: Any, grant: int) -> tuple[Slice, ...]:
    rows = db.execute(f"SELECT {SLICE} FROM slices WHERE grant_id = ? ORDER BY position", (grant,)).fetchall()
    return tuple(Slice.of_row([*r[:3], bool(r[3]), *r[4:]]) for r in rows)


def insert(db: Any, grant: Grant) -> int:
    """Inserts a grant under its number or, where that is 0, a new one; returns the number."""
    fields = grant.as_dict()
    del fields["slices"]
    fields["id"] = grant.id or None
    cursor = db.execute(
        f"INSERT INTO grants ({', '.join(fields)}) VALUES ({', '.join('?' * len(fields))})",
        tuple(fields.values()),
    )
    number = int(cursor.lastrowid)
    for position, slice_ in enumerate(grant.slices):
        db.execute(
            f"INSERT INTO slices (grant_id, position, {SLICE}) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (number, position, *slice_.row()),
        )
    return number


def delete(db: Any, number: int) -> bool:
    """Removes a grant; False if there is none."""
    db.execute("DELETE FROM slices WHERE grant_id = ?", (number,))
    return bool(db.execute("DELETE FROM grants WHERE id = ?", (number,)).rowcount)


def require_own(db: Any, path: str, own: Mark) -> None:
    """LedgerError where the ledger belongs to another PID namespace than this process.

    It cannot be told from here which of its processes have ended, and process ids recorded here would be
    wrong there. A ledger without grants is taken over.
    """
    found = read_mark(db, path)
    if found is not None and found.pid_namespace == own.pid_namespace:
        return
    if _has_grants(db):
        theirs = found.pid_namespace if found else 0
        raise cgroup_records.foreign(f"the ledger {path} belongs to", theirs, own.pid_namespace, path)
    make(db, path, own)
