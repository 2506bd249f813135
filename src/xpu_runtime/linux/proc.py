"""Which process is which: a process id alone comes back after its owner is gone.

The boot id, the pid and the start time together name one process of one boot. Facts are read
from /proc (proc(5)).
"""

from __future__ import annotations

import os

_STAT_LIMIT = 4096
#: Of a process that has ended, and that its parent may never wait for: Z zombie, X and x dead.
_ENDED = b"ZXx"


def boot_id() -> str:
    """The kernel's random id of this boot, 36 characters."""
    return _read("/proc/sys/kernel/random/boot_id").decode("ascii").strip()


def start_time(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot; None if there is no such process."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def is_alive(pid: int, started: int) -> bool:
    """Whether the process `pid` that started at `started` still runs; a zombie does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in _ENDED and int(fields[19]) == started


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third (state) on; empty if there is no such process."""
    if pid <= 0:
        return []
    try:
        data = _read(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The name before them is the process's own choice: it may hold spaces and brackets.
    return data[data.rindex(b")") + 2 :].split()


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _STAT_LIMIT)
    finally:
        os.close(fd)
