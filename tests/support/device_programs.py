"""eBPF programs that decide which devices the processes of a v2 cgroup may use, as runtimes attach them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from xpu_runtime.linux import syscalls

#: From <linux/bpf.h>: the kind of program, the attach point, and the flag that allows more programs.
PROG_TYPE_CGROUP_DEVICE, CGROUP_DEVICE, F_ALLOW_MULTI = 15, 6, 2
_PROG_LOAD, _PROG_ATTACH = 5, 8


def instruction(code: int, registers: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    """One instruction of eBPF."""
    return struct.pack("<BBhi", code, registers, offset, immediate)


RETURN_0 = instruction(0xB7) + instruction(0x95)
RETURN_1 = instruction(0xB7, immediate=1) + instruction(0x95)


def one_device(major: int, minor: int, it: bytes, others: bytes) -> bytes:
    """A program that returns `it` (RETURN_0: denied) for one device, and `others` for all others."""
    return (
        instruction(0x61, 0x12, 4)  # r2 = major
        + instruction(0x55, 0x02, 4, major)
        + instruction(0x61, 0x12, 8)  # r2 = minor
        + instruction(0x55, 0x02, 2, minor)
        + it
        + others
    )


def load(code: bytes) -> int:
    """Loads a device program; returns its file descriptor. Raises OSError if the verifier refuses it."""
    text, license = bytearray(code), bytearray(b"GPL\0")
    attributes = struct.pack(
        "=IIQQ44xI",
        PROG_TYPE_CGROUP_DEVICE,
        len(code) // 8,
        syscalls.address_of(text),
        syscalls.address_of(license),
        CGROUP_DEVICE,
    )
    return syscalls.bpf(_PROG_LOAD, bytearray(attributes))


def attach(folder: Path, code: bytes, flags: int = F_ALLOW_MULTI) -> None:
    """Attaches a program to a cgroup; it is gone when the cgroup is."""
    cgroup, program = os.open(folder, os.O_RDONLY), load(code)
    try:
        syscalls.bpf(_PROG_ATTACH, bytearray(struct.pack("=IIIII", cgroup, program, CGROUP_DEVICE, flags, 0)))
    finally:
        os.close(program)
        os.close(cgroup)
