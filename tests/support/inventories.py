"""Inventories of a node, for tests that need no driver."""

from __future__ import annotations

from xpu_runtime.vendors.inventory import Device, Driver, Inventory, Library


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
