"""The drivers of the devices: found, loaded, of one version, and answering. Vendors add their own
findings."""

from __future__ import annotations

from collections.abc import Iterator

from xpu_runtime import finding
from xpu_runtime.doctor.machine import Machine
from xpu_runtime.finding import Finding
from xpu_runtime.vendors import inventory as node
from xpu_runtime.vendors import registry

ORDER = 20
_CHECK = "driver"


def look(machine: Machine) -> Iterator[Finding]:
    inventory = machine.inventory
    told = {driver.vendor: driver for driver in inventory.drivers} if inventory is not None else {}
    special = []
    for vendor in registry.every():
        special += vendor.examine(machine.driver_root, told.get(vendor.name))
    yield from special
    explained = any(each.state == finding.PROBLEM for each in special)
    if inventory is None:
        if not explained:
            yield finding.problem(_CHECK, machine.failure, machine.failure_todo)
        return
    for text in inventory.problems:
        yield finding.problem(_CHECK, text)
    for device in inventory.devices:
        if device.fault is not None:
            text = f"{device.label} ({device.uuid}) is not healthy and is not granted: {device.fault}"
            yield finding.problem(_CHECK, text, "see dmesg, reset the device or reboot")
    if not inventory.devices and not explained:
        why, todo = node.why_empty_and_todo(inventory)
        yield finding.problem(_CHECK, why, todo)
    for driver in inventory.drivers:
        amount = sum(device.vendor == driver.vendor for device in inventory.devices)
        kind = "simulated, " if inventory.simulated else ""
        where = f"{kind}in {driver.folder or inventory.root}, {amount} device(s)"
        yield finding.ok(_CHECK, f"{driver.vendor}: {driver.summary} ({where})")
