"""Inventories of a node, for tests that need no driver."""

from __future__ import annotations

from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.vendors.inventory import Device, Driver, Inventory, Library

#: Nothing holds a limit on made-up devices.
UNENFORCED = DEFAULTS.replace(enforcement_allow_unenforced=("memory", "cores"))


def nvidia(version: str, *libraries: Library, limits: bool = False) -> Driver:
    """An NVIDIA driver of that version; `limits`: it holds memory limits on cgroups."""
    return Driver(
        "nvidia",
        version,
        facts=(("cuda", "13.0"),),
        libraries=libraries,
        backends=("driver", "library"),
        interposed=("libcuda.so", "libnvidia-ml.so"),
        details=(("nvml", "/nvml"), *([("memory_limits", "yes")] if limits else [])),
    )


def node(driver: Driver, *devices: Device) -> Inventory:
    """A node with that driver and those devices."""
    return Inventory("/", True, devices, (driver,), ())


def t4s(*gib: int, faults: dict[int, str] | None = None) -> Inventory:
    """A node with cards of these sizes, some of them with a fault."""
    devices = (
        Device(str(n), f"GPU-{n}", "T4", size << 30, (), "nvidia", fault=(faults or {}).get(n))
        for n, size in enumerate(gib)
    )
    return node(nvidia("615.1"), *devices)
