"""The `library` backend: interposers in the container hold limits on memory and on cores, from R470 on.

Instead of the driver's libcuda.so.1 and libnvidia-ml.so.1 a container finds ours, which count what its
processes allocate and refuse allocations beyond the limit, and which hold launches back beyond the cap on the
device's time. Each kind may be held without the other: the driver may hold the memory limit. Soft: a program
can go round them on purpose. A page in the grant's folder has the limits; the container cannot write it
(pages.py). Every start imports this file to ask for an offer, so imports for some starts only are made where
they are used. interposers.py has the files for an image.
"""

from __future__ import annotations

import os

from xpu_runtime.errors import ApplyError, XpuError
from xpu_runtime.ledger.grants import CORES, MEMORY
from xpu_runtime.limits import folders, interposed
from xpu_runtime.limits.backend import SOFT, Backend, Change, Detail, InForce, Offer, device_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    from xpu_runtime.delivery.contribution import Contribution
    from xpu_runtime.ledger.grants import Grant
    from xpu_runtime.limits.pages import Compute, OpenQuota, Policy
    from xpu_runtime.limits.usage_page import ProcessUsage
    from xpu_runtime.request.request import Request
    from xpu_runtime.vendors.inventory import Device, Inventory

    class PagesJson(TypedDict):
        """The page that holds a container's limits."""

        #: The folder on the host.
        folder: str
        #: Version of its layout.
        abi: int
        #: False: it is damaged.
        valid: bool


NAME = "library"

_OLDEST_DRIVER = 470
_RESTART = "start the container again"


class Library(Backend):
    NAME = NAME
    KINDS = (MEMORY, CORES)
    STRONGEST = SOFT
    OF_DRIVER = True
    WRITES_LOG = True
    KEEPS_ACCOUNT = True

    def offer(self, kind: str, inventory: Inventory, device: Device, request: Request) -> Offer:
        reason = (
            unavailable(inventory, device)
            or cannot_see(kind, request.capabilities)
            or _too_many(inventory, device, request)
        )
        return Offer(SOFT) if reason is None else Offer(None, reason)

    def folder_size(self, grant: Grant) -> int:
        from xpu_runtime.limits import pages

        return pages.QUOTA_SIZE + pages.usage_size(len(grant.slices))

    def prepare(self, grant: Grant, request: Request) -> None:
        from xpu_runtime.limits import pages

        place = folders.of(grant)
        # If another backend holds a limit, it may change there without our notice.
        entries = tuple(
            pages.Entry(
                slice_.device_uuid,
                slice_.memory_bytes if slice_.holder(MEMORY) == self.NAME else None,
                is_partition=":" in slice_.device_index,
                cores=slice_.cores if slice_.holder(CORES) == self.NAME else None,
                sched=request.sched or pages.SCHEDS[0],
                priority=request.priority or pages.PRIORITIES[0],
            )
            for slice_ in grant.slices
        )
        try:
            pages.create(place, grant.container_id, entries)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ApplyError(f"cannot make the quota page in {place}: {reason}") from error

    def contribution(self, inventory: Inventory, grant: Grant) -> Contribution:
        from xpu_runtime.limits.interposers import Interposers

        return Interposers(inventory, grant.slices, folders.of(grant))

    def open(self, inventory: Inventory, grant: Grant) -> Change:
        return QuotaChange(inventory, grant)

    def in_force(self, inventory: Inventory, grant: Grant, position: int, kind: str) -> InForce | None:
        from xpu_runtime.limits import pages

        try:
            page = pages.quota(folders.of(grant))
        except (OSError, ValueError):
            return None
        limits = page.limits if kind == MEMORY else page.cores
        return InForce(limits[position]) if position < len(limits) else None

    def account(self, grant: Grant) -> list[ProcessUsage]:
        from xpu_runtime.limits import usage_page

        return usage_page.slots(folders.of(grant), len(grant.slices))

    def compute(self, grant: Grant) -> list[Compute]:
        from xpu_runtime.limits import pages

        return pages.compute(folders.of(grant), len(grant.slices))

    def policy(self, grant: Grant, position: int) -> Policy | None:
        from xpu_runtime.limits import pages

        try:
            policies = pages.quota(folders.of(grant)).policies
        except (OSError, ValueError):
            return None
        return policies[position] if position < len(policies) else None

    def damage(self, grant: Grant) -> XpuError | None:
        if grant.state != "running":
            return None
        from xpu_runtime.limits import page_faults

        return page_faults.find(folders.of(grant), len(grant.slices))

    def details(self, grant: Grant, *, holds: bool) -> list[Detail]:
        if not holds:
            return [Detail("pages", None)]
        from xpu_runtime.limits import pages

        place = folders.of(grant)
        try:
            page = pages.quota(place)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            what = f"the quota page in {place} cannot be read: {reason}"
            return [Detail("pages", None, "", self.damage(grant) or XpuError(what, _RESTART))]
        damaged = "" if page.valid else ", damaged"
        value: PagesJson = {"folder": place, "abi": page.abi, "valid": page.valid}
        return [Detail("pages", value, f"{place} (ABI {page.abi}{damaged})", self.damage(grant))]


