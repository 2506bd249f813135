"""The processes that hold a lock on a file, for the message when waiting for it took too long.

/proc/PID/fdinfo/FD shows each lock on an open file, of any process (proc(5)). Unlike /proc/locks this also
shows a child that has inherited the descriptor, and works on file systems whose device number /proc/locks
shows differently.
"""

from __future__ import annotations

import os

from xpu_runtime.linux import proc
from xpu_runtime.value import Value

_TEXT_LIMIT = 200


class Holder(Value):
    """A process that holds a lock; `command` is its command line, which it can set itself, cut to one
    line."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


def of(*paths: str) -> list[Holder]:
    """The other processes that hold a lock on one of these files, as far as this /proc shows them."""
    names = tuple(os.path.basename(path) for path in paths)
    wanted = set()
    for path in paths:
        try:
            there = os.stat(path)
        except OSError:
            continue
        wanted.add((there.st_dev, there.st_ino))
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and _has_lock(entry, names, wanted):
            found.append(Holder(int(entry), _command(int(entry))))
    return sorted(found, key=lambda each: each.pid)


def _has_lock(pid: str, names: tuple[str, ...], wanted: set[tuple[int, int]]) -> bool:
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            # The name first: a stat of any other file could hang, for example on a dead network server.
            if os.path.basename(os.readlink(f"/proc/{pid}/fd/{fd}")) not in names:
                continue
            there = os.stat(f"/proc/{pid}/fd/{fd}")
            if (there.st_dev, there.st_ino) in wanted:
                with open(f"/proc/{pid}/fdinfo/{fd}", "rb") as lines:
                    # A line with "->" is a request that is waiting.
                    if any(line.startswith(b"lock:") and b"->" not in line for line in lines):
                        return True
    except OSError:
        pass  # it has ended, or closed the file
    return False


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).split(b"\0")
    except OSError:
        words = []
    text = b" ".join(words).decode("utf-8", "replace").strip()
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    return printable[:_TEXT_LIMIT] or proc.name(pid) or "a program that has ended"
