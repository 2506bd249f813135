"""Quotas: the grants that count to each, and whether a new one fits.

A table in the ledger's file beside its layout, as events are: a ledger without it gets it with the first
grant that counts, and an earlier version of this runtime leaves it alone. A grant of that version does not
count; the row of a grant that it removes stays in the table without effect: a row is valid as long as its
grant exists.
"""

from __future__ import annotations

from xpu_runtime.ledger.grants import Slice, Use
from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.ledger.sqlite import rows_if_any
from xpu_runtime.request.units import show, show_apart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from xpu_runtime.ledger.grants import Grant
    from xpu_runtime.request.quotas import Quota

# The key's columns come first: SQLite 3.40 reports a table with others between them as damaged (PRAGMA
# quick_check). The container's id is recorded too, because numbers of grants begin again in a ledger that
# another version has made anew.
_TABLE = """CREATE TABLE IF NOT EXISTS counted (
    grant_id INTEGER NOT NULL, quota TEXT NOT NULL, container_id TEXT NOT NULL,
    PRIMARY KEY (grant_id, quota)) WITHOUT ROWID"""

_USED = """SELECT COALESCE(SUM(memory_bytes), 0), COALESCE(SUM(COALESCE(cores, 100)), 0), COUNT(*)
    FROM counted JOIN grants ON grants.id = counted.grant_id AND grants.container_id = counted.container_id
    JOIN slices ON slices.grant_id = grants.id WHERE quota = ?"""


def count(db: Any, grant: Grant, names: Sequence[str]) -> None:
    """Has the grant count to these quotas, within its transaction."""
    db.execute(_TABLE)
    db.execute(
        "DELETE FROM counted WHERE grant_id = ? OR grant_id NOT IN (SELECT id FROM grants)", (grant.id,)
    )
    for name in dict.fromkeys(names):
        db.execute(
            "INSERT INTO counted (grant_id, quota, container_id) VALUES (?, ?, ?)",
            (grant.id, name, grant.container_id),
        )


def used(db: Any, name: str) -> Use:
    """The grants' sum that counts to a quota."""
    rows = rows_if_any(db, _USED, name)
    return Use(*rows[0]) if rows else Use()


def names_of(db: Any, grant: Grant) -> list[str]:
    """The quotas that a grant counts to; one of them may not be in the configuration any more."""
    statement = "SELECT quota FROM counted WHERE grant_id = ? AND container_id = ? ORDER BY quota"
    return [name for (name,) in rows_if_any(db, statement, grant.id, grant.container_id)]


def over(quotas: Sequence[Quota], slices: Sequence[Slice], used_of: Callable[[str], Use]) -> Refusal | None:
    """Why these slices exceed a quota, `used_of` being the granted sums; None: they fit."""
    found = []
    for quota in quotas:
        lacks = _lacks(quota, slices, used_of(quota.name))
        if lacks:
            found.append(f"quota {quota.name} ({quota.who}): {' and '.join(lacks)}")
    return Refusal("over-quota", "; ".join(found)) if found else None


def _lacks(quota: Quota, slices: Sequence[Slice], now: Use) -> list[str]:
    found = []
    if quota.max_slices is not None and now.slices + len(slices) > quota.max_slices:
        left = max(quota.max_slices - now.slices, 0)
        found.append(f"{left} of {quota.max_slices} slices left, {len(slices)} requested")
    memory = sum(slice_.memory_bytes for slice_ in slices)
    if quota.max_memory is not None and now.memory_bytes + memory > quota.max_memory:
        left_text, asked = show_apart(max(quota.max_memory - now.memory_bytes, 0), memory, "")
        found.append(f"{left_text} of {show(quota.max_memory)} of memory left, {asked} requested")
    cores = sum(100 if slice_.cores is None else slice_.cores for slice_ in slices)
    if quota.max_cores is not None and now.cores + cores > quota.max_cores:
        left = max(quota.max_cores - now.cores, 0)
        why = " (no XPU_CORES is 100%)" if any(slice_.cores is None for slice_ in slices) else ""
        found.append(f"{left}% of {quota.max_cores}% of cores left, {cores}% requested{why}")
    return found


def granted(quota: Quota, now: Use) -> str:
    """The granted part of a quota, for people."""
    parts = []
    if quota.max_slices is not None:
        parts.append(f"{now.slices} of {quota.max_slices} slices")
    if quota.max_memory is not None:
        parts.append(f"{show(now.memory_bytes)} of {show(quota.max_memory)} of memory")
    if quota.max_cores is not None:
        parts.append(f"{now.cores}% of {quota.max_cores}% of cores")
    return f"{quota.name} ({quota.who}): {', '.join(parts)} granted"
