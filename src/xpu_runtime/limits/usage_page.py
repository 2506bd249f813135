"""The memory of a container's processes by its usage page: the host's view of native/abi/page.h.

The container can write anything there, so nothing of it is trusted: it is read whole, and every amount is
bounded. pages.py makes the page, and reads the devices' time in it.
"""

from __future__ import annotations

import os
import time

from xpu_runtime.limits import pages
from xpu_runtime.linux import proc
from xpu_runtime.value import Value

#: The kinds of memory, in the layout's order.
KINDS = (
    "linear",
    "managed",
    "pool",
    "vmm",
    "array",
    "graph",
    "external",
    "freed_exported",
    "overhead",
)
_EXPORTED_AT, _KINDS_AT = 40, 48
_IMPORTS_AT = 4
_LOOK_S = 1.0


class ProcessUsage(Value):
    """One process's memory on one device, by its own account; bytes."""

    slot: int
    pid: int  # in the container's own numbering
    name: str
    device: int  # index in the page
    used: int
    kinds: dict[str, int]
    #: No process holds the slot's lock: its process has ended, or the slot counts memory that was freed while
    #: another process had it open.
    dead: bool = False
    #: The part of `used` that other processes may have open.
    exported: int = 0
    #: Allocations of other processes that it has open, on any device.
    imports: int = 0


def held(entries: list[ProcessUsage], device: int) -> dict[int, int]:
    """Bytes in use of a device by slot: memory of living processes, and memory of ended ones that they have
    open.

    The rest of ended processes' memory is free, although the account keeps it until it is reaped
    (native/account/reap.c).
    """
    shared = any(entry.imports for entry in entries if not entry.dead)
    return {
        entry.slot: min(entry.used, entry.exported if shared else 0) if entry.dead else entry.used
        for entry in entries
        if entry.device == device
    }


def in_use(entries: list[ProcessUsage], device: int, most: int) -> int:
    """Bytes in use of a device together, and no more than `most`: a container can write anything there."""
    return min(sum(held(entries, device).values()), most)


def slots(folder: str, device_count: int) -> list[ProcessUsage]:
    """The memory of each process with a slot, also of dead ones that are not reaped yet. OSError.

    A container can write anything there, or cut the file: amounts are its own claims, names are made
    printable, and missing parts are left out. It can also put so many locks on the file that each question
    takes the kernel long: after a second of questions, the remaining processes count as living.
    """
    fd = pages.open_usage(folder)
    until = time.monotonic() + _LOOK_S
    try:
        marks = os.pread(fd, pages.SLOTS, pages.USAGE_HEADER)
        stride = pages.slot_stride(device_count)
        found = []
        for slot, mark in enumerate(marks):
            if mark:
                content = os.pread(fd, stride, pages.slots_at() + slot * stride)
                if len(content) == stride:
                    dead = time.monotonic() < until and not _is_locked(fd, slot)
                    found += _slot(slot, content, device_count, dead=dead)
        return found
    finally:
        os.close(fd)


def _is_locked(fd: int, slot: int) -> bool:
    """Whether a process holds the OFD lock on byte `slot`, thus lives."""
    import fcntl
    import struct

    # struct flock: l_type, l_whence, l_start, l_len, l_pid, which F_OFD_GETLK wants to be 0.
    layout = "@hhqqi4x"
    asked = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)
    answer = struct.unpack(layout, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return bool(answer[0] != fcntl.F_UNLCK)


def _slot(slot: int, content: bytes, device_count: int, *, dead: bool) -> list[ProcessUsage]:
    """A slot's content, an entry a device."""
    pid, imports = (int.from_bytes(content[at : at + 4], "little") for at in (0, _IMPORTS_AT))
    name = proc.printable(content[8:24].partition(b"\0")[0].decode("ascii", "replace"))
    found = []
    for device in range(device_count):
        place = pages.SLOT_SIZE + device * pages.SLOT_DEVICE_SIZE
        used, exported = (
            int.from_bytes(content[at : at + 8], "little") for at in (place, place + _EXPORTED_AT)
        )
        kinds = {}
        for number, kind in enumerate(KINDS):
            at = place + _KINDS_AT + 8 * number
            if amount := int.from_bytes(content[at : at + 8], "little"):
                kinds[kind] = amount
        found.append(ProcessUsage(slot, pid, name, device, used, kinds, dead, exported, imports))
    return found
