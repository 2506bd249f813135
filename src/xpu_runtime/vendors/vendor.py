"""What a vendor's file must bring: the one protocol through which the rest of the runtime meets GPUs.

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
    """What a vendor has below one driver root."""

    devices: tuple[Device, ...] = ()
    #: None where the driver is not there.
    driver: Driver | None = None
    #: Where there is no device, why: a clause for people, as "no such driver: X is not in Y".
    missing: str = ""
    #: What this was made from, as `inventory.stamp` has it: a change of any outdates a cached inventory.
    stamps: tuple[tuple[str, int | None], ...] = ()


class Sensors(Value):
    """What a device tells of itself now; None: it does not."""

    #: Of the device's memory, whoever has it; bytes.
    memory_used_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


#: In the place of a process, in what `Vendor.utilization` tells: the device as a whole.
WHOLE = 0


class Vendor:
    """One vendor of devices. Its methods may take long, and are never called on a container's usual start."""

    #: As in `Device.vendor`, and in XPU_REQUIRE=vendor=NAME.
    name: str
    #: Whose devices have the lower indexes, and what a request gets that does not say from whom.
    order: int
    #: Whether no card of it has been tried yet: docs/hardware.md, "Experimental".
    experimental = False
    #: Whether `utilization` tells of single processes.
    names_processes = True

    def discover(self, root: str) -> Discovered:
        """What there is below the driver root `root`; `Device.index` counts from 0 in each vendor.

        DeviceError where the driver is there and does not answer.
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
        """A function that tells which part of each device's time (0 to 1) each process used since its last
        call, by device UUID and the host's process number; None where the driver does not tell it. With
        `whole`, also by WHOLE: the part in which any process used it, by the driver's last sample.

        It keeps the driver open. A process without a sample is left out, and a device of which nothing can be
        told. DeviceError, from both, if the driver cannot be asked.
        """
        return None

    def sensors(self, driver: Driver, devices: tuple[Device, ...]) -> dict[str, Sensors]:
        """What devices tell of themselves, by UUID; one that tells nothing is left out. DeviceError if the
        driver cannot be asked."""
        return {}

    def examine(self, root: str, driver: Driver | None) -> list[Finding]:
        """What `xpu doctor` should know besides what `discover` tells. `driver`: what that told of it; None
        where it is not there or does not answer."""
        return []
