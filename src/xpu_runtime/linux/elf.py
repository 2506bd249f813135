"""What the loader's cache needs to know of a library file: its machine and its DT_SONAME.

The file may be anything, an image's included: it is read by small bounded reads at offsets that
are checked, never mapped or read whole, and garbage has no ELF rather than an error.
Formats: elf(5).
"""

from __future__ import annotations

import os
import stat
import struct

from xpu_runtime.value import Value

# e_machine, with the class that the machine's libraries have (1: 32 bits, 2: 64 bits).
_MACHINES = {(62, 2): "x86_64", (183, 2): "aarch64", (3, 1): "i386"}
_HEAD = {1: struct.Struct("<16sHHIIIIIHHH"), 2: struct.Struct("<16sHHIQQQIHHH")}
_SEGMENT = {1: struct.Struct("<IIIIIIII"), 2: struct.Struct("<IIQQQQQQ")}
_DYNAMIC = {1: struct.Struct("<iI"), 2: struct.Struct("<qQ")}
_SEGMENT_LIMIT = 256
_DYNAMIC_LIMIT = 1 << 16
_NAME_LIMIT = 256
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 0, 5, 14, 15, 29
_ET_EXEC, _ET_DYN = 2, 3
#: Spack's programs name each package that they need.
_PATH_LIMIT = 1 << 16


class Elf(Value):
    """A shared object: its machine as in `uname -m` (x86_64, aarch64, i386), and its SONAME if it has one."""

    machine: str
    soname: str | None
    search_path: str = ""


def read_elf(source: int | str) -> Elf | None:
    """What is known of the shared object at a path or an open descriptor; None if it is not one of ours.

    OSError where the path cannot be opened.
    """
    if isinstance(source, int):
        return _read(source)
    fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return _read(fd)
    finally:
        os.close(fd)


def elf_soname(source: int | str) -> str | None:
    """The DT_SONAME of the shared object at a path or an open descriptor; None if there is none."""
    elf = read_elf(source)
    return elf.soname if elf else None


def elf_search_path(fd: int) -> str:
    """The folders that a program tells its loader to search (DT_RUNPATH, DT_RPATH), as they stand in it."""
    elf = _read(fd, (_ET_EXEC, _ET_DYN))
    return elf.search_path if elf else ""


def _read(fd: int, kinds: tuple[int, ...] = (_ET_DYN,)) -> Elf | None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return None
    try:
        return _parse(fd, kinds)
    except (struct.error, OverflowError, OSError):
        # Cut off, or an offset that no file has.
        return None


def _parse(fd: int, kinds: tuple[int, ...]) -> Elf | None:
    start = os.pread(fd, _HEAD[2].size, 0)
    if len(start) < _HEAD[1].size or start[:4] != b"\x7fELF" or start[4] not in _HEAD or start[5] != 1:
        return None
    bits = start[4]
    head = _HEAD[bits].unpack_from(start)
    kind, number, table, size, count = head[1], head[2], head[5], head[9], head[10]
    machine = _MACHINES.get((number, bits))
    if machine is None or kind not in kinds or size != _SEGMENT[bits].size or count > _SEGMENT_LIMIT:
        return None
    segments = [_segment(bits, raw) for raw in _SEGMENT[bits].iter_unpack(os.pread(fd, size * count, table))]
    for kind, offset, _, length in segments:
        if kind == _PT_DYNAMIC:
            return _dynamic(machine, fd, bits, segments, offset, length)
    return Elf(machine, None)


def _segment(bits: int, raw: tuple[int, ...]) -> tuple[int, int, int, int]:
    """(kind, offset, address, length in the file) of a program header."""
    return (raw[0], raw[1], raw[2], raw[4]) if bits == 1 else (raw[0], raw[2], raw[3], raw[5])


def _dynamic(
    machine: str, fd: int, bits: int, segments: list[tuple[int, int, int, int]], offset: int, length: int
) -> Elf:
    entry = _DYNAMIC[bits]
    data = os.pread(fd, min(length, _DYNAMIC_LIMIT), offset)
    found: dict[int, int] = {}
    for tag, value in entry.iter_unpack(data[: len(data) // entry.size * entry.size]):
        if tag == _DT_NULL:
            break
        found.setdefault(tag, value)

    def text(tag: int, limit: int) -> str | None:
        if _DT_STRTAB not in found or tag not in found:
            return None
        address = found[_DT_STRTAB] + found[tag]
        for kind, offset, start, length in segments:
            if kind == _PT_LOAD and start <= address < start + length:
                name, end, _ = os.pread(fd, limit, offset + address - start).partition(b"\0")
                return os.fsdecode(name) if end and name else None
        return None

    # A loader ignores the RPATH of what has a RUNPATH.
    path = text(_DT_RUNPATH, _PATH_LIMIT) or text(_DT_RPATH, _PATH_LIMIT)
    return Elf(machine, text(_DT_SONAME, _NAME_LIMIT), path or "")
