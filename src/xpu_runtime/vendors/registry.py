"""The vendors that there are, and what all of them find together.

A vendor is registered by its file or folder beside this one: nothing has a list of names. Importing one can
take long (NVML's binding alone costs more than a warm start): only discovery and people's commands come here.
"""

from __future__ import annotations

import importlib
import pkgutil

from xpu_runtime import vendors
from xpu_runtime.errors import DeviceError
from xpu_runtime.vendors.inventory import Device, Driver, Inventory
from xpu_runtime.vendors.vendor import Sensors, Vendor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def every() -> list[Vendor]:
    """All vendors, those first whose devices have the lower indexes."""
    return _load([])


def _load(problems: list[DeviceError]) -> list[Vendor]:
    """As `every`; what is wrong with a module that cannot be loaded is added to `problems`."""
    found: list[Vendor] = []
    for each in pkgutil.iter_modules(vendors.__path__):
        if not each.name.isidentifier():
            continue
        try:
            module = importlib.import_module(f"{vendors.__name__}.{each.name}")
            found += [module.VENDOR] if hasattr(module, "VENDOR") else []
        except Exception as error:  # whatever somebody has put there: the other vendors' devices stay
            text = f"{each.name} in {vendors.__path__[0]} cannot be loaded: {error!r}"
            problems.append(DeviceError(text, "mend or remove that file, or install the runtime again"))
    return sorted(found, key=lambda vendor: (vendor.order, vendor.name))


def discover(root: str, is_simulated: bool) -> Inventory:
    """What all vendors find below the driver root `root`.

    A driver that does not answer takes no other vendor's devices away: `Inventory.problems` tells of it.
    DeviceError where there is no other.
    """
    devices: list[Device] = []
    drivers: list[Driver] = []
    stamps: dict[str, int | None] = {}
    missing: list[str] = []
    problems: list[DeviceError] = []
    for vendor in _load(problems):
        try:
            found = vendor.discover(root)
            numbered = _numbered(found.devices, len({_gpu(device) for device in devices}))
        except DeviceError as error:
            problems.append(error)
            continue
        except Exception as error:  # a fault of one vendor's file: the others' devices stay
            problems.append(DeviceError(f"looking for {vendor.name} devices failed: {error!r}"))
            continue
        devices += numbered
        drivers += [found.driver] if found.driver else []
        stamps.update(found.stamps)
        missing += [found.missing] if found.missing else []
    if problems and not devices:
        raise problems[0]
    return Inventory(
        root,
        is_simulated,
        tuple(devices),
        tuple(drivers),
        tuple(stamps.items()),
        "" if devices else "; ".join(missing),
        tuple(map(str, problems)),
    )


def _gpu(device: Device) -> str:
    """The index of the GPU that a device is, or is a partition of."""
    return device.index.partition(":")[0]


def _numbered(devices: tuple[Device, ...], first: int) -> list[Device]:
    """One vendor's devices, counted on from the GPUs of those before."""
    numbered = []
    for device in devices:
        gpu, colon, partition = device.index.partition(":")
        numbered.append(device.replace(index=f"{int(gpu) + first}{colon}{partition}"))
    return numbered


def memory_by_process(inventory: Inventory) -> dict[str, dict[int, int | None]]:
    """Reported usage: bytes of device memory by device UUID and process, of all vendors' drivers.

    A device of which no driver tells it is left out, and None stands for a process of which none does.
    DeviceError if a driver cannot be asked.
    """
    by_device: dict[str, dict[int, int | None]] = {}
    vendors_by_name = {vendor.name: vendor for vendor in every()}
    for driver in inventory.drivers:
        theirs = tuple(device for device in inventory.devices if device.vendor == driver.vendor)
        if theirs and driver.vendor in vendors_by_name:
            by_device.update(vendors_by_name[driver.vendor].memory_by_process(driver, theirs) or {})
    return by_device


def sensors(inventory: Inventory) -> dict[str, Sensors]:
    """What devices tell of themselves, as `Vendor.sensors`, of all vendors; DeviceError."""
    vendors_by_name = {vendor.name: vendor for vendor in every()}
    found: dict[str, Sensors] = {}
    for driver in inventory.drivers:
        theirs = tuple(device for device in inventory.devices if device.vendor == driver.vendor)
        if theirs and driver.vendor in vendors_by_name:
            found.update(vendors_by_name[driver.vendor].sensors(driver, theirs))
    return found


def utilization(inventory: Inventory, *, whole: bool = False) -> Callable[[], dict[str, dict[int, float]]]:
    """A function as `Vendor.utilization` has it, of all vendors' drivers together; DeviceError."""
    vendors_by_name = {vendor.name: vendor for vendor in every()}
    sources = []
    for driver in inventory.drivers:
        theirs = tuple(device for device in inventory.devices if device.vendor == driver.vendor)
        if theirs and driver.vendor in vendors_by_name:
            source = vendors_by_name[driver.vendor].utilization(driver, theirs, whole=whole)
            sources += [source] if source else []

    def together() -> dict[str, dict[int, float]]:
        return {uuid: figures for source in sources for uuid, figures in source().items()}

    return together
