"""How much device memory each grant uses now: as its own account has it, and as the driver tells it.

For people; never on the start path. What a container's usage page says is its own claim: it decides
nothing here, and no figure is taken for more than the device has.
"""

from __future__ import annotations

from xpu_runtime.devices import nvidia
from xpu_runtime.devices.inventory import Inventory, find
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.grants import Grant, Slice
from xpu_runtime.linux import cgroups, proc
from xpu_runtime.quota import driver, limits, pages
from xpu_runtime.value import Value

#: PID namespaces inside a container count from 1 again: so many processes of one number are told apart.
_ALIKE = 16


class Process(Value):
    """What one process of a container has on one device; bytes, None where nobody tells."""

    #: On the host; None for one that is not found there.
    pid: int | None
    #: As the process itself sees it.
    container_pid: int | None
    name: str
    #: None for one that has no place in the account.
    used: int | None
    kinds: dict[str, int]
    #: The driver's own figure.
    driver: int | None
    #: Ended, and what it had is still counted; of that, `kept` is open in another process.
    dead: bool = False
    kept: int = 0


class Figures:
    """Asks each source once, when it is needed; what cannot be asked is in `problems`."""

    def __init__(self, found: Inventory) -> None:
        self._found = found
        self._by_process: dict[str, dict[int, int | None]] | None = None
        self._limits: dict[tuple[int, int], driver.Limit | None] = {}
        self._slots: dict[int, list[pages.ProcessUsage]] = {}
        self.problems: list[str] = []

    def in_use(self, grant: Grant, position: int) -> int | None:
        """What a slice uses: its account's total, where it has one, else the driver's figure."""
        counted = self.counted(grant, position)
        return self.by_driver(grant, position) if counted is None else counted

    def larger(self, grant: Grant, position: int) -> int | None:
        """What a slice uses, by the account or by the driver, whichever says more."""
        known = [self.counted(grant, position), self.by_driver(grant, position)]
        return max((amount for amount in known if amount is not None), default=None)

    def counted(self, grant: Grant, position: int) -> int | None:
        """What the slice's account has in use; None where no living process is in it."""
        account = self._account(grant)
        if all(slot.dead for slot in account):
            return None
        most = self.device_memory(grant, position)
        return min(sum(pages.held(account, position).values()), most)

    def by_driver(self, grant: Grant, position: int) -> int | None:
        """What the driver says of the container's cgroup, or of its processes together."""
        limit = self.driver_limit(grant, position)
        if limit is not None:
            return limit.used
        by_process = self._of_device(grant.slices[position].device_uuid)
        theirs = processes(grant)
        if by_process is None or theirs is None:
            return None
        told = [by_process[pid] for pid in theirs if pid in by_process]
        known = [amount for amount in told if amount is not None]
        return sum(known) if len(known) == len(told) else None

    def driver_limit(self, grant: Grant, position: int) -> driver.Limit | None:
        """The limit that the driver holds on a slice, with what it counts; None where it tells of none."""
        key = (grant.id, position)
        if key not in self._limits:
            self._limits[key] = self._ask_driver(grant, grant.slices[position])
        return self._limits[key]

    def _ask_driver(self, grant: Grant, part: Slice) -> driver.Limit | None:
        device = find(self._found, part.device_uuid)
        if device is None or device.vendor != "nvidia" or not (grant.cgroup and part.held_by(driver.NAME)):
            return None
        try:
            with driver.Nvml(self._found) as nvml:
                return nvml.memory_limit(device.uuid, grant.cgroup)
        except XpuError:
            return None  # the container has just ended

    def processes(self, grant: Grant, position: int) -> list[Process]:
        """Each process that has memory of the slice or a place in its account, the largest first."""
        by_driver = self._of_device(grant.slices[position].device_uuid) or {}
        unplaced = set(processes(grant) or ())
        there: dict[int, list[int]] = {}
        for each in unplaced:
            there.setdefault(proc.innermost_pid(each) or 0, []).append(each)
        most = self.device_memory(grant, position)
        account = self._account(grant)
        held = pages.held(account, position)
        found = []
        for slot in account:
            if slot.device != position or (slot.dead and not slot.used):
                continue
            pid = None if slot.dead else _host_pid(slot, there)
            unplaced.discard(pid or 0)
            kinds = {kind: min(amount, most) for kind, amount in slot.kinds.items()}
            figure = by_driver.get(pid or 0)
            used, kept = min(slot.used, most), min(held[slot.slot], most) if slot.dead else 0
            found.append(Process(pid, slot.pid or None, slot.name, used, kinds, figure, slot.dead, kept))
        found += [
            Process(each, proc.innermost_pid(each), proc.name(each), None, {}, by_driver[each])
            for each in unplaced
            if each in by_driver
        ]
        return sorted(found, key=lambda each: -max(each.used or 0, each.driver or 0))

    def device_memory(self, grant: Grant, position: int) -> int:
        """Bytes of the slice's device, or what is known of it: what is booked."""
        part = grant.slices[position]
        device = find(self._found, part.device_uuid)
        return device.memory_bytes if device else part.memory_bytes

    def _account(self, grant: Grant) -> list[pages.ProcessUsage]:
        if grant.id not in self._slots:
            self._slots[grant.id] = []
            folder = limits.pages(grant)
            if folder is not None:
                try:
                    self._slots[grant.id] = pages.slots(folder, len(grant.slices))
                except OSError as error:
                    self._problem(f"the usage page of {grant.container_id} cannot be read: {error.strerror}")
        return self._slots[grant.id]

    def _of_device(self, uuid: str) -> dict[int, int | None] | None:
        """Bytes by process, as the driver tells them; None where it does not."""
        if self._by_process is None:
            try:
                self._by_process = nvidia.memory_by_process(self._found)
            except XpuError as error:
                self._by_process = {}
                self._problem(str(error))
        return self._by_process.get(uuid)

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


def processes(grant: Grant) -> list[int] | None:
    """The processes of the grant's container, by their numbers on the host; None where nothing tells them
    from others."""
    if grant.cgroup:
        return cgroups.processes(grant.cgroup)
    if not proc.is_alive(grant.pid, grant.start_time):
        return []
    return proc.in_pid_namespace_of(grant.pid)


def _host_pid(slot: pages.ProcessUsage, there: dict[int, list[int]]) -> int | None:
    """The host's number of a slot's process; None where several might be meant, or none is."""
    found = there.get(slot.pid, [])
    if 1 < len(found) <= _ALIKE:
        found = [pid for pid in found if proc.name(pid) == slot.name]
    return found[0] if len(found) == 1 else None
