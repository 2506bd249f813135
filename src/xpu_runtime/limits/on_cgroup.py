"""The common part of backends that hold a memory limit on the container's cgroup, by a driver or the kernel.

Such a limit is there for each process of the cgroup, and ends with it. It is hard, unless the container can
write to its own cgroup (can_lift_limits in oci/spec.py). The backend's own file has the calls that hold the
limit: this one knows no driver.
"""

from __future__ import annotations

import os

from xpu_runtime.errors import ApplyError, DeviceError, XpuError
from xpu_runtime.ledger.grants import MEMORY
from xpu_runtime.limits.backend import HARD, SOFT, Backend, Change, InForce, Offer, held
from xpu_runtime.vendors.inventory import find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from xpu_runtime.ledger.grants import Grant
    from xpu_runtime.request.request import Request
    from xpu_runtime.vendors.inventory import Device, Inventory


class Limits:
    """The memory limits of cgroups, by their folders in cgroup v2, open to be used: a context manager.

    Opening may take seconds. All of it raises XpuError.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set(self, device: Device, folder: str, limit: int | None) -> None:
        """Puts a limit in bytes (None: none) into force."""
        raise NotImplementedError

    def read(self, device: Device, folder: str) -> InForce:
        raise NotImplementedError


class OnCgroup(Backend):
    """A backend with a reason why it cannot hold a limit (`unavailable`), and with `limits`, which hold
    it."""

    KINDS = (MEMORY,)
    STRONGEST = HARD
    OF_DRIVER = True
    ON_CGROUP = True
    #: The limit's holder, for a sentence.
    HOLDER: str

    def unavailable(self, inventory: Inventory, device: Device) -> str | None:
        """Why it cannot hold a memory limit on `device`; None if it can."""
        raise NotImplementedError

    def limits(self, inventory: Inventory) -> Limits:
        """The limits, not yet open."""
        raise NotImplementedError

    def offer(self, kind: str, inventory: Inventory, device: Device, request: Request) -> Offer:
        reason = self.unavailable(inventory, device)
        if reason is not None:
            return Offer(None, reason)
        if request.no_cgroup:
            return Offer(None, f"{self.HOLDER} holds limits on cgroup v2 only, and {request.no_cgroup}")
        if request.can_lift:
            return Offer(SOFT, f"{request.can_lift}, and could lift a limit that {self.HOLDER} holds")
        return Offer(HARD)

    def notes(self, request: Request) -> list[str]:
        if not request.can_lift:
            return []
        return [f"{request.can_lift}, and could lift the limit that {self.HOLDER} holds: it is soft here"]

    def impose(self, inventory: Inventory, grant: Grant) -> None:
        try:
            folder = _folder(grant)
            with self.limits(inventory) as limits:
                for position, _, value in held(grant, self.NAME):
                    limits.set(_device(inventory, grant, position), folder, value)
        except XpuError:
            self.lift(inventory, grant, lambda: False)
            raise

    def open(self, inventory: Inventory, grant: Grant) -> Change:
        from xpu_runtime.limits.separate_process import SeparateProcess  # never on a container's path

        return SeparateProcess(_Change(self.limits(inventory), inventory, grant))

    def must_lift(self, grant: Grant) -> bool:
        # A cgroup that is gone took its limits with it.
        return bool(grant.cgroup) and bool(held(grant, self.NAME)) and os.path.isdir(grant.cgroup)

    def lift(self, inventory: Inventory, grant: Grant, unless: Callable[[], bool]) -> None:
        if not self.must_lift(grant):
            return
        try:
            with self.limits(inventory) as limits:
                for position, _, _ in held(grant, self.NAME):
                    _lift(limits, inventory, grant, position, unless)
        except XpuError:
            pass  # as in _lift

    def in_force(self, inventory: Inventory, grant: Grant, position: int, kind: str) -> InForce | None:
        try:
            with self.limits(inventory) as limits:
                return limits.read(_device(inventory, grant, position), _folder(grant))
        except XpuError:
            return None  # the container has just ended


class _Change(Change):
    def __init__(self, limits: Limits, inventory: Inventory, grant: Grant) -> None:
        self._limits = limits
        self._inventory = inventory
        self._grant = grant
        self._folder = _folder(grant)
        self._inode = _inode(self._folder)

    def __enter__(self) -> Self:
        self._limits.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._limits.__exit__()

    def set(self, position: int, kind: str, value: int) -> None:
        device = _device(self._inventory, self._grant, position)
        # A container that was started again meanwhile has another grant, and a cgroup of the same name.
        if _inode(self._folder) != self._inode:
            raise ApplyError(f"container {self._grant.container_id} has ended", "see `xpu ps`")
        self._limits.set(device, self._folder, value)

    def in_use(self, position: int, kind: str) -> int:
        return self._limits.read(_device(self._inventory, self._grant, position), self._folder).used or 0


def _lift(
    limits: Limits, inventory: Inventory, grant: Grant, position: int, unless: Callable[[], bool]
) -> None:
    try:
        device = _device(inventory, grant, position)
        # Asked last, as opening the limits may have taken seconds.
        if not unless():
            limits.set(device, grant.cgroup, None)
    except XpuError:
        pass  # the container has ended and no process is left in the cgroup: nothing can use the limit


def _folder(grant: Grant) -> str:
    if not grant.cgroup:
        raise ApplyError(
            "the container has no cgroup v2 folder: its memory limit cannot be set",
            "set XPU_ENFORCE=library, or take a low-level runtime that makes one (runc from 1.1 on)",
        )
    return grant.cgroup


def _inode(folder: str) -> int | None:
    """The inode of a cgroup, which no later one has; None: it is gone."""
    try:
        return os.stat(folder).st_ino
    except OSError:
        return None


def _device(inventory: Inventory, grant: Grant, position: int) -> Device:
    uuid = grant.slices[position].device_uuid
    device = find(inventory, uuid)
    if device is None:
        raise DeviceError(f"device {uuid} is no longer there", "see `xpu devices`")
    return device
