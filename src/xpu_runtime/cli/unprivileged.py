"""Commands of users other than root: the agent answers members of a group; all others get the reason.

agent/command_service.py decides the group's rights, and asks the agent.
"""

from __future__ import annotations

import grp
import os
import shlex
import sys
from typing import NoReturn

from xpu_runtime import paths
from xpu_runtime.agent import command_service
from xpu_runtime.cli.terminal import screen


def show(words: list[str]) -> None:
    """Prints the agent's answer, and ends the process; returns if there is no answer."""
    if not command_service.is_answered(words):
        return
    columns = screen.size().columns if screen.is_terminal() else None
    answer = command_service.ask(words, columns, screen.coloured())
    if answer is not None:
        _print_and_end(*answer)


def _print_and_end(status: int, out: bytes, err: bytes) -> NoReturn:
    sys.stdout.buffer.write(out)
    sys.stdout.flush()
    sys.stderr.buffer.write(err)
    raise SystemExit(status)


def what_to_do(words: list[str]) -> str:
    """The remedy for a user without the right."""
    as_root = shlex.join(["sudo", "xpu", *words])
    try:
        group = grp.getgrnam(command_service.GROUP).gr_gid
    except KeyError:
        group = -1
    if group == -1 or not command_service.is_shown(words):
        return f"only root can see and change slices: {as_root}"
    if not command_service.is_answered(words):
        own = f"members of the group {command_service.GROUP} have `xpu {words[0]}` in its other forms"
        return (
            "only root can run commands that go on until they are stopped, or that read and write files: "
            f"{as_root}; {own}"
        )
    if group not in (os.getegid(), *os.getgroups()):
        return f"root and members of the group {command_service.GROUP} see slices: {as_root}"
    socket = paths.in_run_dir(command_service.SOCKET)
    why = f"the agent answers the group {command_service.GROUP} on {socket}, but not now"
    return f"{why}: start it, or {as_root}"
