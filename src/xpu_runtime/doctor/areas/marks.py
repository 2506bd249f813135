"""Marks of an operator (`xpu drain`, `xpu reserve`) that do not work as they were meant.

`xpu devices` shows the marks of present devices, but not those of a device that has left; these come into
force when it is back.
"""

from __future__ import annotations

from collections.abc import Iterator

from xpu_runtime import finding
from xpu_runtime.doctor.machine import Machine
from xpu_runtime.errors import ConfigError
from xpu_runtime.finding import Finding, printable
from xpu_runtime.vendors import marks
from xpu_runtime.vendors.inventory import Inventory

ORDER = 35
_CHECK = "marks"


def look(machine: Machine) -> Iterator[Finding]:
    try:
        told = marks.read()
    except ConfigError as error:
        yield finding.problem(_CHECK, f"{error.what}: no container gets an XPU", error.todo)
        return
    wrong = [*_for_nobody(told), *_gone(told, machine.inventory), *_all_drained(told, machine.inventory)]
    yield from wrong
    if (told.drained or told.reserved) and not wrong:
        yield finding.ok(_CHECK, f"{len(told.drained)} drained, {len(told.reserved)} reserved: `xpu devices`")


def _for_nobody(told: marks.Marks) -> Iterator[Finding]:
    for uuid in (printable(uuid) for uuid, found in told.reserved.items() if not found.name):
        text = f"{uuid} is reserved, and its file does not tell for whom: no container gets it"
        yield finding.problem(_CHECK, text, f"xpu reserve {uuid} --for NAME, or xpu unreserve {uuid}")


def _all_drained(told: marks.Marks, inventory: Inventory | None) -> Iterator[Finding]:
    devices = inventory.devices if inventory is not None else ()
    if devices and all(told.why_drained(device) is not None for device in devices):
        text = "all devices are drained: no container gets a slice"
        yield finding.warning(_CHECK, text, "`xpu devices` says why; xpu undrain DEVICE")


def _gone(told: marks.Marks, inventory: Inventory | None) -> Iterator[Finding]:
    if inventory is None:
        return
    here = {name for device in inventory.devices for name in (device.uuid, device.parent)}
    for mark, undo, uuids in (("drained", "undrain", told.drained), ("reserved", "unreserve", told.reserved)):
        for uuid in (printable(uuid) for uuid in sorted(set(uuids) - here)):
            text = f"{uuid} is {mark}, and not on this node"
            yield finding.warning(_CHECK, text, f"xpu {undo} {uuid}, if it does not come back")
