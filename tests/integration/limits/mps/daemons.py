"""The programs of MPS that run on a node."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support.sharing_time import until

from ...conftest import Node

SLEEP = ["sleep", "1000"]
MPS = "XPU_ENFORCE=mps"


def daemons(node: Node) -> list[tuple[str, int]]:
    """The programs of MPS that run on this node, by name, with their numbers."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if os.fsencode(node.run_dir) in (entry / "environ").read_bytes():
                name = os.path.basename((entry / "cmdline").read_bytes().split(b"\0")[0]).decode()
                if name.startswith("nvidia-cuda-mps"):
                    found.append((name.removeprefix("nvidia-cuda-mps-"), int(entry.name)))
        except OSError:
            continue
    return sorted(found)


def names(node: Node) -> list[str]:
    return [name for name, _ in daemons(node)]


def number(node: Node, name: str) -> int:
    (found,) = [pid for each, pid in daemons(node) if each == name]
    return found


def kept(node: Node) -> list[str]:
    folder = node.run_dir / "devices" / "mps"
    return sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.exists() else []


def has_namespaces(node: Node) -> bool:
    """Whether the daemon has R615's protocol 3."""
    (uuid,) = kept(node)
    return (node.run_dir / "devices" / "mps" / uuid / "config.toml").exists()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not command_of(pid), "it has ended")


def command_of(pid: int) -> bytes:
    """The command of a process; nothing if it has ended, whether or not somebody has waited for it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def instead(node: Node, program: str, *lines: str) -> None:
    """A script that replaces one of the driver's MPS programs."""
    (path,) = node.run_dir.rglob(f"usr/bin/nvidia-cuda-mps-{program}")
    path.unlink()
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
