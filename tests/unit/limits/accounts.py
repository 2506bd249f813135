"""A usage page as a container's processes leave it, made by hand."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from xpu_runtime.limits import pages, usage_page

#: struct flock of fcntl(2).
FLOCK = "@hhqqi4x"


def write_slot(
    folder: Path,
    slot: int,
    *,
    pid: int,
    name: bytes,
    used: int,
    kinds: dict[str, int] | None = None,
    exported: int = 0,
    imports: int = 0,
) -> None:
    """Writes the memory of the process that owns `slot` on the first of one device."""
    usage = [used, 0, 0, used, 0, exported, *((kinds or {}).get(kind, 0) for kind in usage_page.KINDS), 0]
    content = struct.pack("<II16s40x", pid, imports, name) + struct.pack("<16Q", *usage)
    fd = os.open(folder / pages.USAGE, os.O_RDWR)
    os.pwrite(fd, content, pages.slots_at() + slot * pages.slot_stride(1))
    os.pwrite(fd, b"\1", pages.USAGE_HEADER + slot)
    os.close(fd)


def lock_slots(folder: Path, slot: int, count: int = 1) -> int:
    """Locks slots as a living process does; they are free again when the descriptor is closed."""
    fd = os.open(folder / pages.USAGE, os.O_RDWR)
    lock = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, slot, count, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
    return fd
