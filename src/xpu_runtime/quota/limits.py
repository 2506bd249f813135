"""Limits put into force and lifted, for whole grants, through the backend that each slice names.

The driver's limits are set on the container's cgroup, which must exist; the wrapper libraries' pages are made
with the grant, for they are mounted before that.
"""

from __future__ import annotations

import os

from xpu_runtime.devices.inventory import Inventory, find
from xpu_runtime.errors import ApplyError, XpuError
from xpu_runtime.ledger.grants import Grant, Slice
from xpu_runtime.linux import cgroups, proc
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


def clear(found: Inventory | None, grants: list[Grant], starting: Grant | None = None) -> None:
    """Lifts the limits of grants that have ended. A cgroup that is gone took its limits with it.

    `found` may be None where `in_driver` is false for each. `starting` is the container that the caller is
    about to give its limits: an earlier life's are lifted for it.
    """
    for grant in grants:
        if found is not None:
            earlier = starting is not None and _is_earlier_life(grant, starting)
            _lift(found, grant.slices, grant.cgroup, None if earlier else grant)
        if library.holds(grant.slices):
            from xpu_runtime.quota import folders

            folders.remove(folders.of(grant))


def in_driver(grant: Grant) -> bool:
    """Whether the driver may still have a limit of this grant."""
    return bool(_held_by_driver(grant.slices)) and bool(grant.cgroup) and os.path.isdir(grant.cgroup)


def _is_earlier_life(grant: Grant, starting: Grant) -> bool:
    return (grant.container_id, grant.bundle) == (starting.container_id, starting.bundle)


def _lift(
    found: Inventory, slices: tuple[Slice, ...], folder: str | None, ended: Grant | None = None
) -> None:
    """Lifts limits of the cgroup `folder`, unless it is the next life of the container `ended` by then."""
    if not folder or not os.path.isdir(folder):
        return

    def lives_again() -> bool:
        if ended is None or proc.is_alive(ended.pid, ended.start_time):
            return False
        return cgroups.has_processes(folder)

    for part in _held_by_driver(slices):
        device = find(found, part.device_uuid)
        if device is not None:
            try:
                driver.set_limit(found, device, folder, None, lives_again)
            except XpuError:
                # The container has ended and no process is left in the cgroup: nothing can use the limit.
                continue


def _held_by_driver(slices: tuple[Slice, ...]) -> list[Slice]:
    return [part for part in slices if part.held_by(driver.NAME)]
