"""The `driver` backend: the GPU's own kernel driver holds a memory limit on the container's cgroup.

NVIDIA from R615 on: `nvmlDeviceSetMemoryLimits_v1` on a cgroup v2 folder; beyond the limit an
allocation gets CUDA_ERROR_OUT_OF_MEMORY. amdgpu: the cgroup's `dmem.max` (Documentation/admin-guide/
cgroup-v2.rst, "DMEM"). Both are hard, but for a container that could write to its own cgroup (see
can_lift_limits in oci/spec.py).
"""

from __future__ import annotations

import os

from xpu_runtime.devices.inventory import Device, Inventory
from xpu_runtime.errors import ApplyError, DeviceError
from xpu_runtime.linux import cgroups
from xpu_runtime.linux.library import Library
from xpu_runtime.linux.syscalls import address_of
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "driver"
STRENGTH = "hard"

_NVML_NOT_FOUND = 6
#: NVML_DEVICE_MEMORY_LIMIT_MAX: no limit.
_NO_LIMIT = (1 << 64) - 1


class Limit(Value):
    """A memory limit in force; all in bytes, `limit` None for none."""

    limit: int | None
    used: int


def unavailable(found: Inventory, device: Device) -> str | None:
    """Why this backend cannot hold a memory limit on `device`; None if it can."""
    if device.is_mig:
        return "the driver holds no limit on a MIG device (it is a hardware slice: ask for all of it)"
    if device.vendor == "amdgpu":
        return None if _dmem_mounted() else "the kernel has no dmem cgroup controller (6.14 or newer)"
    if device.vendor != "nvidia":
        return f"no driver limit is known for {device.vendor} devices"
    if not found.memory_limits:
        return f"driver {found.driver_version} cannot hold a memory limit (R615 or newer can)"
    if _v2_mountpoint() is None:
        return "the driver holds limits on cgroup v2 only, which is not mounted here"
    return None


def _v2_mountpoint() -> str | None:
    return next((each.mountpoint for each in cgroups.mounted() if each.version == 2), None)


def _dmem_mounted() -> bool:
    mountpoint = _v2_mountpoint()
    if mountpoint is None:
        return False
    try:
        with open(os.path.join(mountpoint, "cgroup.controllers")) as file:
            return "dmem" in file.read().split()
    except OSError:
        return False


def set_limit(
    found: Inventory,
    device: Device,
    folder: str,
    limit: int | None,
    unless: Callable[[], bool] = lambda: False,
) -> None:
    """Sets (None: lifts) the limit in bytes of the cgroup `folder` on `device`; ApplyError if that fails.

    Nothing is done if `unless` says so, which is asked last: starting NVML takes up to seconds.
    """
    if device.vendor == "amdgpu":
        if not unless():
            _set_dmem(device, folder, limit)
        return
    with Nvml(found) as nvml:
        if not unless():
            nvml.set_memory_limit(device.uuid, folder, limit)


def _set_dmem(device: Device, folder: str, limit: int | None) -> None:
    # An amdgpu device is named by its dmem region, e.g. drm/0000:03:00.0/vram0.
    line = f"{device.uuid} {'max' if limit is None else limit}"
    try:
        with open(os.path.join(folder, "dmem.max"), "w") as file:
            file.write(line)
    except OSError as error:
        raise ApplyError(f"cannot write {line!r} to {folder}/dmem.max: {error.strerror}") from error


class Nvml:
    """The few NVML calls that limits need, without nvidia-ml-py, whose import alone takes 40 ms."""

    def __init__(self, found: Inventory) -> None:
        self._path = found.nvml
        self._library: Library | None = None

    def __enter__(self) -> Nvml:
        try:
            self._library = Library(self._path)
        except OSError as error:
            raise DeviceError(f"cannot load {self._path}: {error}") from error
        self._check(self._library.call("nvmlInit_v2"), "nvmlInit_v2")
        return self

    def __exit__(self, *_: object) -> None:
        if self._library is not None:
            self._library.call("nvmlShutdown")
            self._library = None

    def _call(self, function: str, *arguments: int | bytes | bytearray) -> int:
        assert self._library is not None
        try:
            return self._library.call(function, *arguments)
        except AttributeError as error:
            raise DeviceError(
                f"{self._path} has no {function}", "limits need driver R615 or newer"
            ) from error

    def _check(self, status: int, what: str) -> None:
        if status:
            assert self._library is not None
            raise DeviceError(f"{what} failed: {self._library.text('nvmlErrorString', status)} ({status})")

    def _handle(self, uuid: str) -> int:
        place = bytearray(8)
        self._check(
            self._call("nvmlDeviceGetHandleByUUID", uuid.encode() + b"\0", place),
            f"finding device {uuid}",
        )
        return int.from_bytes(place, "little")

    def set_memory_limit(self, uuid: str, folder: str, limit: int | None) -> None:
        """nvmlDeviceSetMemoryLimits_v1: a hard limit in bytes (None: none), the soft one always 0."""
        name = bytearray(os.fsencode(folder) + b"\0")
        record = _record(name, 0, _NO_LIMIT if limit is None else limit)
        status = self._call("nvmlDeviceSetMemoryLimits_v1", self._handle(uuid), record)
        if limit is None and status == _NVML_NOT_FOUND:
            return  # the cgroup is gone, and its limit with it
        self._check(status, f"setting a memory limit of device {uuid} on {folder}")

    def memory_limit(self, uuid: str, folder: str) -> Limit:
        """nvmlDeviceGetMemoryLimits_v1."""
        name = bytearray(os.fsencode(folder) + b"\0")
        record = _record(name, 0, 0) + bytearray(8)
        status = self._call("nvmlDeviceGetMemoryLimits_v1", self._handle(uuid), record)
        self._check(status, f"reading the memory limit of device {uuid} on {folder}")
        hard, used = (int.from_bytes(record[at : at + 8], "little") for at in (16, 24))
        return Limit(None if hard == _NO_LIMIT else hard, used)


def _record(name: bytearray, soft: int, hard: int) -> bytearray:
    """struct { char *nameSpace; unsigned long long softLimit, hardLimit; }"""
    return bytearray(b"".join(value.to_bytes(8, "little") for value in (address_of(name), soft, hard)))
