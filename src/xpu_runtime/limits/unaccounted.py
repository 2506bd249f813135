"""Device memory that the driver reports and a container's account lacks: a program bypasses the interposers.

For commands that people run; never on the start path. The driver's list of processes is compared with the
usage page, which the container can write: a program that means to can hide here as well. No backend is named
here.
"""

from __future__ import annotations

import os

from xpu_runtime import messages
from xpu_runtime.ledger.grants import MEMORY, Grant, Slice
from xpu_runtime.limits import folders, registry, usage_page
from xpu_runtime.limits.usage import processes
from xpu_runtime.request.units import show
from xpu_runtime.vendors.inventory import Inventory
from xpu_runtime.vendors.registry import memory_by_process

#: The driver may count this much more of each process. The account has the size of contexts and modules at
#: the program's last allocation; kernels that are loaded or launched later can take 100 MiB.
ALLOWANCE = 256 << 20
#: A program may take and free memory between two questions: all readings in a row must show it.
_READINGS = 3
_TOLD = "told"

#: By grant and position of the slice in it: bytes.
Amounts = dict[tuple[int, int], int]


def find(inventory: Inventory, grants: list[Grant]) -> Amounts:
    """Each slice's memory beyond its account; 0 for negligible amounts.

    Only for slices whose backend keeps an account; unknown ones are left out.
    """
    held = with_account(grants)
    least: Amounts = {}
    for number in range(_READINGS if held else 0):
        now = _reading(inventory, held)
        least = now if not number else {key: min(least[key], now[key]) for key in least.keys() & now.keys()}
        if not any(least.values()):
            break
    return least


def _reading(inventory: Inventory, grants: list[Grant]) -> Amounts:
    before = {grant.id: _account(grant) for grant in grants}
    by_device = memory_by_process(inventory, [])  # the caller has the problems of `usage` already
    amounts: Amounts = {}
    for grant in grants:
        # The first account still has what was freed meanwhile, the second has what was allocated meanwhile.
        accounts = [account for account in (before[grant.id], _account(grant)) if account is not None]
        theirs = processes(grant)
        accounted = _accounted(grant)
        for position, slice_ in enumerate(grant.slices):
            listed = by_device.get(slice_.device_uuid)
            if listed is None or theirs is None or not accounts or slice_ not in accounted:
                continue
            known = [amount for pid in theirs if (amount := listed.get(pid)) is not None]
            counted = max(_counted(account, position) for account in accounts)
            beyond = sum(known) - counted
            amounts[grant.id, position] = beyond if beyond > ALLOWANCE * len(known) else 0
    return amounts


def with_account(grants: list[Grant]) -> list[Grant]:
    """Those grants whose limit is held by a backend that keeps an account."""
    return [grant for grant in grants if _accounted(grant)]


def _accounted(grant: Grant) -> list[Slice]:
    """The slices whose memory is held by the backend that keeps the grant's account."""
    accountant = registry.accountant(grant)
    name = None if accountant is None else accountant.NAME
    return [slice_ for slice_ in grant.slices if name is not None and slice_.holder(MEMORY) == name]


def _account(grant: Grant) -> list[usage_page.ProcessUsage] | None:
    accountant = registry.accountant(grant)
    try:
        return None if accountant is None else accountant.account(grant)
    except OSError:
        return None


def _counted(account: list[usage_page.ProcessUsage], position: int) -> int:
    """The account's sum for a device; memory open in several processes counts for each, as the driver may
    count it."""
    importers = {slot.slot for slot in account if slot.imports and not slot.dead}
    shared = sum(slot.exported for slot in account if slot.device == position)
    return sum(usage_page.held(account, position).values()) + shared * len(importers)


def warning(grant: Grant, position: int, amount: int) -> str:
    return (
        f"container {grant.container_id}: the driver counts {show(amount)} on GPU "
        f"{grant.slices[position].device_index} that its account lacks: a program goes round the limit "
        "(see `xpu inspect`)"
    )


def warn(grants: list[Grant], amounts: Amounts) -> list[str]:
    """The warnings of these grants; each container is told of in the system's log too, once."""
    told = []
    for grant in grants:
        lines = [
            warning(grant, position, amount)
            for position in range(len(grant.slices))
            if (amount := amounts.get((grant.id, position), 0))
        ]
        told += tell(grant, lines, _TOLD)
    return told


def tell(grant: Grant, lines: list[str], mark: str) -> list[str]:
    """The lines, which the system's log gets the first time that there are some: a file of the grant's folder
    with the name `mark` says so."""
    if lines and _first_time(grant, mark):
        for line in lines:
            messages.to_system_log("warning", line)
    return lines


def _first_time(grant: Grant, mark: str) -> bool:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        os.close(os.open(os.path.join(folders.of(grant), mark), flags, 0o600))
    except FileExistsError:
        return False
    except OSError:
        pass  # the container has ended meanwhile, or the folder is full
    return True
