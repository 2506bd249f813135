"""Each grant's present use of device memory, by its own account and by the driver's report.

For commands that people run, never on a container's path. A container can write anything into its usage page:
no decision depends on it, and no amount counts for more than the device has. The registry knows the backend
that keeps an account.
"""

from __future__ import annotations

from collections.abc import Callable

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
    """One process's memory on one device; bytes, None if not known."""

    #: Its number on the host; None if it is not found there.
    pid: int | None
    #: As the process itself sees it.
    container_pid: int | None
    name: str
    #: None if it has no place in the account.
    used: int | None
    kinds: dict[str, int]
    #: The driver's report.
    driver: int | None
    #: Ended, and its memory is still counted; `kept` is the part that is open in another process.
    dead: bool = False
    kept: int = 0


class OfDrivers(Value):
    """Facts that only drivers report; asking them can hang."""

    #: Bytes by device and process, as `memory_by_process`.
    by_process: dict[str, dict[int, int | None]]
    #: By grant, position and kind, like `Usage.in_force`, if the holder asks a driver; missing values are not
    #: known.
    in_force: dict[tuple[int, int, str], InForce | None]
    problems: tuple[str, ...]
    #: None has answered.
    silent: bool = False


class Usage:
    """Reported usage: each source is asked once, when it is needed; `problems` says which could not be."""

    def __init__(self, inventory: Inventory, ask: Callable[[], OfDrivers] | None = None) -> None:
        """With `ask`, no driver is asked but by that, once, where something is needed that only they tell."""
        self._inventory = inventory
        self._ask = ask
        self._told: OfDrivers | None = None
        self._by_process: dict[str, dict[int, int | None]] | None = None
        self._in_force: dict[tuple[int, int, str], InForce | None] = {}
        self._slots: dict[int, list[usage_page.ProcessUsage]] = {}
        self.problems: list[str] = []

    def in_use(self, grant: Grant, position: int) -> int | None:
        """A slice's use: its account's total if it has one, otherwise the driver's report."""
        counted = self.counted(grant, position)
        return self.by_driver(grant, position) if counted is None else counted

    def larger(self, grant: Grant, position: int) -> int | None:
        """A slice's use, by the account or by the driver, the larger of both; None if the driver does not
        report it, as a process can have memory that the account lacks."""
        if self._has_failed(grant.slices[position].device_uuid):
            return None
        known = [self.counted(grant, position), self.by_driver(grant, position)]
        return max((amount for amount in known if amount is not None), default=None)

    def counted(self, grant: Grant, position: int) -> int | None:
        """The slice's use by its account; None if no living process is in it.

        Also None if the limit's backend counts itself: the container can write the account.
        """
        in_force = self.in_force(grant, position, MEMORY)
        if in_force is not None and in_force.used is not None:
            return None
        if in_force is None and _is_drivers(grant, position, MEMORY) and self._is_silent():
            return None  # not known whether the driver counts
        account = self._account(grant)
        if all(slot.dead for slot in account):
            return None
        return usage_page.in_use(account, position, self.device_memory(grant, position))

    def by_driver(self, grant: Grant, position: int) -> int | None:
        """The driver's figure for the container's cgroup, or for its processes together."""
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
        """The limit in force by its backend; None if not known."""
        key = (grant.id, position, kind)
        if key not in self._in_force:
            self._in_force[key] = self._find_in_force(grant, position, kind)
        return self._in_force[key]

    def _find_in_force(self, grant: Grant, position: int, kind: str) -> InForce | None:
        holder = registry.known_holder(grant.slices[position], kind)
        if holder is None:
            return None
        if holder.ASKS_DRIVER and (told := self._of_drivers()) is not None:
            return told.in_force.get((grant.id, position, kind))
        return holder.in_force(self._inventory, grant, position, kind)

    def of_drivers(self, grants: list[Grant]) -> OfDrivers:
        """The drivers' reports about these grants."""
        in_force = {
            (grant.id, position, kind): self.in_force(grant, position, kind)
            for grant in grants
            for position in range(len(grant.slices))
            for kind in KINDS
            if _is_drivers(grant, position, kind)
        }
        by_process = self._of_devices()
        return OfDrivers(by_process, in_force, tuple(self.problems))

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
        """Bytes by process, as the driver reports them; None if it does not."""
        return self._of_devices().get(uuid)

    def _of_devices(self) -> dict[str, dict[int, int | None]]:
        if self._by_process is None:
            if (told := self._of_drivers()) is not None:
                self._by_process = told.by_process
            else:
                problems: list[str] = []
                self._by_process = memory_by_process(self._inventory, problems)
                for problem in problems:
                    self._problem(problem)
        return self._by_process

    def _of_drivers(self) -> OfDrivers | None:
        """The answers of the process that asks drivers; None: they are asked here."""
        if self._told is None and self._ask is not None:
            self._told = self._ask()
            for problem in self._told.problems:
                self._problem(problem)
        return self._told

    def _is_silent(self) -> bool:
        told = self._of_drivers()
        return told is not None and told.silent

    def _has_failed(self, uuid: str) -> bool:
        """Whether a driver reports nothing of the device because of a problem: some never report anything."""
        told = self._of_drivers()
        return told is not None and bool(told.problems) and uuid not in told.by_process

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


def processes(grant: Grant) -> list[int] | None:
    """The processes of the grant's container, by their numbers on the host; None if they cannot be told from
    others."""
    if grant.cgroup:
        return cgroups.processes(grant.cgroup)
    if not proc.is_alive(grant.pid, grant.start_time):
        return []
    return proc.in_pid_namespace_of(grant.pid)


def _is_drivers(grant: Grant, position: int, kind: str) -> bool:
    holder = registry.known_holder(grant.slices[position], kind)
    return holder is not None and holder.ASKS_DRIVER


def _host_pid(slot: usage_page.ProcessUsage, there: dict[int, list[int]]) -> int | None:
    """The host's number of a slot's process; None if there is none, or if it could be several."""
    found = there.get(slot.pid, [])
    if 1 < len(found) <= _ALIKE:
        found = [pid for pid in found if proc.name(pid) == slot.name]
    return found[0] if len(found) == 1 else None
