"""The protocol of vendors: the rest of the runtime reaches GPUs only through it.

A vendor is a module or a package beside this file that names an instance of its class `VENDOR`, and is
registered by being there (registry.py). It finds its devices below a driver root and describes all that a
container needs of them in values; it grants, mounts and limits nothing. The page
docs/developers/add-a-vendor.md goes through it.
"""

from __future__ import annotations

from xpu_runtime.finding import Finding
from xpu_runtime.value import Value
from xpu_runtime.vendors.inventory import Device, Driver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Discovered(Value):
    """A vendor's driver and devices below one driver root."""

    devices: tuple[Device, ...] = ()
    #: None where the driver is not there.
    driver: Driver | None = None
    #: Where there is no device, why: a clause for people, as "no such driver: X is not in Y".
    missing: str = ""
    #: The files that this was made from, as `inventory.stamp` has them: a change of any outdates a cached
    #: inventory.
    stamps: tuple[tuple[str, int | None], ...] = ()


class Sensors(Value):
    """A device's sensors now; None: it has no such reading."""

    #: Memory in use by all processes, in bytes.
    memory_used_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


#: Stands for all processes of a device in `Vendor.utilization`.
WHOLE = 0


class Vendor:
    """One vendor of devices. Its methods may take long, and are never called on a container's usual start."""

    #: As in `Device.vendor`, and in XPU_REQUIRE=vendor=NAME.
    name: str
    #: The order of vendors: the first one's devices have the lower indexes, and serve requests that name no
    #: vendor.
    order: int
    #: Whether none of its cards has been tried yet: docs/hardware.md, "Experimental".
    experimental = False
    #: Whether `utilization` reports single processes.
    names_processes = True

    def discover(self, root: str) -> Discovered:
        """The vendor's devices below the driver root `root`; `Device.index` counts from 0 in each vendor.

        DeviceError if the driver is there and does not answer.
        """
        raise NotImplementedError

    def memory_by_process(
        self, driver: Driver, devices: tuple[Device, ...]
    ) -> dict[str, dict[int, int | None]] | None:
        """Reported usage: bytes of device memory by device UUID and process, by the host's numbers.

        None where the driver does not tell it, of all devices or of one process; a device that does not name
        its processes is left out. DeviceError if the driver cannot be asked.
        """
        return None

    def utilization(
        self, driver: Driver, devices: tuple[Device, ...], *, whole: bool = False
    ) -> Callable[[], dict[str, dict[int, float]]] | None:
        """A function that returns the part of each device's time (0 to 1) that each process used since its
        last call, by device UUID and the host's process number; None if the driver does not report it. With
        `whole`, also by WHOLE: the part in which any process used it, by the driver's last sample.

        It keeps the driver open. Processes without a sample are left out, and so are devices without any.
        DeviceError, from both, if the driver cannot be asked.
        """
        return None

    def sensors(self, driver: Driver, devices: tuple[Device, ...]) -> dict[str, Sensors]:
        """Sensors of devices, by UUID; a device without sensors is left out. DeviceError if the driver cannot
        be asked."""
        return {}

    def examine(self, root: str, driver: Driver | None) -> list[Finding]:
        """Findings for `xpu doctor` beyond those of `discover`. `driver`: the driver that `discover` found;
        None if there is none, or if it does not answer."""
        return []
