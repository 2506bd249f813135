"""The parts of an ELF file for a search for libraries: its DT_SONAME, and the folders that it names.

The file may come from an image and be anything. It is read in small bounded reads at offsets that are
checked, and is never mapped or read whole; a malformed file has neither, and raises no error. Format: elf(5).
Opens no path.
"""

from __future__ import annotations

import os
import stat
import struct

# e_machine, with the class that the machine's libraries have (1: 32 bits, 2: 64 bits), as uname -m has it.
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
#: Programs built by Spack list a folder for each package that they use.
_PATH_LIMIT = 1 << 16


def elf_soname(fd: int) -> str:
    """The DT_SONAME of an open shared object; empty if it has none, or is none of these machines."""
    return _read(fd, (_ET_DYN,))[0]


def elf_search_path(fd: int) -> str:
    """The folders that a program tells its loader to search (DT_RUNPATH, DT_RPATH), as they stand in it."""
    return _read(fd, (_ET_EXEC, _ET_DYN))[1]


def elf_machine(fd: int) -> str:
    """The machine of an open shared object (x86_64, aarch64, i386); empty if it is none of these."""
    start = os.pread(fd, _HEAD[2].size, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    if len(start) < _HEAD[1].size or start[:4] != b"\x7fELF" or start[4] not in _HEAD or start[5] != 1:
        return ""
    head = _HEAD[start[4]].unpack_from(start)
    return _MACHINES.get((head[2], start[4]), "") if head[1] == _ET_DYN else ""


def _read(fd: int, kinds: tuple[int, ...]) -> tuple[str, str]:
    """(DT_SONAME, folders to search); empty where there is none, or no such ELF file."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return "", ""
    try:
        return _parse(fd, kinds)
    except (struct.error, OverflowError, OSError):
        # Cut off, or an offset that no file has.
        return "", ""


def _parse(fd: int, kinds: tuple[int, ...]) -> tuple[str, str]:
    start = os.pread(fd, _HEAD[2].size, 0)
    if len(start) < _HEAD[1].size or start[:4] != b"\x7fELF" or start[4] not in _HEAD or start[5] != 1:
        return "", ""
    bits = start[4]
    head = _HEAD[bits].unpack_from(start)
    kind, number, table, size, count = head[1], head[2], head[5], head[9], head[10]
    if (
        (number, bits) not in _MACHINES
        or kind not in kinds
        or size != _SEGMENT[bits].size
        or count > _SEGMENT_LIMIT
    ):
        return "", ""
    segments = [_segment(bits, raw) for raw in _SEGMENT[bits].iter_unpack(os.pread(fd, size * count, table))]
    for kind, offset, _, length in segments:
        if kind == _PT_DYNAMIC:
            return _dynamic(fd, bits, segments, offset, length)
    return "", ""


def _segment(bits: int, raw: tuple[int, ...]) -> tuple[int, int, int, int]:
    """(kind, offset, address, length in the file) of a program header."""
    return (raw[0], raw[1], raw[2], raw[4]) if bits == 1 else (raw[0], raw[2], raw[3], raw[5])


def _dynamic(
    fd: int, bits: int, segments: list[tuple[int, int, int, int]], offset: int, length: int
) -> tuple[str, str]:
    entry = _DYNAMIC[bits]
    data = os.pread(fd, min(length, _DYNAMIC_LIMIT), offset)
    found: dict[int, int] = {}
    for tag, value in entry.iter_unpack(data[: len(data) // entry.size * entry.size]):
        if tag == _DT_NULL:
            break
        found.setdefault(tag, value)

    def text(tag: int, limit: int) -> str:
        if _DT_STRTAB not in found or tag not in found:
            return ""
        address = found[_DT_STRTAB] + found[tag]
        for kind, offset, start, length in segments:
            if kind == _PT_LOAD and start <= address < start + length:
                name, end, _ = os.pread(fd, limit, offset + address - start).partition(b"\0")
                return os.fsdecode(name) if end else ""
        return ""

    # A loader ignores the RPATH of a file with a RUNPATH.
    path = text(_DT_RUNPATH, _PATH_LIMIT) or text(_DT_RPATH, _PATH_LIMIT)
    return text(_DT_SONAME, _NAME_LIMIT), path
