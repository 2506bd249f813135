"""The `driver` backend: the GPU's own kernel driver holds a memory limit on the container's cgroup.

NVIDIA from R615 on: `nvmlDeviceSetMemoryLimits_v1` on a cgroup v2 folder; beyond the limit an allocation gets
CUDA_ERROR_OUT_OF_MEMORY. Only NVML's calls are here: on_cgroup.py has the life of a grant's limits.
"""

from __future__ import annotations

import os

from xpu_runtime.errors import DeviceError
from xpu_runtime.limits.backend import InForce
from xpu_runtime.limits.on_cgroup import Limits, OnCgroup
from xpu_runtime.linux import cgroups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.linux.library import Library
    from xpu_runtime.vendors.inventory import Device, Inventory

_NVML_NOT_FOUND = 6
#: NVML_DEVICE_MEMORY_LIMIT_MAX: no limit.
_NO_LIMIT = (1 << 64) - 1


class Driver(OnCgroup):
    NAME = "driver"
    EXPERIMENTAL = True
    HOLDER = "the driver"
    ASKS_DRIVER = True

    def unavailable(self, inventory: Inventory, device: Device) -> str | None:
        if device.is_partition:
            return "the driver holds no limit on a MIG device (it is a hardware slice: ask for all of it)"
        known = inventory.driver(device.vendor)
        if not known.detail("memory_limits"):
            return f"driver {known.version} cannot hold a memory limit (R615 or newer can)"
        if cgroups.v2_mountpoint() is None:
            return "the driver holds limits on cgroup v2 only, which is not mounted here"
        return None

    def limits(self, inventory: Inventory) -> Limits:
        return Nvml(inventory)


BACKEND = Driver()


class Nvml(Limits):
    """The few NVML calls that limits need, without nvidia-ml-py, whose import alone takes 40 ms."""

    def __init__(self, inventory: Inventory) -> None:
        self._path = inventory.driver("nvidia").detail("nvml")
        self._library: Library | None = None

    def __enter__(self) -> Nvml:
        from xpu_runtime.linux.library import Library  # most starts that come here hold no limit by it

        if not self._path:
            raise DeviceError("the driver is gone, with the limits that it held", "see `xpu devices`")
        try:
            self._library = Library(self._path)
        except OSError as error:
            raise DeviceError(f"cannot load {self._path}: {error}") from error
        self._check(self._call("nvmlInit_v2"), "nvmlInit_v2")
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

    def set(self, device: Device, folder: str, limit: int | None) -> None:
        """nvmlDeviceSetMemoryLimits_v1: a hard limit; the soft one is always 0."""
        name = bytearray(os.fsencode(folder) + b"\0")
        record = _record(name, _NO_LIMIT if limit is None else limit)
        status = self._call("nvmlDeviceSetMemoryLimits_v1", self._handle(device.uuid), record)
        if limit is None and status == _NVML_NOT_FOUND:
            return  # the cgroup is gone, and its limit with it
        self._check(status, f"setting a memory limit of device {device.uuid} on {folder}")

    def read(self, device: Device, folder: str) -> InForce:
        """nvmlDeviceGetMemoryLimits_v1."""
        name = bytearray(os.fsencode(folder) + b"\0")
        record = _record(name, 0) + bytearray(8)
        status = self._call("nvmlDeviceGetMemoryLimits_v1", self._handle(device.uuid), record)
        self._check(status, f"reading the memory limit of device {device.uuid} on {folder}")
        hard, used = (int.from_bytes(record[at : at + 8], "little") for at in (16, 24))
        return InForce(None if hard == _NO_LIMIT else hard, used)


def _record(name: bytearray, hard: int) -> bytearray:
    """struct { char *nameSpace; unsigned long long softLimit, hardLimit; }"""
    from xpu_runtime.linux.syscalls import address_of

    return bytearray(b"".join(value.to_bytes(8, "little") for value in (address_of(name), 0, hard)))
