"""The ledger: the node's record of grants, in one SQLite file, one transaction a grant.

A `kill -9` at any instant leaves either the whole grant or none of it (SQLite's rollback journal). A power
cut ends the boot and with it every container, so a ledger of another boot counts as empty, and nothing has to
be flushed to the disk: `synchronous` is off. Writers queue on a lock file, which the kernel serves in order
and frees when its holder dies; SQLite's own locks poll. Every wait is bounded (waiting.py), and a ledger that
has vanished is made anew from the running containers (layout.py). Knows no device and no driver: the caller
passes a function that decides whether a request fits.
"""

from __future__ import annotations

import errno
import os
import time

from xpu_runtime import paths
from xpu_runtime.ledger import cgroup_records, database, events, layout, waiting
from xpu_runtime.ledger.grants import CORES, MEMORY, Grant, Slice, Use
from xpu_runtime.ledger.sqlite import sqlite
from xpu_runtime.ledger.waiting import LedgerError, LedgerErrors, Transaction
from xpu_runtime.linux import cgroups, proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from typing_extensions import Self


#: Where the value of a limit is booked, by its kind.
_COLUMNS = {MEMORY: "memory_bytes", CORES: "cores"}


class Ledger:
    """An open ledger. Used as a context manager; one thread.

    It is made if there is none of this boot. With `as_is` it is neither made nor made anew, for callers that
    only inspect it: OtherLayout, or LedgerError, if a start would not use it.
    """

    def __init__(self, path: str | None = None, *, as_is: bool = False) -> None:
        self.path = path or paths.in_run_dir("ledger.db")
        self._as_is = as_is
        self._db: Any = None
        self._own: layout.Mark

    def __enter__(self) -> Self:
        try:
            folder = os.path.dirname(self.path)
            if not self._as_is and not os.path.isdir(folder):
                if os.path.lexists(folder):
                    raise NotADirectoryError(errno.ENOTDIR, f"{folder} is not a directory")
                os.makedirs(folder, mode=0o755, exist_ok=True)
            self._open()
            self._prepare()
        except (OSError, sqlite.Error) as error:
            failed = waiting.failed(self.path, "open", error)
            self.close()
            raise failed from error
        except LedgerError:
            self.close()
            raise
        return self

    def _open(self) -> None:
        # The engine's umask must not decide about read access to the ledger.
        create = 0 if self._as_is else os.O_CREAT
        os.close(os.open(self.path, os.O_RDWR | create | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self._own = layout.own_mark(self.path)
        self._db = database.connect(self.path)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._db is not None:
            db, self._db = self._db, None
            database.done(db, self.path, self._own.inode)
        self.close()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _prepare(self) -> None:
        """Makes the ledger from the running containers, if there is none of this boot, or one of another
        layout without a living container."""
        if self._as_is:
            if not self._is_current():
                raise LedgerError(
                    f"the ledger {self.path} is not of this boot", "the next start makes it anew"
                )
            return
        try:
            current = self._is_current()
        except layout.OtherLayout as error:
            self._remove_other(error)
            current = False
        if current:
            return
        with self._transaction():
            if self._is_current():  # another process was first
                return
            layout.make(self._db, self.path, self._own)
        layout.note_made(self.path, self._own)

    def _remove_other(self, error: layout.OtherLayout) -> None:
        """Removes the file, of another layout, and opens a new one; LedgerError where a grant in it lives.

        A new file: processes that have the old one open, maybe of the other version, notice
        (waiting.Transaction).
        """
        try:
            with self._transaction():
                layout.check_replaceable(self._db, error)
                os.unlink(self.path)
        except waiting.LedgerRemoved:
            pass  # another process was first
        self.close()
        self._open()

    def _is_current(self) -> bool:
        return layout.is_current(layout.read_mark(self._db, self.path), self._own, self.path)

    def is_own(self) -> bool:
        """Whether the ledger belongs to the PID namespace of this process."""
        with LedgerErrors(self.path, "read"):
            mark = layout.read_mark(self._db, self.path)
        return mark is not None and mark.pid_namespace == self._own.pid_namespace

    def require_own(self) -> None:
        """LedgerError if the ledger has grants and belongs to another PID namespace."""
        with LedgerErrors(self.path, "write"), self._transaction():
            self._require_own()

    def _require_own(self) -> None:
        layout.require_own(self._db, self.path, self._own)

    def _transaction(self) -> Transaction:
        return Transaction(self._db, self.path, self._own.inode)

    def _query(self, statement: str, *values: object) -> list[Any]:
        with LedgerErrors(self.path, "read"):
            rows: list[Any] = self._db.execute(statement, values).fetchall()
        return rows

    # Reading

    def grants(self) -> list[Grant]:
        """Every grant, oldest first."""
        return self._load("", ())

    def of_container(self, container_id: str) -> list[Grant]:
        """The grants of all containers with this id; runtimes with different --root may use one twice."""
        return self._load("WHERE container_id = ?", (container_id,))

    def _load(self, where: str, values: tuple[object, ...]) -> list[Grant]:
        with LedgerErrors(self.path, "read"):
            return layout.load(self._db, where, values)

    def uses(self) -> dict[str, Use]:
        """Grants and reservations of pods by device UUID; devices without either are left out."""
        with LedgerErrors(self.path, "read"):
            found = layout.granted(self._db)
            if layout.has_allocations(self._db):
                from xpu_runtime.ledger import allocations  # few nodes have any

                found = allocations.add(self._db, found)
            return found

    def counted(self, quota: str) -> Use:
        """The grants' sum that counts to a quota; a slice without a cap on cores counts 100 %."""
        from xpu_runtime.ledger.quotas import used

        with LedgerErrors(self.path, "read"):
            return used(self._db, quota)

    def quotas_of(self, grant: Grant) -> list[str]:
        from xpu_runtime.ledger.quotas import names_of

        with LedgerErrors(self.path, "read"):
            return names_of(self._db, grant)

    def history(
        self, last: int = 0, when: float = 0.0, since: float = 0.0, most: int = -1
    ) -> list[events.Event]:
        """The events after that with number `last` and time `when`, as events.read_on has it: the first
        `most` (-1: all) that are not older than `since`."""
        with LedgerErrors(self.path, "read"):
            return events.read_on(self._db, last, when, since, most)

    def totals(self) -> events.Totals:
        """How many events there have been."""
        with LedgerErrors(self.path, "read"):
            self._db.execute("BEGIN")  # rows are not to go between the two looks
            try:
                return events.totals(self._db)
            finally:
                self._db.execute("COMMIT")

    # Changing

    def note(
        self,
        kind: str,
        container_id: str,
        devices: Sequence[events.Part] = (),
        text: str = "",
        code: str = "",
        when: float | None = None,
        name: str | None = None,
    ) -> None:
        """Records an event that changes no grant; `when`: where it was not just now; `name`: as of
        events.record."""
        with LedgerErrors(self.path, "write"), self._transaction():
            events.record(self._db, kind, container_id, devices, text, code, when, name)

    def grant(
        self,
        wanted: Grant,
        choose: Callable[[dict[str, Use]], tuple[Slice, ...] | None],
        quotas: Sequence[str] = (),
        of_pod: tuple[str, str] | None = None,
        name: str = "",
    ) -> tuple[Grant | None, list[Grant]]:
        """One grant in one transaction: reaps dead grants, lets `choose` pick slices, books them.

        Returns the grant with its id and slices, or None if `choose` returned None (then nothing is booked),
        and the dead grants that were removed, whose limits the caller must lift. A container that has a grant
        already gets the same one again. A new one counts to `quotas`, and belongs to `of_pod`, (UID,
        container's name). `name`: the engine's name of the container, "" if not known.
        """
        with LedgerErrors(self.path, "write"), self._transaction():
            self._require_own()
            dead = self._remove_dead(thorough=False)
            earlier = (wanted.container_id, wanted.bundle)
            for grant in self._load("WHERE container_id = ? AND bundle = ?", earlier):
                if _is_same_start(grant, wanted):
                    return grant, dead
                if not proc.is_alive(grant.pid, grant.start_time):
                    # An earlier run of this container had it. The processes in its cgroup now are those of
                    # this new grant.
                    cgroup_records.forget(grant)
                    self._delete([grant], events.REAPED)
                    dead.append(grant)
            if of_pod is not None:
                dead += self._end_unstarted(wanted, of_pod)
            slices = choose(self.uses())
            if slices is None:
                more = self._remove_dead(thorough=True)
                dead += more
                slices = choose(self.uses()) if more else None
            if slices is None:
                return None, dead
            granted = self._insert(wanted.replace(slices=slices), name)
            if quotas:
                from xpu_runtime.ledger.quotas import count

                count(self._db, granted, quotas)
            if of_pod is not None:
                from xpu_runtime.ledger.allocations import belongs

                belongs(self._db, granted, *of_pod)
            return granted, dead

    def _end_unstarted(self, wanted: Grant, of_pod: tuple[str, str]) -> list[Grant]:
        """Ends and removes earlier lives of a pod's container that were created and never started.

        If containerd is restarted between create and start, it forgets the container, whose process waits for
        ever with the slice. The kubelet runs one life of a container at a time: the next one needs the place.
        """
        from xpu_runtime.ledger.allocations import pods_of_grants

        numbers = [number for number, of in pods_of_grants(self._db).items() if of == of_pod]
        found = []
        for number in numbers:
            for grant in self._load("WHERE id = ?", (number,)):
                if grant.container_id != wanted.container_id and proc.awaits_start(grant.pid):
                    proc.kill(grant.pid, grant.start_time)
                    cgroup_records.forget(grant)
                    found.append(grant)
        self._delete(found, events.REAPED)
        return found

    def _insert(self, grant: Grant, name: str) -> Grant:
        now = grant.replace(created=time.time())
        events.record(self._db, events.GRANTED, now.container_id, now.slices, name=name)
        return now.replace(id=layout.insert(self._db, now.replace(id=0)))

    def bind(self, grant: Grant, began: float | None = None) -> bool:
        """Binds a grant to the container's process and cgroup; False if there is no such grant. Counts the
        time since the start `began` (time.monotonic), if given."""
        values = (grant.pid, grant.start_time, grant.cgroup, grant.state, grant.id, grant.container_id)
        with LedgerErrors(self.path, "write"), self._transaction():
            self._require_own()
            # By the container's id too: in a ledger that was made anew the number may be another grant's.
            done = self._db.execute(
                "UPDATE grants SET pid = ?, start_time = ?, cgroup = ?, state = ? "
                "WHERE id = ? AND container_id = ?",
                values,
            )
            if done.rowcount and began is not None:
                events.count_start(self._db, grant.mode, time.monotonic() - began)
            return bool(done.rowcount)

    def hold(self, grant: Grant) -> None:
        """Records the backends of a grant's slices, if they were chosen again."""
        with LedgerErrors(self.path, "write"), self._transaction():
            self._require_own()
            for position, slice_ in enumerate(grant.slices):
                holding = slice_.holding.as_dict()
                self._db.execute(
                    f"UPDATE slices SET {' = ?, '.join(holding)} = ? WHERE grant_id = ? AND position = ?",
                    (*holding.values(), grant.id, position),
                )

    def resize(
        self,
        number: int,
        choose: Callable[[Grant, dict[str, Use]], dict[tuple[int, str], int]],
        text: str = "",
    ) -> tuple[Grant | None, list[Grant]]:
        """Changes the booked amounts of the slices of grant `number`, in one transaction that also reaps dead
        grants.

        `choose` gets the present grant and the grants of each device, and returns the new values by the
        slice's position and the limit's kind. It must not call a driver or another program, as the ledger is
        locked; if it raises, the ledger stays as it was. With `text` an event is written, even if no booked
        amount changes. Returns the changed grant (None: it has ended) and the dead grants that were removed,
        whose limits the caller must lift.
        """
        with LedgerErrors(self.path, "write"), self._transaction():
            self._require_own()
            dead = self._remove_dead(thorough=True)
            found = self._load("WHERE id = ?", (number,))
            if not found:
                return None, dead
            uses = self.uses()
            if any(use.reserved_memory or use.reserved_cores for use in uses.values()):
                from xpu_runtime.ledger import allocations

                uses = allocations.for_change(self._db, found[0], uses)
            changes = choose(found[0], uses)
            for (position, kind), value in changes.items():
                self._db.execute(
                    f"UPDATE slices SET {_COLUMNS[kind]} = ? WHERE grant_id = ? AND position = ?",
                    (value, number, position),
                )
            after = self._load("WHERE id = ?", (number,))[0]
            if text or after != found[0]:
                events.record(self._db, events.RESIZED, after.container_id, after.slices, text)
            return after, dead

    def release(self, grants: list[Grant]) -> None:
        """Removes grants; no error for those that are gone already."""
        with LedgerErrors(self.path, "write"), self._transaction():
            self._delete(grants, events.RELEASED)

    def reap(self) -> list[Grant]:
        """Removes every grant whose container is gone, and returns them."""
        with LedgerErrors(self.path, "write"), self._transaction():
            self._require_own()
            return self._remove_dead(thorough=True)

    def _delete(self, grants: list[Grant], kind: str) -> None:
        for grant in grants:
            if layout.delete(self._db, grant.id):
                events.record(self._db, kind, grant.container_id, grant.slices)

    def _remove_dead(self, *, thorough: bool) -> list[Grant]:
        """Removes the grants whose process has ended and whose cgroup is empty.

        The quick pass only checks whether the process id is in use, which is cheap even for a thousand
        grants; the thorough one, made before a request is refused, also recognises ids that were reused.
        """
        dead = []
        for number, pid, start_time, cgroup in self._query("SELECT id, pid, start_time, cgroup FROM grants"):
            alive = proc.is_alive(pid, start_time) if thorough else proc.exists(pid)
            if not alive and not (cgroup and cgroups.has_processes(cgroup)):
                dead.append(number)
        found = [grant for number in dead for grant in self._load("WHERE id = ?", (number,))]
        for grant in found:
            if grant.cgroup:  # it may be left over, or made again for the container's next run
                cgroup_records.forget(grant)
        self._delete(found, events.REAPED)
        return found


def _is_same_start(grant: Grant, wanted: Grant) -> bool:
    """Whether `grant` was made for the same start of the container as `wanted`.

    It was, if the process is the same, or if it is spec mode's grant of a container that is being created
    now: an engine's own hook may ask for it again, besides the hook that the shim has injected.
    """
    if (grant.pid, grant.start_time) == (wanted.pid, wanted.start_time):
        return True
    creating = grant.mode == "spec" and grant.state == "pending" and wanted.mode == "hook"
    return creating and proc.is_alive(grant.pid, grant.start_time)
