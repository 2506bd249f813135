"""A node's devices, and each vendor's driver with its files, as plain values.

Made by the vendors (vendor.py), kept from one container's start to the next (discovery.py), and read by
everything that grants, delivers and limits. `details` has facts that only a vendor's own module and backends
understand. This module knows of vendors only the words that users read and type: the prefixes of UUIDs, and
the names of partitions.
"""

from __future__ import annotations

import os

from xpu_runtime.request.request import UUIDS
from xpu_runtime.value import Value

#: Least length of a UUID's start, with its prefix (UUIDS), that can stand for the UUID.
SHORTEST_START = 8


class Node(Value):
    """A device node: its path in the container, and its numbers."""

    path: str
    major: int
    minor: int


class Device(Value):
    """A GPU, or one hardware partition of it (`parent` is then the GPU's UUID, and `index` is "0:1")."""

    index: str
    uuid: str
    name: str
    memory_bytes: int
    nodes: tuple[Node, ...]
    vendor: str
    parent: str | None = None
    #: None: healthy; otherwise its fault.
    fault: str | None = None
    #: Facts for XPU_REQUIRE besides its driver's, by subject.
    facts: tuple[tuple[str, str], ...] = ()
    #: Facts for the backends of its driver.
    details: tuple[tuple[str, str], ...] = ()

    @property
    def is_partition(self) -> bool:
        """Whether it is a hardware partition of `parent`."""
        return self.parent is not None

    @property
    def gpu(self) -> str:
        """The index of the GPU that it is, or is a partition of."""
        return self.index.partition(":")[0]

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"GPU {self.index}" if not self.is_partition else f"MIG device {self.index}"

    def detail(self, name: str) -> str:
        """A fact for the driver's backends; "" if there is none."""
        return _value_of(self.details, name)


class Library(Value):
    """A driver file to mount: its path on the host, and its name in a container.

    `kind` is `lib` (goes to the container's library folder under `name`, with `links` beside it),
    `lib32`, `bin`, `file` (same path as in the driver root) or `socket` (a folder or socket, ditto). `aside`
    is a library, and `page` and `shared` are files, whose `name` is a path; a container can write `shared`.
    """

    kind: str
    source: str
    name: str
    capability: str
    links: tuple[str, ...] = ()


class Driver(Value):
    """A vendor's driver on this node, and its files for a container with one of its devices."""

    vendor: str
    #: As the driver reports it; empty if it reports none.
    version: str = ""
    #: One line for people.
    summary: str = ""
    #: Facts for XPU_REQUIRE about every device of this driver, by subject, besides `driver` and `vendor`.
    facts: tuple[tuple[str, str], ...] = ()
    #: Nodes that every container with a device gets, by capability.
    common_nodes: tuple[tuple[str, Node], ...] = ()
    libraries: tuple[Library, ...] = ()
    #: The backends that know how to hold limits with this driver.
    backends: tuple[str, ...] = ()
    #: The libraries that an interposer can take the place of, by their names up to ".so".
    interposed: tuple[str, ...] = ()
    #: Facts for those backends.
    details: tuple[tuple[str, str], ...] = ()
    #: The folder of its libraries on the host; "" if it needs none.
    folder: str = ""
    #: Whether only the caller's LD_LIBRARY_PATH led there: an engine's processes do not find it.
    by_caller: bool = False

    def detail(self, name: str) -> str:
        """A fact for its backends; "" if there is none."""
        return _value_of(self.details, name)


class Inventory(Value):
    """All of a node, at one time."""

    root: str
    simulated: bool
    devices: tuple[Device, ...]
    #: One for each vendor whose driver is there, in the order of their devices.
    drivers: tuple[Driver, ...]
    #: (path, st_mtime_ns, or None for a missing file) of the files that this was made from.
    stamps: tuple[tuple[str, int | None], ...]
    #: Why there is no device, if there is none.
    missing: str = ""
    #: Drivers that are there and did not answer, as errors for people.
    problems: tuple[str, ...] = ()

    def driver(self, vendor: str) -> Driver:
        """The driver of `vendor`; if there is none, one that can do nothing."""
        return next((driver for driver in self.drivers if driver.vendor == vendor), Driver(vendor))

    def facts(self, device: Device) -> dict[str, str]:
        """The facts about `device` for XPU_REQUIRE, by subject."""
        driver = self.driver(device.vendor)
        facts = (*driver.facts, ("driver", driver.version), *device.facts, ("vendor", device.vendor))
        return {subject: value for subject, value in facts if value}


def stamp(path: str) -> tuple[str, int | None]:
    """A mark that changes with the file at `path`."""
    try:
        return path, os.stat(path).st_mtime_ns
    except OSError:
        return path, None


def _value_of(pairs: tuple[tuple[str, str], ...], name: str) -> str:
    return next((value for known, value in pairs if known == name), "")


def find(inventory: Inventory, selector: str) -> Device | None:
    """The device that `selector` names: index, GPU:MIG index, UUID, or an unambiguous start of a UUID."""
    for device in inventory.devices:
        if selector in (device.index, device.uuid):
            return device
    found = [device for device in inventory.devices if begins(selector, device.uuid)]
    return found[0] if len(found) == 1 else None


def why_not_found(inventory: Inventory, selector: str) -> str:
    """Why `find` has no device for `selector`, as the rest of a sentence that names the selector."""
    if selector.startswith(UUIDS) and len(selector) < SHORTEST_START:
        return f"which is too short: the start of a UUID needs at least {SHORTEST_START} characters"
    several = [device.index for device in inventory.devices if begins(selector, device.uuid)]
    if several:
        return f"with which the UUIDs of several devices begin ({', '.join(several)}): give more of it"
    if not inventory.devices:
        why = "; ".join(filter(None, (inventory.missing, *inventory.problems)))
        return f"and this node has no devices now{f' ({why})' if why else ''}"
    known = ", ".join(f"{device.index} ({device.uuid})" for device in inventory.devices[:8])
    return f"which is not on this node; it has {known}"


def begins(selector: str, uuid: str) -> bool:
    """Whether `selector` is enough of a UUID's start to stand for it."""
    return selector.startswith(UUIDS) and len(selector) >= SHORTEST_START and uuid.startswith(selector)


def lists(selectors: tuple[str, ...], device: Device) -> bool:
    """Whether a configuration's `selectors` name this device, or the GPU that it is a part of."""
    for selector in selectors:
        if selector in (device.index, device.uuid, device.parent):
            return True
        if device.is_partition and selector == device.gpu:
            return True
        if begins(selector, device.uuid) or begins(selector, device.parent or ""):
            return True
    return False


def unlisted(selectors: tuple[str, ...] | None, inventory: Inventory) -> list[str]:
    """A clause for each of a configuration's `selectors` that names no device of the node."""
    here = ", ".join(device.index for device in inventory.devices)
    return [
        f"policy.devices: {selector} is not a device of this node, which has {here}"
        for selector in selectors or ()
        if not any(lists((selector,), device) for device in inventory.devices)
    ]


def why_empty(inventory: Inventory) -> str:
    """Why the node has no device, and the remedy, as one sentence."""
    return "; ".join(why_empty_and_todo(inventory))


def why_empty_and_todo(inventory: Inventory) -> tuple[str, str]:
    """Why the node has no device, and the remedy."""
    why = inventory.missing or f"the driver in {inventory.root} reports no device"
    todo = "install or load the driver, correct driver.root, or try `xpu sim up --topology 1xT4`"
    return why, f"{todo} for a simulated device"
