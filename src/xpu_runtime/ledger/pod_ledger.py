"""The ledger's part for pods: allocations are read, entered and removed here.

Imported only for pods. allocations.py knows the meaning of allocations.
"""

from __future__ import annotations

from xpu_runtime.ledger import allocations, layout
from xpu_runtime.ledger.allocations import Allocation, Reserved
from xpu_runtime.ledger.grants import Grant, Use
from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.ledger.waiting import LedgerErrors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class PodLedger(Ledger):
    """An open ledger: as Ledger, with allocations."""

    # Reading

    def allocations(self) -> list[Allocation]:
        """The allocations of all pods, by their names."""
        with LedgerErrors(self.path, "read"):
            return allocations.every(self._db)

    def allocation(self, uid: str) -> Allocation | None:
        with LedgerErrors(self.path, "read"):
            return next(iter(allocations.every(self._db, uid)), None)

    def reserved(self) -> list[Reserved]:
        """The parts of devices reserved for pods beyond their containers' slices."""
        with LedgerErrors(self.path, "read"):
            return allocations.unused(self._db)

    def pods_of_grants(self) -> dict[int, tuple[str, str]]:
        """(Pod's UID, container's name) of each grant of a pod's container, by the grant's number."""
        with LedgerErrors(self.path, "read"):
            return allocations.pods_of_grants(self._db)

    def devices_of(self, uid: str) -> dict[str, set[str]]:
        """The devices that containers of the pod `uid` have, by the containers' names."""
        names = {number: name for number, (pod, name) in self.pods_of_grants().items() if pod == uid}
        found: dict[str, set[str]] = {}
        for grant in self.grants() if names else ():
            if grant.id in names:
                found.setdefault(names[grant.id], set()).update(each.device_uuid for each in grant.slices)
        return found

    def uses_without(self, uid: str) -> dict[str, Use]:
        """The use of each device by all others than the pod `uid`, reservations included."""
        with LedgerErrors(self.path, "read"):
            return allocations.add(self._db, layout.granted(self._db), uid)

    def uses_for_pod(self, uid: str) -> dict[str, Use]:
        """The use of each device in the view of a container of the pod `uid`: without its pod's
        reservation."""
        with LedgerErrors(self.path, "read"):
            return allocations.use_by_others(self._db, layout.granted(self._db), uid)

    # Changing

    def allocate(
        self,
        uid: str,
        choose: Callable[[dict[str, Use], Allocation | None], Allocation | Refusal],
        indexes: Mapping[str, str],
    ) -> tuple[Allocation | Refusal, list[Grant]]:
        """One allocation for the pod `uid` in one transaction: reaps dead grants, lets `choose` decide, and
        enters what it returns, in the place of an earlier one.

        `choose` gets the use of each device by all others, and the pod's present allocation (or None). If it
        returns a Refusal, nothing changes. `indexes`: of devices by UUID, for people. Returns besides the
        dead grants that were removed, whose limits the caller must lift.
        """
        with LedgerErrors(self.path, "write"), self._transaction():
            self._require_own()
            now = self.allocation(uid)
            dead = self._remove_dead(thorough=False)
            chosen = choose(self.uses_without(uid), now)
            if isinstance(chosen, Refusal):
                more = self._remove_dead(thorough=True)
                dead += more
                chosen = choose(self.uses_without(uid), now) if more else chosen
            if isinstance(chosen, Allocation) and chosen != now:
                allocations.enter(self._db, chosen, indexes)
            return chosen, dead

    def enter(self, allocation: Allocation, indexes: Mapping[str, str]) -> None:
        """Enters an allocation, for the `choose` of a grant: with that or not at all."""
        allocations.enter(self._db, allocation, indexes)

    def deallocate(self, uids: Iterable[str]) -> list[Allocation]:
        """Removes the allocations of these pods, and returns them; no error for one that is gone already."""
        with LedgerErrors(self.path, "write"), self._transaction():
            self._require_own()
            return allocations.remove(self._db, uids)
