"""Namespaces for a test's own process, as `unshare --mount --propagation private` makes them."""

from __future__ import annotations

import ctypes
import os

from xpu_runtime.linux import syscalls

_MS_REC = 0x4000


def own_mount_namespace() -> None:
    """Gives this process its own mount namespace: none of its later mounts reaches the host."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(syscalls.CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    syscalls.mount("none", "/", "", _MS_REC | syscalls.MS_PRIVATE)
