"""Device rules on cgroup v2: the eBPF programs of a cgroup are replaced by ones that also allow our devices.

The low-level runtime attaches a program that allows the spec's devices. A loaded program cannot be changed,
but its instructions can be read, and loaded again behind a prefix that allows more devices. Marks in the
prefix show whether a program has one already. Structures and numbers: linux/bpf.h; a program's argument:
struct bpf_cgroup_dev_ctx. Knows devices only by their numbers.
"""

from __future__ import annotations

import errno
import os
import struct

from xpu_runtime.errors import ApplyError
from xpu_runtime.linux import syscalls
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from xpu_runtime.linux.device_rule import DeviceRule

_PROG_LOAD, _PROG_ATTACH, _PROG_DETACH = 5, 8, 9
_PROG_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD, _PROG_QUERY = 13, 15, 16
_CGROUP_DEVICE_PROGRAM, _CGROUP_DEVICE_ATTACH = 15, 6
_F_ALLOW_MULTI, _F_REPLACE = 2, 4
_PROGRAMS_LIMIT = 64  # the kernel's own limit for one cgroup (BPF_CGROUP_MAX_PROGS)
_LOG_SIZE = 1 << 16

_INSTRUCTION = struct.Struct("<BBhi")  # code, source << 4 | destination, offset, immediate
_MOVE, _MOVE_REGISTER, _AND, _LOAD_WORD = 0xB7, 0xBF, 0x57, 0x61
_JUMP_UNEQUAL, _CALL, _EXIT, _LOAD_DOUBLE = 0x55, 0x85, 0x95, 0x18
_BLOCK, _CHARACTER = 1, 2
_ACCESS = {"m": 1, "r": 2, "w": 4}


