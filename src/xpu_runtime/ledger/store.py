"""The ledger: the node's record of grants, in one SQLite file, one transaction a grant.

A `kill -9` at any instant leaves either the whole grant or none of it (SQLite's rollback journal). A
power cut ends the boot and with it every container, so a ledger of another boot counts as empty, and
nothing need be flushed to the disk: `synchronous` is off. Writers queue on a lock file, which the
kernel hands over in order and takes back from the dead; SQLite's own locks poll.
"""

from __future__ import annotations

import errno
import os
import time

from xpu_runtime import paths
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.grants import Grant, Holding, Slice, Use
from xpu_runtime.ledger.sqlite import sqlite
from xpu_runtime.linux import cgroups, files, proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

_SCHEMA = (
    "CREATE TABLE meta (boot TEXT NOT NULL, version INTEGER NOT NULL)",
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
_VERSION = 1
_WAIT_S = 60.0

_GRANT = "id, container_id, bundle, pid, start_time, cgroup, state, mode, created"
_SLICE = (
    "device_index, device_uuid, memory_bytes, limited, cores, "
    "memory_backend, memory_strength, cores_backend, cores_strength"
)


class LedgerError(XpuError):
    """The ledger cannot be read or written; nothing is granted then."""

    code = "ledger"


class Ledger:
    """An open ledger. Used as a context manager; one thread."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path or paths.in_run_dir("ledger.db")
        self._db: Any = None

    def __enter__(self) -> Self:
        try:
            folder = os.path.dirname(self.path)
            if not os.path.isdir(folder):
                if os.path.lexists(folder):
                    raise NotADirectoryError(errno.ENOTDIR, f"{folder} is not a directory")
                os.makedirs(folder, mode=0o755, exist_ok=True)
            # The engine's umask must not decide who reads the ledger.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            self._db = sqlite.connect(self.path, timeout=_WAIT_S, isolation_level=None)
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute("PRAGMA journal_mode=TRUNCATE")
            self._prepare()
        except (OSError, sqlite.Error) as error:
            self.close()
            raise self._failed("open", error) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _failed(self, verb: str, error: Exception) -> LedgerError:
        reason = getattr(error, "strerror", None) or str(error)
        if "malformed" in reason or "not a database" in reason:
            return LedgerError(
                f"the ledger {self.path} is damaged ({reason})",
                "stop the containers that use an XPU, remove the file, start them again",
            )
        if "full" in reason or "No space" in reason:
            return LedgerError(
                f"cannot {verb} the ledger {self.path}: {reason}",
                f"free space on the file system of {os.path.dirname(self.path)}",
            )
        return LedgerError(f"cannot {verb} the ledger {self.path}: {reason}")

    def _prepare(self) -> None:
        """Makes the tables where there are none, and forgets another boot's grants."""
        boot = proc.boot_id()
        if self._current(boot):
            return
        with self._transaction():
            if self._current(boot):  # someone else was first
                return
            for table in ("slices", "grants", "meta"):
                self._db.execute(f"DROP TABLE IF EXISTS {table}")
            for statement in _SCHEMA:
                self._db.execute(statement)
            self._db.execute("INSERT INTO meta VALUES (?, ?)", (boot, _VERSION))

    def _current(self, boot: str) -> bool:
        try:
            rows = self._db.execute("SELECT boot, version FROM meta").fetchall()
        except sqlite.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return False
        if rows and rows[0][0] == boot and rows[0][1] > _VERSION:
            raise LedgerError(
                f"the ledger {self.path} is of a newer version (layout {rows[0][1]}, not {_VERSION})",
                "install that version again, or stop the containers and remove the file",
            )
        return bool(rows == [(boot, _VERSION)])

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db, self.path + ".lock")

    def _query(self, statement: str, *values: object) -> list[Any]:
        try:
            rows: list[Any] = self._db.execute(statement, values).fetchall()
        except sqlite.Error as error:
            raise self._failed("read", error) from error
        return rows

    # What is granted.

    def grants(self) -> list[Grant]:
        """Every grant, oldest first."""
        return self._load("", ())

    def of_container(self, container_id: str) -> list[Grant]:
        """The grants of all containers of this id; runtimes with roots of their own may share one."""
        return self._load("WHERE container_id = ?", (container_id,))

    def _load(self, where: str, values: tuple[object, ...]) -> list[Grant]:
        rows = self._query(f"SELECT {_GRANT} FROM grants {where} ORDER BY id", *values)
        return [
            Grant(**dict(zip(_GRANT.split(", "), row, strict=True)), slices=self._slices(row[0]))
            for row in rows
        ]

    def _slices(self, grant: int) -> tuple[Slice, ...]:
        rows = self._query(f"SELECT {_SLICE} FROM slices WHERE grant_id = ? ORDER BY position", grant)
        return tuple(Slice(r[0], r[1], r[2], bool(r[3]), r[4], Holding(*r[5:])) for r in rows)

    def uses(self) -> dict[str, Use]:
        """What is granted of each device that anything is granted of, by UUID."""
        rows = self._query(
            "SELECT device_uuid, SUM(memory_bytes), SUM(COALESCE(cores, 0)), COUNT(*), MIN(limited) "
            "FROM slices GROUP BY device_uuid"
        )
        return {uuid: Use(memory, cores, count, not limited) for uuid, memory, cores, count, limited in rows}

    # What changes it.

    def grant(
        self,
        wanted: Grant,
        choose: Callable[[dict[str, Use]], tuple[Slice, ...] | None],
    ) -> tuple[Grant | None, list[Grant]]:
        """One grant in one transaction: reaps the dead, lets `choose` take of what is free, books it.

        Returns the grant with its id and slices, or None where `choose` returned None (then nothing is
        booked), and the dead grants that were removed, whose quotas are the caller's to clear. A
        container that has a grant already is given the same one again.
        """
        try:
            with self._transaction():
                dead = self._remove_dead(thorough=False)
                earlier = (wanted.container_id, wanted.bundle)
                for grant in self._load("WHERE container_id = ? AND bundle = ?", earlier):
                    if _is_same_start(grant, wanted):
                        return grant, dead
                    if not proc.is_alive(grant.pid, grant.start_time):
                        # Of an earlier life of this container. Its cgroup's path has processes again:
                        # the ones that are being given this new grant.
                        self._delete([grant])
                        dead.append(grant)
                slices = choose(self.uses())
                if slices is None:
                    more = self._remove_dead(thorough=True)
                    dead += more
                    slices = choose(self.uses()) if more else None
                if slices is None:
                    return None, dead
                return self._insert(wanted.replace(slices=slices)), dead
        except (OSError, sqlite.Error) as error:
            raise self._failed("write", error) from error

    def _insert(self, grant: Grant) -> Grant:
        fields = grant.replace(created=time.time()).as_dict()
        del fields["id"], fields["slices"]
        cursor = self._db.execute(
            f"INSERT INTO grants ({', '.join(fields)}) VALUES ({', '.join('?' * len(fields))})",
            tuple(fields.values()),
        )
        number = cursor.lastrowid
        for position, part in enumerate(grant.slices):
            held = part.holding
            self._db.execute(
                f"INSERT INTO slices (grant_id, position, {_SLICE}) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                (number, position, part.device_index, part.device_uuid, part.memory_bytes, part.limited)
                + (
                    part.cores,
                    held.memory_backend,
                    held.memory_strength,
                    held.cores_backend,
                    held.cores_strength,
                ),
            )
        return grant.replace(id=number, created=fields["created"])

    def bind(self, grant: int, *, pid: int, start_time: int, cgroup: str, state: str) -> bool:
        """Binds a grant to the container's process and cgroup; False if there is no such grant."""
        return self._write(
            "UPDATE grants SET pid = ?, start_time = ?, cgroup = ?, state = ? WHERE id = ?",
            pid, start_time, cgroup, state, grant,
        )  # fmt: skip

    def resize(
        self, number: int, choose: Callable[[Grant, dict[str, Use]], dict[int, int]]
    ) -> tuple[Grant | None, list[Grant]]:
        """Changes what slices of grant `number` book of memory, in one transaction, in which the dead are
        reaped too.

        `choose` gets the grant as it is now and what is granted of each device, and returns the new bytes by
        the slice's position. What it does besides happens before the change is booked and while nobody else
        books; if it raises, the ledger stays as it was. Returns the grant as it became (None: it has ended)
        and the dead grants that were removed, whose quotas are the caller's to clear.
        """
        try:
            with self._transaction():
                dead = self._remove_dead(thorough=True)
                found = self._load("WHERE id = ?", (number,))
                if not found:
                    return None, dead
                for position, amount in choose(found[0], self.uses()).items():
                    self._db.execute(
                        "UPDATE slices SET memory_bytes = ? WHERE grant_id = ? AND position = ?",
                        (amount, number, position),
                    )
                return self._load("WHERE id = ?", (number,))[0], dead
        except (OSError, sqlite.Error) as error:
            raise self._failed("write", error) from error

    def _write(self, statement: str, *values: object) -> bool:
        try:
            with self._transaction():
                return bool(self._db.execute(statement, values).rowcount)
        except (OSError, sqlite.Error) as error:
            raise self._failed("write", error) from error

    def release(self, grants: list[Grant]) -> None:
        """Removes grants; those that are gone already are no error."""
        try:
            with self._transaction():
                self._delete(grants)
        except (OSError, sqlite.Error) as error:
            raise self._failed("write", error) from error

    def reap(self) -> list[Grant]:
        """Removes every grant whose container is gone, and returns them."""
        try:
            with self._transaction():
                return self._remove_dead(thorough=True)
        except (OSError, sqlite.Error) as error:
            raise self._failed("write", error) from error

    def _delete(self, grants: list[Grant]) -> None:
        for grant in grants:
            self._db.execute("DELETE FROM slices WHERE grant_id = ?", (grant.id,))
            self._db.execute("DELETE FROM grants WHERE id = ?", (grant.id,))

    def _remove_dead(self, *, thorough: bool) -> list[Grant]:
        """Removes the grants whose process is gone and whose cgroup holds none any more.

        The quick pass asks only whether the process number is in use, which costs nothing at a thousand
        grants; the thorough one, before anything is refused, also sees numbers that were used again.
        """
        dead = []
        for number, pid, start_time, cgroup in self._query("SELECT id, pid, start_time, cgroup FROM grants"):
            alive = proc.is_alive(pid, start_time) if thorough else _in_use(pid)
            if not alive and not (cgroup and cgroups.has_processes(cgroup)):
                dead.append(number)
        found = [grant for number in dead for grant in self._load("WHERE id = ?", (number,))]
        self._delete(found)
        return found


def _is_same_start(grant: Grant, wanted: Grant) -> bool:
    """Whether `grant` was given for the very start of the container that `wanted` is for.

    By the same process, or by spec mode for a runtime that is creating it now (where a hook of the
    engine's own asks besides the one that the shim has put in).
    """
    if (grant.pid, grant.start_time) == (wanted.pid, wanted.start_time):
        return True
    creating = grant.mode == "spec" and grant.state == "pending" and wanted.mode == "hook"
    return creating and proc.is_alive(grant.pid, grant.start_time)


def _in_use(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class _Transaction:
    """BEGIN IMMEDIATE under the lock file; commits, or on an exception rolls back."""

    def __init__(self, db: Any, lock: str) -> None:
        self._db = db
        self._lock = files.Lock(lock)

    def __enter__(self) -> None:
        self._lock.__enter__()
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise

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
                self._lock.__exit__(None, None, None)
