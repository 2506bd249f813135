"""Commands that tests run in containers, and readers of their output."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import stat
from pathlib import Path
from typing import Any

from support.sharing_time import until

from .conftest import Node

#: The folder of Debian's libraries in an image, and this machine's ldconfig, which works in any.
MULTIARCH = f"usr/lib/{os.uname().machine}-linux-gnu"
LDCONFIG = "/sbin/ldconfig"
_OPEN = """for numbers in "$@"; do
    mknod "/dev/probe-$numbers" c "${numbers%:*}" "${numbers#*:}" || exit 9
    echo "$numbers: $(cat "/dev/probe-$numbers" 2>&1)"
    rm "/dev/probe-$numbers"
done"""

#: How opening a device fails that the cgroup allows and that has no driver; and one that it denies.
ALLOWED = "No such device or address"
DENIED = "Operation not permitted"


def may_mknod(spec: dict[str, Any]) -> None:
    """Gives CAP_MKNOD, as docker does by default."""
    for capabilities in spec["process"]["capabilities"].values():
        capabilities.append("CAP_MKNOD")


def privileged(spec: dict[str, Any]) -> None:
    """Gives the capability by which the runtime knows a privileged container."""
    spec["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN")


def kill(pid: int) -> None:
    """Kills a process of a container, and waits for its end."""
    fd = os.pidfd_open(pid)
    signal.pidfd_send_signal(fd, signal.SIGKILL)
    select.select([fd], [], [])
    os.close(fd)


def allocated(node: Node, bundle: Path, programs: int = 1) -> str:
    """Starts a container, and waits until so many cuda-probes of it hold memory; its id."""
    container = node.start(bundle)
    until(lambda: (bundle / "output").read_text().count("free of") == programs, "they hold memory", 60)
    return container


def open_devices(*numbers: str) -> list[str]:
    """A command that makes a character device for each `major:minor` and opens it."""
    return ["sh", "-c", _OPEN, "sh", *numbers]


def openings(output: str) -> dict[str, str]:
    """The output of that command: for each `major:minor` why it could not be opened."""
    return {
        numbers: reason.rpartition(": ")[2]
        for numbers, _, reason in (line.partition(": ") for line in output.splitlines())
    }


def tree(folder: Path) -> dict[str, tuple[str, ...]]:
    """All that lies below a folder, by path: type and permissions, link's target, content's hash."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(folder.rglob("*")):
        there = path.lstat()
        content = ""
        if stat.S_ISLNK(there.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(there.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = (oct(there.st_mode), str(there.st_rdev), content)
    return found
