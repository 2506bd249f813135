"""How much device memory each grant uses now, by its own account and by what the driver reports.

For commands that people run, never on a container's path. A container can write anything into its usage page:
nothing here is decided by it, and no amount counts for more than the device has. Which backend keeps an
account is the registry's to know.
"""

from __future__ import annotations

from xpu_runtime.ledger.grants import KINDS, MEMORY, Grant
from xpu_runtime.limits import registry, usage_page
from xpu_runtime.limits.backend import InForce, device_memory
from xpu_runtime.linux import cgroups, proc
from xpu_runtime.value import Value
from xpu_runtime.vendors.inventory import Inventory
from xpu_runtime.vendors.registry import memory_by_process

#: Nested PID namespaces count from 1 again, so one number can mean several processes of a container. Up to
#: this many are told apart by their names.
_ALIKE = 16


class Process(Value):
    """What one process of a container has on one device; bytes, None where it is not known."""

    #: On the host; None for one that is not found there.
    pid: int | None
    #: As the process itself sees it.
    container_pid: int | None
    name: str
    #: None for one that has no place in the account.
    used: int | None
    kinds: dict[str, int]
    #: What the driver reports.
    driver: int | None
    #: Ended, and what it had is still counted; of that, `kept` is open in another process.
    dead: bool = False
    kept: int = 0


class OfDrivers(Value):
    """What only drivers tell, and asking them can hang."""

    #: Bytes by device and process, as `memory_by_process`.
    by_process: dict[str, dict[int, int | None]]
    #: By grant, position and kind, as `Usage.in_force`; what is missing is not known.
    in_force: dict[tuple[int, int, str], InForce | None]
    problems: tuple[str, ...]


