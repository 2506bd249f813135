"""The configuration file: whether it is valid, and its devices are there."""

from __future__ import annotations

import os
from collections.abc import Iterator

from xpu_runtime import finding, paths
from xpu_runtime.doctor.machine import Machine
from xpu_runtime.finding import Finding
from xpu_runtime.vendors import inventory as node

ORDER = 10
_CHECK = "configuration"


def look(machine: Machine) -> Iterator[Finding]:
    path = paths.config_file()
    for complaint in machine.complaints:
        todo = "mend it (`xpu config check`): until then no container gets an XPU"
        yield finding.problem(_CHECK, complaint, todo)
    if machine.inventory is not None and machine.inventory.devices:
        for clause in node.unlisted(machine.settings.policy_devices, machine.inventory):
            yield finding.problem(_CHECK, f"{path}: {clause}", "name devices that `xpu devices` shows")
    if not machine.complaints:
        there = os.path.lexists(path)
        yield finding.ok(_CHECK, path if there else f"{path} is not there: the defaults apply")