def _code(code: int, destination: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    return _INSTRUCTION.pack(code, source << 4 | destination, offset, immediate)


# Register 1 is the context, and stays unchanged for the program behind the prefix; the verifier lets a
# program rely on no other register at its start. The values that are moved to register 0 have no effect: they
# are the mark.
_HEAD = (
    _code(_MOVE, 0, immediate=0x00555058)
    + _code(_LOAD_WORD, 2, 1, 0)  # access << 16 | kind
    + _code(_LOAD_WORD, 3, 1, 4)  # major
    + _code(_LOAD_WORD, 4, 1, 8)  # minor
)
_TAIL = _code(_MOVE, 0, immediate=0x58505500)


class _Program(Value):
    """An attached program: its id, its instructions, and whether its licence is compatible with the GPL."""

    id: int
    code: bytes
    gpl: bool


def allow(folder: str, rules: list[DeviceRule]) -> list[DeviceRule]:
    """Makes every device program of the cgroup `folder` allow `rules`; returns the rules that one of them
    lacked.

    A cgroup without a program has no restriction, and stays so. The change is atomic for each program.
    ApplyError where one of them cannot be rewritten.
    """
    added: list[DeviceRule] = []

    def change(blocks: list[bytes]) -> list[bytes]:
        new = [rule for rule in dict.fromkeys(rules) if _block(rule) not in blocks]
        added.extend(rule for rule in new if rule not in added)
        return blocks + [_block(rule) for rule in new]

    _rewrite(folder, change)
    return added


def deny(folder: str, rules: list[DeviceRule]) -> list[DeviceRule]:
    """Removes `rules` from the prefixes; devices that the programs behind them allow stay allowed."""
    unwanted = [_block(rule) for rule in rules]
    _rewrite(folder, lambda blocks: [block for block in blocks if block not in unwanted])
    return rules


def _block(rule: DeviceRule) -> bytes:
    """Instructions that return 1 for this device and at most this access, and otherwise continue with the
    next block."""
    access = 0
    for letter in rule.access:
        access |= _ACCESS[letter]
    kind = _CHARACTER if rule.kind == "c" else _BLOCK
    return (
        _code(_MOVE_REGISTER, 5, 2)
        + _code(_AND, 5, immediate=~(access << 16))
        + _code(_JUMP_UNEQUAL, 5, offset=4, immediate=kind)
        + _code(_JUMP_UNEQUAL, 3, offset=3, immediate=rule.major)
        + _code(_JUMP_UNEQUAL, 4, offset=2, immediate=rule.minor)
        + _code(_MOVE, 0, immediate=1)
        + _code(_EXIT)
    )


_BLOCK_SIZE = 7 * _INSTRUCTION.size


def _split(code: bytes) -> tuple[list[bytes], bytes]:
    """The blocks of the prefix, if there is one, and the program behind it."""
    if not code.startswith(_HEAD):
        return [], code
    at = len(_HEAD)
    blocks = []
    while not code.startswith(_TAIL, at):
        blocks.append(code[at : at + _BLOCK_SIZE])
        at += _BLOCK_SIZE
        if at >= len(code):
            return [], code
    return blocks, code[at + len(_TAIL) :]


def _rewrite(folder: str, change: Callable[[list[bytes]], list[bytes]]) -> None:
    old: list[int] = []
    new: list[tuple[int, int]] = []
    try:
        cgroup = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            flags, ids = _attached(cgroup)
            # All are loaded before the first is replaced: loading is the step that can be refused.
            for number in ids:
                old.append(syscalls.bpf(_PROG_GET_FD_BY_ID, bytearray(struct.pack("=III", number, 0, 0))))
                code = _changed(_read(old[-1], number), change)
                if code is not None:
                    new.append((old[-1], _load(*code)))
            for each, replacement in new:
                _replace(cgroup, flags, each, replacement)
        finally:
            for fd in [cgroup, *old, *(replacement for _, replacement in new)]:
                os.close(fd)
    except OSError as error:
        raise ApplyError(
            f"the device program of cgroup {folder} cannot be replaced: {error.strerror}",
            "set `mode: spec` in the config, which leaves the devices to the low-level runtime",
        ) from error


def _changed(program: _Program, change: Callable[[list[bytes]], list[bytes]]) -> tuple[bytes, bool] | None:
    """The changed instructions, and whether they are loaded as GPL; None if nothing changes."""
    blocks, body = _split(program.code)
    changed = change(blocks)
    if changed == blocks:
        return None
    _refuse_unmovable(program)
    return _HEAD + b"".join(changed) + _TAIL + body if changed else body, program.gpl


def _attached(cgroup: int) -> tuple[int, list[int]]:
    """(attach flags, ids) of the device programs that are attached to this cgroup itself."""
    ids = bytearray(4 * _PROGRAMS_LIMIT)
    query = bytearray(
        struct.pack(
            "=IIIIQI4x",
            cgroup,
            _CGROUP_DEVICE_ATTACH,
            0,
            0,
            syscalls.address_of(ids),
            _PROGRAMS_LIMIT,
        )
    )
    syscalls.bpf(_PROG_QUERY, query)
    flags, count = struct.unpack_from("=I", query, 12)[0], struct.unpack_from("=I", query, 24)[0]
    return flags, list(struct.unpack_from(f"={count}I", ids))


# The fields of struct bpf_prog_info: type, id, tag, jited length, instructions' length, jited, instructions,
# load time, user id, number of maps, maps, name, interface, flags (bit 0: compatible with the GPL).
_INFO = struct.Struct("=II8sIIQQQIIQ16sII")


def _read(program: int, number: int) -> _Program:
    length = _information(program, 0, 0)[4]
    code = bytearray(length)
    information = _information(program, length, syscalls.address_of(code) if length else 0)
    if not length or not information[6]:
        raise OSError(errno.EPERM, f"the kernel does not show the instructions of program {number}")
    return _Program(number, bytes(code[: information[4]]), bool(information[13] & 1))


def _information(program: int, length: int, address: int) -> tuple[int, ...]:
    info = bytearray(_INFO.pack(0, 0, b"", 0, length, 0, address, 0, 0, 0, 0, b"", 0, 0))
    attributes = bytearray(struct.pack("=IIQ", program, len(info), syscalls.address_of(info)))
    syscalls.bpf(_OBJ_GET_INFO_BY_FD, attributes)
    return _INFO.unpack(info)


def _refuse_unmovable(program: _Program) -> None:
    """OSError for maps and calls: they are shown with the kernel's own numbers, which cannot be loaded
    again."""
    for code, registers, _, _ in _INSTRUCTION.iter_unpack(program.code):
        if code == _CALL or (code == _LOAD_DOUBLE and registers >> 4):
            raise OSError(errno.EOPNOTSUPP, f"program {program.id} uses maps or calls functions")


def _load(code: bytes, gpl: bool) -> int:
    instructions = bytearray(code)
    license = bytearray(b"GPL\0" if gpl else b"Apache-2.0\0")
    log = bytearray(_LOG_SIZE)

    def attributes(log_level: int) -> bytearray:
        return bytearray(
            struct.pack(
                "=IIQQIIQII16sII",
                _CGROUP_DEVICE_PROGRAM,
                len(instructions) // _INSTRUCTION.size,
                syscalls.address_of(instructions),
                syscalls.address_of(license),
                log_level,
                _LOG_SIZE if log_level else 0,
                syscalls.address_of(log) if log_level else 0,
                0,
                0,
                b"xpu_devices",
                0,
                _CGROUP_DEVICE_ATTACH,
            )
        )

    try:
        return syscalls.bpf(_PROG_LOAD, attributes(0))
    except OSError as error:
        # Again, for the verifier's log. It may succeed this time (EAGAIN: a signal came).
        try:
            return syscalls.bpf(_PROG_LOAD, attributes(1))
        except OSError:
            said = log.partition(b"\0")[0].decode("ascii", "replace").strip().rpartition("processed")[0]
            raise OSError(error.errno, f"{error.strerror} ({said[-300:].strip()})") from None


def _replace(cgroup: int, flags: int, old: int, new: int) -> None:
    """Replaces `old` by `new`; at every moment one of them is attached."""

    def attach(how: int, replaced: int = 0) -> None:
        attributes = struct.pack("=IIIII", cgroup, new, _CGROUP_DEVICE_ATTACH, how, replaced)
        syscalls.bpf(_PROG_ATTACH, bytearray(attributes))

    if not flags & _F_ALLOW_MULTI:
        attach(flags)  # a cgroup that holds one program: attaching replaces it
        return
    try:
        attach(_F_ALLOW_MULTI | _F_REPLACE, old)
    except OSError as error:
        if error.errno != errno.EINVAL:  # Linux before 5.6
            raise
        attach(_F_ALLOW_MULTI)
        detach = struct.pack("=IIIII", cgroup, old, _CGROUP_DEVICE_ATTACH, 0, 0)
        syscalls.bpf(_PROG_DETACH, bytearray(detach))
