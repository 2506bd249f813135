"""NVIDIA: GPUs and their MIG devices, asked of NVML (nvml.py), and the driver's files for containers.

search.py knows the folders of the driver's libraries, driver_files.py the files, examine.py has the findings
for `xpu doctor`. Never imported on a warm start: the inventory has all facts for a container.
"""

from __future__ import annotations

from xpu_runtime.finding import Finding
from xpu_runtime.vendors.inventory import Device, Driver
from xpu_runtime.vendors.nvidia import examine, nvml
from xpu_runtime.vendors.vendor import Discovered, Sensors, Vendor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Nvidia(Vendor):
    """NVIDIA, with its driver from R470 on."""

    name = nvml.NAME
    order = 0

    def discover(self, root: str) -> Discovered:
        return nvml.discover(root)

    def memory_by_process(
        self, driver: Driver, devices: tuple[Device, ...]
    ) -> dict[str, dict[int, int | None]]:
        return nvml.memory_by_process(driver, devices)

    def utilization(
        self, driver: Driver, devices: tuple[Device, ...], *, whole: bool = False
    ) -> Callable[[], dict[str, dict[int, float]]]:
        return nvml.Utilization(driver, devices, whole)

    def sensors(self, driver: Driver, devices: tuple[Device, ...]) -> dict[str, Sensors]:
        return nvml.sensors(driver, devices)

    def examine(self, root: str, driver: Driver | None) -> list[Finding]:
        return examine.examine(root, answers=driver is not None)


VENDOR = Nvidia()
