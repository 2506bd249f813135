"""The device nodes on the host, and the links by which systemd knows them.

The hook makes nodes in containers by the devices' numbers, so a wrong node on the host stops only the host's
own programs. But it is a sign that the numbers may be wrong.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from xpu_runtime import finding
from xpu_runtime.doctor.machine import Machine, in_root, listed
from xpu_runtime.finding import Finding
from xpu_runtime.vendors.inventory import Inventory, Node

ORDER = 30
_CHECK = "nodes"
#: Nodes that computing needs; those for a screen are made only where something shows pictures.
_NEEDED = ("", "compute")


def look(machine: Machine) -> Iterator[Finding]:
    inventory = machine.inventory
    if inventory is None or not inventory.devices:
        return
    nodes = needed(inventory)
    wrong = [each for node in nodes for each in _wrong(inventory.root, node)]
    yield from wrong
    if not wrong:
        yield finding.ok(_CHECK, f"{len(nodes)} in {in_root(inventory.root, '/dev')}")
    if os.path.isdir("/run/systemd/system"):  # sd_booted(3)
        yield from links(machine, "/dev/char")


def needed(inventory: Inventory) -> list[Node]:
    """The nodes of all devices, each once."""
    found = [node for driver in inventory.drivers for kind, node in driver.common_nodes if kind in _NEEDED]
    found += [node for device in inventory.devices for node in device.nodes]
    return list(dict.fromkeys(found))


def _wrong(root: str, node: Node) -> Iterator[Finding]:
    path = in_root(root, node.path)
    make = f"mknod -m 666 {path} c {node.major} {node.minor}"
    try:
        there = os.stat(path)
    except OSError as error:
        why = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        yield finding.problem(
            _CHECK, f"{path} {why}", f"{make} (or what the driver has: nvidia-modprobe, udev)"
        )
        return
    if not stat.S_ISCHR(there.st_mode):
        yield finding.problem(_CHECK, f"{path} is not a character device", f"rm -r {path} && {make}")
    elif there.st_rdev != os.makedev(node.major, node.minor):
        numbers = f"{os.major(there.st_rdev)}:{os.minor(there.st_rdev)}, not {node.major}:{node.minor}"
        yield finding.problem(_CHECK, f"{path} has the numbers {numbers}", f"rm {path} && {make}")
    elif not there.st_mode & stat.S_IRGRP:
        mode = f"{stat.S_IMODE(there.st_mode):04o}"
        text = (
            f"{path} has mode {mode}: on the host only root can open it (containers get nodes of their own)"
        )
        yield finding.warning(_CHECK, text, f"chmod 666 {path}, if other users of the host are to use it")


def links(machine: Machine, folder: str) -> Iterator[Finding]:
    """Problems of the links in `folder` (/dev/char) for devices of running containers.

    systemd drops the rule of a device without such a link at the next `daemon-reload`. Starts make the link,
    so that a missing one matters only for containers that already run.
    """
    inventory = machine.inventory
    assert inventory is not None
    granted = {slice_.device_uuid for grant in machine.grants or () for slice_ in grant.slices}
    held = [device for device in inventory.devices if device.uuid in granted]
    if not held:
        return
    missing = []
    for node in needed(inventory.replace(devices=tuple(held))):
        link = f"{folder}/{node.major}:{node.minor}"
        try:
            is_right = os.stat(link).st_rdev == os.makedev(node.major, node.minor)
        except OSError:
            is_right = False
        if not is_right:
            missing.append((link, in_root(inventory.root, node.path)))
    if missing:
        text = (
            f"systemd does not find {listed([link for link, _ in missing])}: containers that run under its "
        )
        text += "cgroups lose these devices at the next `systemctl daemon-reload`"
        todo = "; ".join(f"ln -sfn {target} {link}" for link, target in missing)
        yield finding.problem(_CHECK, text, todo)
