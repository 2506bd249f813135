"""The numbers of a driver's device nodes, below a driver root.

The nodes that udev made have them; before that, /proc/devices has a driver's major. Knows no vendor.
"""

from __future__ import annotations

import os
import stat

from xpu_runtime.linux import files
from xpu_runtime.vendors.inventory import Node

#: The size of /proc/devices: the kernel's has a few hundred lines, and majors below 4096 (12 bits).
_MAX_BYTES = 1 << 20
_MAX_DIGITS = 4


def majors(root: str) -> dict[str, int]:
    """Character device majors by driver name, from the driver root's /proc/devices; {} without one."""
    try:
        lines = (
            files.read(os.path.join(root, "proc/devices"), _MAX_BYTES).decode("ascii", "replace").splitlines()
        )
    except OSError:
        return {}
    found: dict[str, int] = {}
    for line in lines:
        if line.startswith("Block"):
            break
        words = line.split()
        if len(words) == 2 and words[0].isascii() and words[0].isdigit() and len(words[0]) <= _MAX_DIGITS:
            found.setdefault(words[1], int(words[0]))
    return found


def find(root: str, name: str, default: tuple[int | None, int]) -> Node | None:
    """The node /dev/NAME, by its numbers on the host, or by `default` where udev has not made it."""
    try:
        there = os.stat(os.path.join(root, "dev", name))
        if stat.S_ISCHR(there.st_mode):
            return Node(f"/dev/{name}", os.major(there.st_rdev), os.minor(there.st_rdev))
    except OSError:
        pass
    major, minor = default
    return None if major is None else Node(f"/dev/{name}", major, minor)
