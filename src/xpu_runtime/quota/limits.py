"""Limits put into force and lifted, for whole grants, through the backend that each slice names.

The driver's limits are set on the container's cgroup, which must exist; the wrapper libraries' pages are made
with the grant, for they are mounted before that.
"""

from __future__ import annotations

import os

from xpu_runtime.devices.inventory import Inventory, find
from xpu_runtime.errors import ApplyError, XpuError
from xpu_runtime.ledger.grants import Grant, Slice
from xpu_runtime.quota import driver, library


def prepare(grant: Grant) -> None:
    """Makes what must be there before the container is; ApplyError, and nothing is left, if that fails."""
    if library.holds(grant.slices):
        from xpu_runtime.quota import folders

        folders.create(grant)


def pages(grant: Grant | None) -> str | None:
    """The host's folder with the grant's pages; None where the wrapper libraries hold no limit of it."""
    if grant is None or not library.holds(grant.slices):
        return None
    from xpu_runtime.quota import folders

    return folders.of(grant)


def impose(found: Inventory, slices: tuple[Slice, ...], folder: str | None) -> None:
    """Puts every memory limit of `slices` into force on the container's cgroup folder.

    ApplyError or DeviceError if one cannot be; those that were set are lifted again.
    """
    done: list[Slice] = []
    try:
        for part in _held_by_driver(slices):
            device = find(found, part.device_uuid)
            if folder is None or device is None:
                missing = "has no cgroup v2 folder" if folder is None else f"lost device {part.device_uuid}"
                raise ApplyError(f"the container {missing}: its memory limit cannot be set")
            driver.set_limit(found, device, folder, part.memory_bytes)
            done.append(part)
    except XpuError:
        _lift(found, tuple(done), folder)
        raise


def clear(found: Inventory | None, grants: list[Grant]) -> None:
    """Lifts the limits of grants that have ended. A cgroup that is gone took its limits with it.

    `found` may be None where `in_driver` is false for each.
    """
    for grant in grants:
        if found is not None:
            _lift(found, grant.slices, grant.cgroup)
        if library.holds(grant.slices):
            from xpu_runtime.quota import folders

            folders.remove(folders.of(grant))


def in_driver(grant: Grant) -> bool:
    """Whether the driver may still have a limit of this grant."""
    return bool(_held_by_driver(grant.slices)) and bool(grant.cgroup) and os.path.isdir(grant.cgroup)


def _lift(found: Inventory, slices: tuple[Slice, ...], folder: str | None) -> None:
    if not folder or not os.path.isdir(folder):
        return
    for part in _held_by_driver(slices):
        device = find(found, part.device_uuid)
        if device is not None:
            try:
                driver.set_limit(found, device, folder, None)
            except XpuError:
                # The container has ended and no process is left in the cgroup: nothing can use the limit.
                continue


def _held_by_driver(slices: tuple[Slice, ...]) -> list[Slice]:
    return [part for part in slices if part.held_by(driver.NAME)]
