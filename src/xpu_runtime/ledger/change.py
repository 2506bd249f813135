"""A transaction that changes the ledger: it begins with the ends of containers that were entered elsewhere.

So nothing is decided by what containers had that have ended, whoever entered their ends (ends.py): the grants
of these are removed first, in the same transaction. Knows rows and files; what is changed, and why, is
store.py's.
"""

from __future__ import annotations

from xpu_runtime.ledger import ends, events, layout
from xpu_runtime.ledger.waiting import Transaction
from xpu_runtime.linux import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from xpu_runtime.ledger.grants import Grant
    from xpu_runtime.ledger.layout import Mark


class Change(Transaction):
    """As Transaction, on the ledger at `path` that has, or would have, the mark `own`."""

    def __init__(self, db: Any, path: str, own: Mark, most: float | None = None) -> None:
        super().__init__(db, path, own.inode, most)
        self._own = own
        self._taken: list[str] = []
        self._removed: list[Grant] = []

    def __enter__(self) -> None:
        super().__enter__()
        try:
            self._taken = self._take_in()
        except BaseException as error:
            super().__exit__(type(error))
            raise

    def _take_in(self) -> list[str]:
        """Removes the grants whose containers' ends were entered; what these were entered as. In a ledger of
        another PID namespace both are left as they are."""
        entered = ends.entered(self._path)
        mark = layout.read_mark(self._db, self._path) if entered else None
        if mark is None or mark.pid_namespace != self._own.pid_namespace:
            return []
        for name, when in entered:
            for grant in layout.load(self._db, "WHERE id = ?", (name.partition("-")[0],)):
                # Whatever was entered, the slices of a process that lives are its own.
                if grant.name == name and not proc.is_alive(grant.pid, grant.start_time):
                    self.remove([grant], events.RELEASED, ends.time_of(when, grant))
        return [name for name, _ in entered]

    def _committed(self) -> None:
        ends.take_in(self._path, self._taken)
        # Not before: where the disk is full the hook in C enters the end by its note.
        for grant in self._removed:
            ends.forget(grant, self._path)

    def remove(self, grants: Iterable[Grant], kind: str, when: float | None = None) -> None:
        """Removes grants that are there, each with an event of that kind, which happened now or at `when`."""
        for grant in grants:
            if layout.delete(self._db, grant.id):
                events.record(self._db, kind, grant.container_id, grant.slices, when=when)
                self._removed.append(grant)