class Usage:
    """Reported usage: each source is asked once, when it is needed; `problems` says which could not be."""

    def __init__(self, inventory: Inventory, told: OfDrivers | None = None) -> None:
        """With `told`, no driver is asked: that is what they have told."""
        self._inventory = inventory
        self._asks = told is None
        self._by_process = None if told is None else told.by_process
        self._in_force = {} if told is None else dict(told.in_force)
        self._slots: dict[int, list[usage_page.ProcessUsage]] = {}
        self.problems: list[str] = [] if told is None else list(told.problems)

    def in_use(self, grant: Grant, position: int) -> int | None:
        """What a slice uses: its account's total, where it has one, else what the driver reports."""
        counted = self.counted(grant, position)
        return self.by_driver(grant, position) if counted is None else counted

    def larger(self, grant: Grant, position: int) -> int | None:
        """What a slice uses, by the account or by the driver, whichever says more."""
        known = [self.counted(grant, position), self.by_driver(grant, position)]
        return max((amount for amount in known if amount is not None), default=None)

    def counted(self, grant: Grant, position: int) -> int | None:
        """What the slice's account has in use; None where no living process is in it.

        Also None where what holds the memory limit counts itself: the account is the container's to write.
        """
        in_force = self.in_force(grant, position, MEMORY)
        if in_force is not None and in_force.used is not None:
            return None
        if not self._asks and (grant.id, position, MEMORY) not in self._in_force:
            # No driver has told whether it counts: an account is for what its own backend holds.
            accountant = registry.accountant(grant)
            if accountant is None or grant.slices[position].holder(MEMORY) != accountant.NAME:
                return None
        account = self._account(grant)
        if all(slot.dead for slot in account):
            return None
        return usage_page.in_use(account, position, self.device_memory(grant, position))

    def by_driver(self, grant: Grant, position: int) -> int | None:
        """What the driver says of the container's cgroup, or of its processes together."""
        in_force = self.in_force(grant, position, MEMORY)
        if in_force is not None and in_force.used is not None:
            return in_force.used
        by_process = self._of_device(grant.slices[position].device_uuid)
        theirs = processes(grant)
        if by_process is None or theirs is None:
            return None
        told = [by_process[pid] for pid in theirs if pid in by_process]
        known = [amount for amount in told if amount is not None]
        return sum(known) if len(known) == len(told) else None

    def in_force(self, grant: Grant, position: int, kind: str) -> InForce | None:
        """What the backend that holds a limit has in force; None where that is not known."""
        key = (grant.id, position, kind)
        if key not in self._in_force and self._asks:
            holder = registry.known_holder(grant.slices[position], kind)
            held = holder.in_force(self._inventory, grant, position, kind) if holder is not None else None
            self._in_force[key] = held
        return self._in_force.get(key)

    def of_drivers(self, grants: list[Grant]) -> OfDrivers:
        """What drivers tell of these grants."""
        slices = [(grant, position) for grant in grants for position in range(len(grant.slices))]
        in_force = {
            (grant.id, position, kind): self.in_force(grant, position, kind)
            for grant, position in slices
            for kind in KINDS
        }
        for grant, position in slices[:1]:
            self._of_device(grant.slices[position].device_uuid)  # asks for all devices
        return OfDrivers(self._by_process or {}, in_force, tuple(self.problems))

    def processes(self, grant: Grant, position: int) -> list[Process]:
        """Each process that has memory of the slice or a place in its account, the largest first."""
        by_driver = self._of_device(grant.slices[position].device_uuid) or {}
        unplaced = set(processes(grant) or ())
        there: dict[int, list[int]] = {}
        for each in unplaced:
            there.setdefault(proc.innermost_pid(each) or 0, []).append(each)
        most = self.device_memory(grant, position)
        account = self._account(grant)
        held = usage_page.held(account, position)
        found = []
        for slot in account:
            if slot.device != position or (slot.dead and not slot.used):
                continue
            pid = None if slot.dead else _host_pid(slot, there)
            unplaced.discard(pid or 0)
            kinds = {kind: min(amount, most) for kind, amount in slot.kinds.items()}
            reported = by_driver.get(pid or 0)
            used, kept = min(slot.used, most), min(held[slot.slot], most) if slot.dead else 0
            found.append(Process(pid, slot.pid or None, slot.name, used, kinds, reported, slot.dead, kept))
        found += [
            Process(each, proc.innermost_pid(each), proc.name(each), None, {}, by_driver[each])
            for each in unplaced
            if each in by_driver
        ]
        return sorted(found, key=lambda each: -max(each.used or 0, each.driver or 0))

    def device_memory(self, grant: Grant, position: int) -> int:
        """As `backend.device_memory`."""
        return device_memory(self._inventory, grant.slices[position])

    def _account(self, grant: Grant) -> list[usage_page.ProcessUsage]:
        if grant.id not in self._slots:
            self._slots[grant.id] = []
            accountant = registry.accountant(grant)
            try:
                if accountant is not None:
                    self._slots[grant.id] = accountant.account(grant)
            except OSError as error:
                what = f"the usage page of {grant.container_id}"
                self._problem(f"{what} cannot be read: {error.strerror}")
        return self._slots[grant.id]

    def _of_device(self, uuid: str) -> dict[int, int | None] | None:
        """Bytes by process, as the driver tells them; None where it does not."""
        if self._by_process is None:
            problems: list[str] = []
            self._by_process = memory_by_process(self._inventory, problems)
            for problem in problems:
                self._problem(problem)
        return self._by_process.get(uuid)

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


def processes(grant: Grant) -> list[int] | None:
    """The processes of the grant's container, by their numbers on the host; None where they cannot be told
    from others."""
    if grant.cgroup:
        return cgroups.processes(grant.cgroup)
    if not proc.is_alive(grant.pid, grant.start_time):
        return []
    return proc.in_pid_namespace_of(grant.pid)


def _host_pid(slot: usage_page.ProcessUsage, there: dict[int, list[int]]) -> int | None:
    """The host's number of a slot's process; None where there is none, or where it could be several."""
    found = there.get(slot.pid, [])
    if 1 < len(found) <= _ALIKE:
        found = [pid for pid in found if proc.name(pid) == slot.name]
    return found[0] if len(found) == 1 else None