class QuotaChange(Change):
    """The quota page of one grant.

    Opening it can take 45 s, where a process of the container has put a lease on it (pages.OpenQuota).
    """

    def __init__(self, inventory: Inventory, grant: Grant) -> None:
        self._inventory = inventory
        self._grant = grant
        self._page: OpenQuota | None = None

    def __enter__(self) -> QuotaChange:
        from xpu_runtime.limits import pages

        place = folders.of(self._grant)
        try:
            self._page = pages.OpenQuota(place)
        except OSError as error:
            raise ApplyError(f"cannot open the quota page in {place}: {error.strerror}", _RESTART) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._page is not None:
            self._page.__exit__()

    def set(self, position: int, kind: str, value: int) -> None:
        assert self._page is not None
        if kind == MEMORY:
            self._page.set_limit(position, value)
        else:
            self._page.set_cores(position, value)

    def set_policy(self, position: int, policy: Policy) -> None:
        assert self._page is not None
        self._page.set_policy(position, policy.sched, policy.priority)

    def in_use(self, position: int, kind: str) -> int:
        if kind != MEMORY:
            return 0
        from xpu_runtime.limits import usage_page

        try:
            account = usage_page.slots(folders.of(self._grant), len(self._grant.slices))
        except OSError:
            return 0
        return usage_page.in_use(
            account, position, device_memory(self._inventory, self._grant.slices[position])
        )


BACKEND = Library()


def unavailable(inventory: Inventory, device: Device) -> str | None:
    """Why this backend cannot hold limits on `device`; None if it can."""
    known = inventory.driver(device.vendor)
    major = known.version.partition(".")[0]
    if major.isdigit() and int(major) < _OLDEST_DRIVER:
        return f"the interposer libraries need driver R{_OLDEST_DRIVER} or newer, not {known.version}"
    if not known.interposed:
        return f"there is no interposer library for the driver of {device.vendor} devices"
    there = {interposed.stem_of(library.name) for library in known.libraries if library.kind == "lib"}
    for stem in known.interposed:
        ours = interposed.interposer(stem)
        if not os.path.exists(ours):
            return f"{ours} is missing: install the runtime again"
        if stem not in there:
            return f"the driver root {inventory.root} has no {stem}.1"
    return None


def _too_many(inventory: Inventory, device: Device, request: Request) -> str | None:
    asked = request.count
    if request.choice == "list":
        asked = len(request.selectors)
    elif request.choice == "all":
        asked = sum(each.vendor == device.vendor for each in inventory.devices)
    if asked == 1:
        return None
    from xpu_runtime.limits import pages

    if asked <= pages.MAX_DEVICES:
        return None
    most = pages.MAX_DEVICES
    return f"the interposer libraries hold limits on {most} devices of a container, not on {asked}"


def cannot_see(kind: str, capabilities: tuple[str, ...]) -> str | None:
    """Why the interposers cannot hold a limit on a container with these capabilities; None if they can.

    A capability that takes memory without 64-bit CUDA also uses the device's time without it, so the same
    ones exclude both kinds of limits: an unmeasured cap would count less than the container takes. Images set
    `all` by habit: it means all but these.
    """
    asked = [name for name in capabilities if name in interposed.UNSEEN]
    if not asked or set(capabilities) >= interposed.UNSEEN:
        return None
    shown = [f"{name} (32-bit programs)" if name == "compat32" else name for name in asked]
    what = "memory" if kind == MEMORY else "work on the device"
    return (
        f"XPU_CAPABILITIES asks for {', '.join(shown)}, whose {what} the interposer libraries do not see "
        "(they see compute, utility and video)"
    )
