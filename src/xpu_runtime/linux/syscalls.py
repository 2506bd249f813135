"""System calls that Python's `os` does not have: one thin function each, named as the system call.

Each raises OSError(errno, message, path). They use libc's syscall(2) through `_ctypes`, the C half of ctypes,
which imports in less than 1 ms instead of 4 ms for `ctypes`: that is on the path of each container's start.
Numbers and structures: linux/fs.h, linux/mount.h, linux/openat2.h, linux/bpf.h. No policy: a call does what
the kernel does.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

from xpu_runtime.errors import XpuError, incomplete_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    import _ctypes

    class _Char(_ctypes._SimpleCData):  # type: ignore[type-arg]
        _type_ = "c"

    class Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
        _type_ = "l"

    class _Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
        _restype_ = Long

    _libc_syscall: Any = _Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall"))  # type: ignore[arg-type]
    _get_errno: Any = _ctypes.get_errno
    _addressof: Any = _ctypes.addressof
except (ImportError, AttributeError, TypeError):  # an interpreter in which _ctypes differs
    try:
        import ctypes
    except ImportError as error:
        raise XpuError(*incomplete_python(error)) from None

    _Char, Long = ctypes.c_char, ctypes.c_long  # type: ignore[assignment,misc]
    _libc_syscall = ctypes.CDLL(None, use_errno=True).syscall
    _libc_syscall.restype = Long
    _get_errno, _addressof = ctypes.get_errno, ctypes.addressof

# Since Linux 5.1 new calls have one number on all architectures; older calls differ.
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_SETNS, _UMOUNT2, _MOUNT, _BPF, _UNSHARE, _STATX = {
    "x86_64": (308, 166, 165, 321, 272, 332),
    "aarch64": (268, 39, 40, 280, 97, 291),
}.get(os.uname().machine, (-1,) * 6)
_SETFSUID, _SETFSGID, _CAPGET, _CAPSET = {
    "x86_64": (122, 123, 125, 126),
    "aarch64": (151, 152, 90, 91),
}.get(os.uname().machine, (-1,) * 4)
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}.get(os.uname().machine, -1)
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITIES_HEAD = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)  # this thread

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
CLONE_FS = 0x200
CLONE_NEWNS = 0x20000
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x04
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MOUNT_ATTR_RDONLY = 0x01
MOUNT_ATTR_NOSUID = 0x02
MOUNT_ATTR_NODEV = 0x04
MOUNT_ATTR_NOEXEC = 0x08
MNT_DETACH = 2
RENAME_EXCHANGE = 2
UMOUNT_NOFOLLOW = 8
_STATX_MNT_ID = 0x1000
#: struct statx, and where in it are stx_mask and stx_mnt_id.
_STATX_SIZE, _MASK, _MNT_ID = 256, slice(0, 4), slice(0x90, 0x98)
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19


def openat2(dirfd: int, path: str, flags: int, mode: int = 0, resolve: int = 0) -> int:
    """openat2(2): a new descriptor (O_CLOEXEC) for `path` below `dirfd`. EAGAIN: a rename raced with `..`."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve)
    return _syscall(path, _OPENAT2, dirfd, _path(path), how, len(how))


def open_tree(dirfd: int, path: str, flags: int) -> int:
    """open_tree(2): a descriptor of a mount, or of a detached copy of it with OPEN_TREE_CLONE."""
    return _syscall(path, _OPEN_TREE, dirfd, _path(path), flags)


def move_mount(from_dirfd: int, from_path: str, to_dirfd: int, to_path: str, flags: int) -> None:
    """move_mount(2): attaches or moves a mount."""
    _syscall(to_path, _MOVE_MOUNT, from_dirfd, _path(from_path), to_dirfd, _path(to_path), flags)


