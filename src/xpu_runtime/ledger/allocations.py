"""Allocations: the shares of pods on this node, whether or not their containers run.

Of each device a pod holds the larger of its allocation and of its containers' slices (memory and cores each
on its own). So the end of a container changes nothing here, its next start finds its place, and a `kill -9`
leaves a correct state. Tables in the ledger's file beside its layout, as quotas and events are: a ledger
without them gets them with the first allocation, and one that was made anew has none until they are entered
again. Knows no device and no Kubernetes.
"""

from __future__ import annotations

from xpu_runtime import jsonlite
from xpu_runtime.ledger import events
from xpu_runtime.ledger.grants import Use
from xpu_runtime.ledger.sqlite import rows_if_any
from xpu_runtime.request.amounts import Amount, of_shares
from xpu_runtime.request.assignment import Assignment, Share, of_plain, plain
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from xpu_runtime.ledger.grants import Grant

    Shares = dict[str, tuple[Share, ...]]

_TABLES = (
    """CREATE TABLE IF NOT EXISTS reservations (
    uid TEXT NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL, made REAL NOT NULL,
    containers TEXT NOT NULL, PRIMARY KEY (uid)) WITHOUT ROWID""",
    # For each device the most that is reserved at one time, so that a start adds up few rows.
    """CREATE TABLE IF NOT EXISTS reserved (
    uid TEXT NOT NULL, device_uuid TEXT NOT NULL, device_index TEXT NOT NULL, memory_bytes INTEGER NOT NULL,
    cores INTEGER NOT NULL, whole INTEGER NOT NULL, PRIMARY KEY (uid, device_uuid)) WITHOUT ROWID""",
    # The keys of reservations by a signed assignment.
    """CREATE TABLE IF NOT EXISTS reservation_keys (
    uid TEXT NOT NULL, key_id TEXT NOT NULL, PRIMARY KEY (uid)) WITHOUT ROWID""",
)
#: The grants of pods' containers. The container's id is recorded too, because numbers of grants begin again
#: in a ledger that another version has made anew.
_OF_PODS = """CREATE TABLE IF NOT EXISTS of_pods (
    grant_id INTEGER NOT NULL, container_id TEXT NOT NULL, uid TEXT NOT NULL, container TEXT NOT NULL,
    PRIMARY KEY (grant_id)) WITHOUT ROWID"""


_RUNNING = """SELECT uid, device_uuid, SUM(memory_bytes), SUM(COALESCE(cores, 0)), COUNT(*), MIN(limited),
    MAX(grants.container_id) FROM of_pods JOIN grants ON grants.id = of_pods.grant_id
    AND grants.container_id = of_pods.container_id JOIN slices ON slices.grant_id = grants.id"""


class Allocation(Value):
    """The shares reserved for a pod's containers, by container name; `made` in seconds since the epoch.

    `init`, `sidecars` and shares: as in request.assignment.Assignment.
    """

    uid: str
    namespace: str
    pod: str
    #: The time of the decision: a later one replaces it.
    made: float
    containers: Shares
    init: Shares = {}
    sidecars: Shares = {}
    #: The id of the key that has signed the assignment which it was made by; "": of none, or by an earlier
    #: version, which did not keep it.
    key_id: str = ""

    def says_same(self, other: Allocation) -> bool:
        """Whether it reserves the same for the same pod; the keys of the two signatures may differ."""
        return self.replace(key_id="") == other.replace(key_id="")

    @property
    def key(self) -> tuple[str, str, str]:
        """Which pod it is: UID, namespace and name."""
        return self.uid, self.namespace, self.pod

    @property
    def label(self) -> str:
        """How messages name the pod."""
        return f"pod {self.namespace}/{self.pod}"

    def of(self, container: str) -> tuple[Share, ...]:
        """The shares of the container of that name; none if it is not named."""
        for group in (self.containers, self.init, self.sidecars):
            if container in group:
                return group[container]
        return ()

    def amounts(self) -> dict[str, Amount]:
        """The most that the pod can have of each device at one time, by UUID."""
        return of_shares(self.containers, self.init, self.sidecars)


def of_assignment(assignment: Assignment, namespace: str, pod: str, key_id: str) -> Allocation:
    """The allocation that an assignment, which was verified by this key, means for the pod of this name."""
    return Allocation(
        assignment.uid,
        namespace,
        pod,
        assignment.made,
        assignment.containers,
        assignment.init,
        assignment.sidecars,
        key_id,
    )


