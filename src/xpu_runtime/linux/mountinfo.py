"""The mounts of this process's mount namespace, as /proc/self/mountinfo lists them (proc(5)).

The id of a mount is asked of a file descriptor (syscalls.mount_id). A descriptor stays on its mount through
renames, links and later mounts, so the answer is still valid when the descriptor is used. Only reads;
rootmounts.py interprets.
"""

from __future__ import annotations

from xpu_runtime.linux import files
from xpu_runtime.value import Value

_LIMIT = 1 << 26


class MountEntry(Value):
    """One mount: its file system's device ("8:1"), type and options, the mounted folder in it, and the
    mountpoint."""

    device: str
    kind: str
    options: str
    root: str
    point: str
    shared: bool


def read(kind: str = "") -> list[MountEntry]:
    """All mounts; with `kind`, only those of file systems whose type begins with it.

    A node may have thousands of mounts, and parsing one takes 10 µs.
    """
    # No field has a space in it: they are escaped.
    wanted = f" - {kind}".encode("ascii")
    return [_parsed(line) for line in _lines() if wanted in line]


class Table:
    """The mounts as they are when it is made, by their ids (syscalls.mount_id)."""

    def __init__(self) -> None:
        self._lines = {int(line.partition(b" ")[0]): line for line in _lines()}
        #: Few are asked for of the many that there may be, and those again and again.
        self._parsed: dict[int, MountEntry] = {}

    def get(self, number: int) -> MountEntry | None:
        if number not in self._parsed and number in self._lines:
            self._parsed[number] = _parsed(self._lines[number])
        return self._parsed.get(number)


def _parsed(line: bytes) -> MountEntry:
    front, _, back = line.decode("utf-8", "surrogateescape").partition(" - ")
    _, _, device, root, point, _, *tags = front.split(" ")
    kind, _, options = back.split(" ", 2)
    shared = any(tag.startswith("shared:") for tag in tags)
    return MountEntry(device, kind, options, _unescaped(root), _unescaped(point), shared)


def devices() -> frozenset[str]:
    """The file systems (MountEntry.device) that are mounted."""
    return frozenset(line.split(b" ", 3)[2].decode("ascii") for line in _lines())


def _lines() -> list[bytes]:
    return files.read("/proc/self/mountinfo", _LIMIT).split(b"\n")[:-1]


def _unescaped(text: str) -> str:
    r"""`text` without the escapes \040 (space), \011, \012 and \134 (backslash)."""
    if "\\" not in text:
        return text
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text
