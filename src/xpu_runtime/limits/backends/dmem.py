"""The `dmem` backend: the kernel's dmem controller holds a memory limit on the container's cgroup.

For devices whose kernel driver registers their memory with the controller as a region (amdgpu; Linux 6.14 or
newer, cgroup v2: Documentation/admin-guide/cgroup-v2.rst, "DMEM"): the vendor's discovery names the region in
the device's detail `dmem`. Beyond the limit the kernel moves the container's own buffers to system memory, or
refuses. Only the controller's files are here: on_cgroup.py has the life of a grant's limits.
"""

from __future__ import annotations

import os

from xpu_runtime.errors import ApplyError, DeviceError
from xpu_runtime.limits.backend import InForce
from xpu_runtime.limits.on_cgroup import Limits, OnCgroup
from xpu_runtime.linux import cgroups
from xpu_runtime.linux.numbers import is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.vendors.inventory import Device, Inventory

_MAX_BYTES = 64 << 10


class Dmem(OnCgroup):
    NAME = "dmem"
    EXPERIMENTAL = True
    HOLDER = "the kernel"

    def unavailable(self, inventory: Inventory, device: Device) -> str | None:
        region = device.detail("dmem")
        if not region:
            return f"the kernel has no region of {device.label}'s memory alone"
        mountpoint = cgroups.v2_mountpoint()
        if mountpoint is None:
            return "the kernel holds limits on cgroup v2 only, which is not mounted here"
        try:
            regions = read(mountpoint, "dmem.capacity")
        except ApplyError:
            return "the kernel has no dmem cgroup controller (Linux 6.14 or newer can)"
        return None if region in regions else f"the kernel's dmem.capacity does not list {region}"

    def limits(self, inventory: Inventory) -> Limits:
        return _Files()


BACKEND = Dmem()


class _Files(Limits):
    """The controller's files; a kernel that evicts memory above a new limit does so before `set` returns."""

    def set(self, device: Device, folder: str, limit: int | None) -> None:
        if limit is not None:
            _enable(folder)
        set_limit(folder, _region(device), limit)

    def read(self, device: Device, folder: str) -> InForce:
        limits, used = (read(folder, file) for file in ("dmem.max", "dmem.current"))
        region = _region(device)
        return InForce(limits.get(region), used.get(region, 0))


def _region(device: Device) -> str:
    region = device.detail("dmem")
    if not region:
        raise DeviceError(f"device {device.uuid} has no region any more", "see `xpu devices`")
    return region


def _enable(folder: str) -> None:
    """Has the controller in `folder`: each cgroup above must pass it on, as runc makes it do by itself."""
    mountpoint = cgroups.v2_mountpoint() or "/"
    if os.path.exists(os.path.join(folder, "dmem.max")):
        return
    above = mountpoint
    for name in os.path.relpath(folder, mountpoint).split(os.sep):
        control = os.path.join(above, "cgroup.subtree_control")
        try:
            _write(control, "+dmem")
        except OSError as error:
            raise ApplyError(
                f"cannot write +dmem to {control}: {error.strerror}", "enable the dmem controller there"
            ) from error
        above = os.path.join(above, name)


def set_limit(folder: str, region: str, limit: int | None) -> None:
    """Puts a limit in bytes (None: none) into force on a cgroup folder. ApplyError if it cannot be.

    The kernel accepts a limit below the use silently, and keeps the old one: so it is read again.
    """
    line = f"{region} {'max' if limit is None else limit}"
    path = os.path.join(folder, "dmem.max")
    try:
        _write(path, line)
    except OSError as error:
        raise ApplyError(f"cannot write {line!r} to {path}: {error.strerror}") from error
    there = read(folder, "dmem.max").get(region)
    if limit is not None and (there is None or there > limit):
        raise ApplyError(
            f"the kernel did not take {line!r} in {path}",
            "more than that is in use: end programs that use it, then repeat",
        )


def _write(path: str, text: str) -> None:
    """Writes into an existing file of the kernel's; makes none."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def read(folder: str, name: str) -> dict[str, int | None]:
    """A file of the controller: bytes by region, None for `max`. ApplyError where it cannot be read."""
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            lines = file.read(_MAX_BYTES).splitlines()
    except OSError as error:
        raise ApplyError(f"cannot read {path}: {error.strerror}") from error
    pairs = (line.rpartition(" ") for line in lines)
    return {region: int(value) if is_number(value) else None for region, _, value in pairs}