def every(db: Any, uid: str | None = None) -> list[Allocation]:
    """The allocations (of pod `uid` alone), by the pods' names."""
    where, wanted = ("", ()) if uid is None else ("WHERE uid = ?", (uid,))
    statement = f"SELECT uid, namespace, pod, made, containers FROM reservations {where} ORDER BY 2, 3, 1"
    rows = rows_if_any(db, statement, *wanted)
    keys = dict(rows_if_any(db, f"SELECT uid, key_id FROM reservation_keys {where}", *wanted)) if rows else {}
    found = []
    for uid, namespace, pod, made, groups in rows:
        containers, init, sidecars = map(of_plain, jsonlite.loads(groups))
        key_id = keys.get(uid, "")
        found.append(Allocation(uid, namespace, pod, made, containers, init, sidecars, key_id))
    return found


def enter(db: Any, allocation: Allocation, indexes: Mapping[str, str]) -> None:
    """Enters an allocation, in the place of an earlier one of the pod; within a transaction. `indexes`: of
    devices by UUID, for people."""
    before = next(iter(every(db, allocation.uid)), None)
    _forget(db, allocation.uid)
    groups = [plain(group) for group in (allocation.containers, allocation.init, allocation.sidecars)]
    row = (allocation.uid, allocation.namespace, allocation.pod, allocation.made, jsonlite.dumps(groups))
    db.execute("INSERT INTO reservations (uid, namespace, pod, made, containers) VALUES (?,?,?,?,?)", row)
    if allocation.key_id:
        db.execute("INSERT INTO reservation_keys VALUES (?, ?)", (allocation.uid, allocation.key_id))
    for uuid, amount in allocation.amounts().items():
        db.execute(
            "INSERT INTO reserved (uid, device_uuid, device_index, memory_bytes, cores, whole) "
            "VALUES (?,?,?,?,?,?)",
            (
                allocation.uid,
                uuid,
                indexes.get(uuid, ""),
                amount.memory_bytes,
                amount.cores,
                amount.whole,
            ),
        )
    if before is None or not before.says_same(allocation):
        events.record(db, events.POD_RESERVED, "", _parts(db, allocation.uid), f"for {allocation.label}")


def _forget(db: Any, uid: str) -> None:
    for statement in _TABLES:
        db.execute(statement)
    for table in ("reservations", "reserved", "reservation_keys"):
        db.execute(f"DELETE FROM {table} WHERE uid = ?", (uid,))


def remove(db: Any, uids: Iterable[str]) -> list[Allocation]:
    """Removes the allocations of these pods, and returns them; no error for those that are gone already."""
    removed = [each for uid in dict.fromkeys(uids) for each in every(db, uid)]
    for allocation in removed:
        parts = _parts(db, allocation.uid)
        _forget(db, allocation.uid)
        events.record(db, events.POD_UNRESERVED, "", parts, f"was for {allocation.label}")
    return removed


def _parts(db: Any, uid: str) -> list[events.Part]:
    rows = rows_if_any(
        db,
        "SELECT device_uuid, device_index, memory_bytes, cores, whole FROM reserved WHERE uid = ? "
        "ORDER BY device_index, device_uuid",
        uid,
    )
    return [
        events.Part(uuid, index, None if whole else memory, cores or None)
        for uuid, index, memory, cores, whole in rows
    ]


def belongs(db: Any, grant: Grant, uid: str, container: str) -> None:
    """Records that a grant is that of a pod's container, within its transaction."""
    db.execute(_OF_PODS)
    db.execute(
        "DELETE FROM of_pods WHERE grant_id = ? OR grant_id NOT IN (SELECT id FROM grants)", (grant.id,)
    )
    db.execute(
        "INSERT INTO of_pods (grant_id, container_id, uid, container) VALUES (?,?,?,?)",
        (grant.id, grant.container_id, uid, container),
    )


def pods_of_grants(db: Any) -> dict[int, tuple[str, str]]:
    """(UID, container's name) of each grant that is a pod's container's, by the grant's number."""
    statement = """SELECT grant_id, uid, container FROM of_pods JOIN grants
        ON grants.id = of_pods.grant_id AND grants.container_id = of_pods.container_id"""
    return {number: (uid, container) for number, uid, container in rows_if_any(db, statement)}


def running(db: Any, uid: str) -> dict[str, Use]:
    """The slices of one pod's containers, by device."""
    rows = rows_if_any(db, f"{_RUNNING} WHERE uid = ? GROUP BY uid, device_uuid", uid)
    return {
        uuid: Use(memory, cores, count, not limited, "" if limited else holder)
        for _, uuid, memory, cores, count, limited, holder in rows
    }