def mount_setattr(fd: int, attr_set: int = 0, propagation: int = 0) -> None:
    """mount_setattr(2) on the mount that `fd` is; `propagation` is 0 (as it is) or MS_PRIVATE."""
    attributes = struct.pack("=QQQQ", attr_set, 0, propagation, 0)
    _syscall("", _MOUNT_SETATTR, fd, b"", AT_EMPTY_PATH, attributes, len(attributes))


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    _syscall(target, _MOUNT, _path(source), _path(target), _path(kind), flags, _path(data))


def mount_id(fd: int) -> int:
    """statx(2): the id of the mount that the file of `fd` was opened through (Linux 5.8)."""
    found = bytearray(_STATX_SIZE)
    _syscall("", _STATX, fd, b"", AT_EMPTY_PATH, _STATX_MNT_ID, shared(found))
    if not int.from_bytes(found[_MASK], sys.byteorder) & _STATX_MNT_ID:
        raise OSError(
            errno.ENOSYS, "the kernel does not tell the mount of a file: it is older than Linux 5.8"
        )
    return int.from_bytes(found[_MNT_ID], sys.byteorder)


def umount2(path: str, flags: int) -> None:
    """umount2(2)."""
    _syscall(path, _UMOUNT2, _path(path), flags)


def renameat2(path: str, to_path: str, flags: int) -> None:
    """renameat2(2): renames, or with RENAME_EXCHANGE exchanges, the files at two absolute paths."""
    _syscall(to_path, _RENAMEAT2, AT_FDCWD, _path(path), AT_FDCWD, _path(to_path), flags)


def setns(fd: int, kind: int) -> None:
    """setns(2): the calling thread enters the namespace `fd`, which must be of `kind` (CLONE_NEW...)."""
    _syscall("", _SETNS, fd, kind)


def unshare(flags: int) -> None:
    """unshare(2): the calling thread gets namespaces of its own (CLONE_NEW...), or a root and current folder
    (CLONE_FS)."""
    _syscall("", _UNSHARE, flags)


def setfsuid(uid: int) -> None:
    """setfsuid(2), which does not report failures; root's call does not fail."""
    _syscall("", _SETFSUID, uid)


def setfsgid(gid: int) -> None:
    """setfsgid(2)."""
    _syscall("", _SETFSGID, gid)


def capget() -> bytes:
    """capget(2): this thread's capabilities, for `capset`."""
    data = bytearray(24)
    _syscall("", _CAPGET, _CAPABILITIES_HEAD, shared(data))
    return bytes(data)


def effective_capabilities(pid: int) -> bytes:
    """capget(2): the effective capabilities of process `pid` (0: of this thread), only to be compared."""
    data = bytearray(24)
    _syscall("", _CAPGET, struct.pack("=Ii", _CAPABILITY_VERSION_3, pid), shared(data))
    return bytes(data[0:4] + data[12:16])


def capset(capabilities: bytes) -> None:
    """capset(2)."""
    _syscall("", _CAPSET, _CAPABILITIES_HEAD, capabilities)


def bpf(command: int, attributes: bytearray) -> int:
    """bpf(2): `attributes` is a union bpf_attr; the kernel may write to it and through its pointers."""
    buffer = shared(attributes)
    return _syscall("", _BPF, command, buffer, len(attributes))


def address_of(buffer: bytearray) -> int:
    """The address of the bytes of `buffer`, valid until it is resized or freed."""
    return int(_addressof(shared(buffer)))


def shared(buffer: bytearray) -> Any:
    """An argument that points to the bytes of `buffer`; the callee may write to them."""
    return (_Char * len(buffer)).from_buffer(buffer)


def _path(path: str) -> bytes:
    raw = os.fsencode(path)
    if b"\0" in raw:
        raise ValueError(f"a path cannot hold a NUL: {path!r}")
    return raw


def _syscall(path: str, number: int, *arguments: Any) -> int:
    """Passes bytes as a pointer (the kernel only reads them) and numbers as a long."""
    result = int(_libc_syscall(Long(number), *[Long(a) if isinstance(a, int) else a for a in arguments]))
    if result < 0:
        number = _get_errno()
        raise OSError(number, os.strerror(number), path or None)
    return result
