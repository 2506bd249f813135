"""The vendors, and the devices that all of them find together.

A vendor is registered by its file or folder beside this one: nothing has a list of names. Importing one can
take long (NVML's binding alone costs more than a warm start): only discovery and people's commands come here.
"""

from __future__ import annotations

import importlib
import pkgutil
import time

from xpu_runtime import vendors
from xpu_runtime.errors import DeviceError
from xpu_runtime.vendors.inventory import Device, Driver, Inventory
from xpu_runtime.vendors.vendor import Sensors, Vendor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds until a driver that could not be asked is opened again, where others can be.
_AGAIN_S = 60.0


def every() -> list[Vendor]:
    """All vendors, those first whose devices have the lower indexes."""
    return _load([])


def _load(problems: list[DeviceError]) -> list[Vendor]:
    """As `every`; the fault of a module that cannot be loaded is added to `problems`."""
    found: list[Vendor] = []
    for each in pkgutil.iter_modules(vendors.__path__):
        if not each.name.isidentifier():
            continue
        try:
            module = importlib.import_module(f"{vendors.__name__}.{each.name}")
            found += [module.VENDOR] if hasattr(module, "VENDOR") else []
        except Exception as error:  # anybody's file may be wrong: the other vendors' devices stay
            text = f"{each.name} in {vendors.__path__[0]} cannot be loaded: {error!r}"
            problems.append(DeviceError(text, "mend or remove that file, or install the runtime again"))
    return sorted(found, key=lambda vendor: (vendor.order, vendor.name))


def discover(root: str, is_simulated: bool) -> Inventory:
    """The devices of all vendors below the driver root `root`.

    A driver that does not answer does not hide other vendors' devices: it is listed in `Inventory.problems`.
    DeviceError if there is no other.
    """
    devices: list[Device] = []
    drivers: list[Driver] = []
    stamps: dict[str, int | None] = {}
    missing: list[str] = []
    problems: list[DeviceError] = []
    for vendor in _load(problems):
        try:
            found = vendor.discover(root)
            numbered = _numbered(found.devices, len({device.gpu for device in devices}))
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


def _numbered(devices: tuple[Device, ...], first: int) -> list[Device]:
    """One vendor's devices, counted on from the GPUs of those before."""
    numbered = []
    for device in devices:
        gpu, colon, partition = device.index.partition(":")
        numbered.append(device.replace(index=f"{int(gpu) + first}{colon}{partition}"))
    return numbered


def memory_by_process(inventory: Inventory, problems: list[str]) -> dict[str, dict[int, int | None]]:
    """Reported usage: bytes of device memory by device UUID and process, of all vendors' drivers.

    A device without a report is left out, and None stands for a process without one. The fault of a driver
    that cannot be asked is added to `problems`; other drivers' answers stay.
    """
    by_device: dict[str, dict[int, int | None]] = {}
    for vendor, driver, theirs in _to_ask(inventory):
        try:
            by_device.update(vendor.memory_by_process(driver, theirs) or {})
        except Exception as error:  # as of discover
            problems.append(str(_of(vendor, error)))
    return by_device


def sensors(inventory: Inventory, problems: list[str]) -> dict[str, Sensors]:
    """The sensors of devices of all vendors, as `Vendor.sensors`; `problems` as of `memory_by_process`."""
    found: dict[str, Sensors] = {}
    for vendor, driver, theirs in _to_ask(inventory):
        try:
            found.update(vendor.sensors(driver, theirs))
        except Exception as error:  # as of discover
            problems.append(str(_of(vendor, error)))
    return found


def utilization(
    inventory: Inventory, *, whole: bool = False, tell: Callable[[str], None] = lambda _: None
) -> Callable[[], dict[str, dict[int, float]]]:
    """A function like `Vendor.utilization`, of all vendors' drivers together.

    A driver that cannot be asked does not hide the others' answers: `tell` gets the reason once, and the
    driver is opened again after _AGAIN_S. DeviceError, from both, if none can be asked.
    """
    sources = [_Source(vendor, driver, theirs, whole, tell) for vendor, driver, theirs in _to_ask(inventory)]

    def check() -> None:
        problems = [source.problem for source in sources if source.problem is not None]
        if problems and not any(source.is_open for source in sources):
            raise problems[0]

    def together() -> dict[str, dict[int, float]]:
        told = [source.read() for source in sources]
        check()
        return {uuid: figures for each in told for uuid, figures in each.items()}

    check()
    return together


def naming_processes(inventory: Inventory) -> frozenset[str]:
    """The devices, by UUID, whose drivers report the use of single processes."""
    asked = [theirs for vendor, _, theirs in _to_ask(inventory) if vendor.names_processes]
    return frozenset(device.uuid for theirs in asked for device in theirs)


class _Source:
    """One vendor's part of that."""

    def __init__(
        self,
        vendor: Vendor,
        driver: Driver,
        devices: tuple[Device, ...],
        whole: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._vendor, self._driver, self._devices, self._whole = vendor, driver, devices, whole
        self._tell = tell
        self._told = ""
        self._ask: Callable[[], dict[str, dict[int, float]]] | None = None
        self._again_at = 0.0
        #: Why it cannot be asked.
        self.problem: DeviceError | None = None
        self._open()

    @property
    def is_open(self) -> bool:
        """Whether there is a driver that reports."""
        return self._ask is not None

    def read(self) -> dict[str, dict[int, float]]:
        if self.problem is not None and time.monotonic() >= self._again_at:
            self._open()
            self._read()  # of a time before it was open
        return self._read()

    def _open(self) -> None:
        try:
            self._ask = self._vendor.utilization(self._driver, self._devices, whole=self._whole)
            self.problem = None
        except Exception as error:  # as of discover
            self._fail(error)

    def _read(self) -> dict[str, dict[int, float]]:
        try:
            return self._ask() if self._ask is not None else {}
        except Exception as error:
            self._fail(error)
            return {}

    def _fail(self, error: Exception) -> None:
        self._ask, self._again_at = None, time.monotonic() + _AGAIN_S
        self.problem = _of(self._vendor, error)
        if str(self.problem) != self._told:
            self._told = str(self.problem)
            self._tell(self._told)


def _to_ask(inventory: Inventory) -> list[tuple[Vendor, Driver, tuple[Device, ...]]]:
    """The drivers that have devices, with these, and their vendors."""
    vendors_by_name = {vendor.name: vendor for vendor in every()}
    found = []
    for driver in inventory.drivers:
        theirs = tuple(device for device in inventory.devices if device.vendor == driver.vendor)
        if theirs and driver.vendor in vendors_by_name:
            found.append((vendors_by_name[driver.vendor], driver, theirs))
    return found


def _of(vendor: Vendor, error: Exception) -> DeviceError:
    """The error of a vendor's driver, or of its file."""
    return error if isinstance(error, DeviceError) else DeviceError(f"asking {vendor.name} failed: {error!r}")