def add(db: Any, uses: Mapping[str, Use], without: str = "") -> dict[str, Use]:
    """`uses` (containers' slices, by UUID) plus reservations beyond them; `without` leaves out a pod, its
    reservation and its containers' slices."""
    found = dict(uses)
    if without:
        for uuid, own in running(db, without).items():
            found[uuid] = _less(found[uuid], own)
    for uid, each in _unused(db):
        if uid == without:
            continue
        now = found.get(each.device_uuid, Use())
        now = now.replace(
            memory_bytes=now.memory_bytes + each.memory_bytes,
            cores=now.cores + each.cores,
            slices=now.slices + each.idle,
            reserved_memory=now.reserved_memory + each.memory_bytes,
            reserved_cores=now.reserved_cores + each.cores,
        )
        if each.whole and not now.exclusive:
            now = now.replace(exclusive=True, holder_pod=each.pod)
        found[each.device_uuid] = now
    return found


class Reserved(Value):
    """The part of a device that is reserved for a pod beyond its containers' slices; `whole`: all of the
    device is reserved, though none of them has all of it."""

    #: NAMESPACE/NAME.
    pod: str
    #: Its index at the time of the reservation; "" if it was not known.
    device_index: str
    device_uuid: str
    memory_bytes: int
    cores: int
    whole: bool
    #: No container of the pod has any of it.
    idle: bool


def unused(db: Any) -> list[Reserved]:
    """Reservations that no container has, by the pods' names."""
    found = [each for _, each in _unused(db) if each.memory_bytes or each.cores or each.whole or each.idle]
    return sorted(found, key=lambda each: (each.pod, each.device_uuid))


def _unused(db: Any) -> list[tuple[str, Reserved]]:
    """With the pods' UIDs."""
    reserved = rows_if_any(
        db,
        "SELECT uid, device_index, device_uuid, memory_bytes, cores, whole, namespace, pod FROM reserved "
        "JOIN reservations USING (uid)",
    )
    if not reserved:
        return []
    rows = rows_if_any(db, f"{_RUNNING} GROUP BY uid, device_uuid")
    have = {(row[0], row[1]): (row[2], row[3], not row[5]) for row in rows}
    found = []
    for uid, index, uuid, memory, cores, whole, namespace, pod in reserved:
        has_memory, has_cores, has_whole = have.get((uid, uuid), (0, 0, False))
        more_memory, more_cores = max(memory - has_memory, 0), max(cores - has_cores, 0)
        idle = (uid, uuid) not in have
        is_whole = bool(whole and not has_whole)
        more = Reserved(f"{namespace}/{pod}", index, uuid, more_memory, more_cores, is_whole, idle)
        found.append((uid, more))
    return found


def use_by_others(db: Any, uses: Mapping[str, Use], uid: str) -> dict[str, Use]:
    """The use of each device in the view of a container of the pod `uid`: the shares of other pods, and the
    slices of the pod's other containers."""
    found = add(db, uses, uid)
    for uuid, own in running(db, uid).items():
        found[uuid] = found.get(uuid, Use()).plus(own)
    return found


def for_change(db: Any, grant: Grant, uses: dict[str, Use]) -> dict[str, Use]:
    """`uses` for a change of a grant's limits: without the part that is reserved for its own container and
    not held, which that container may have again."""
    uid, container = pods_of_grants(db).get(grant.id, ("", ""))
    own = next((each.of(container) for each in every(db, uid)), ())
    found = dict(uses)
    for share in own:
        for slice_ in grant.slices:
            if slice_.device_uuid == share.device_uuid:
                now = found[share.device_uuid]
                memory = max(min((share.memory_bytes or 0) - slice_.memory_bytes, now.reserved_memory), 0)
                cores = max(min((share.cores or 0) - (slice_.cores or 0), now.reserved_cores), 0)
                found[share.device_uuid] = now.replace(
                    memory_bytes=now.memory_bytes - memory,
                    cores=now.cores - cores,
                    reserved_memory=now.reserved_memory - memory,
                    reserved_cores=now.reserved_cores - cores,
                )
    return found


def _less(all_of_it: Use, own: Use) -> Use:
    """The granted amounts without a pod's containers' slices."""
    kept = all_of_it.exclusive and not own.exclusive
    return all_of_it.replace(
        memory_bytes=all_of_it.memory_bytes - own.memory_bytes,
        cores=all_of_it.cores - own.cores,
        slices=all_of_it.slices - own.slices,
        exclusive=kept,
        holder=all_of_it.holder if kept else "",
        holder_cores=all_of_it.holder_cores if kept else None,
    )
