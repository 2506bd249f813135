"""Answers for the group `xpu`: the agent runs the commands that only show something, for who is not root.

The ledger itself is nobody's to open but root's: who can open a file can lock it, and so keep containers from
starting. A member of the group sends a command's words to a socket, and gets what the command prints. Words
are taken only as they are listed here: nothing that names a file, changes anything or does not end by itself.
Where the node has no such group there is no socket.
"""

from __future__ import annotations

import grp
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any, NoReturn

from xpu_runtime import paths
from xpu_runtime.agent.beside import Beside
from xpu_runtime.agent.status import listen
from xpu_runtime.linux.child import end_with
from xpu_runtime.value import Value

GROUP = "xpu"
SOCKET = "read.sock"
#: Answers at a time; who comes then waits.
_MOST = 4
_QUEUE = 16
#: Seconds that a client may take to say what it wants, that a command may take, and all of it. `top --once`
#: takes its interval (60 s at most) and what the driver takes to answer twice.
_CLIENT_S, _COMMAND_S, _ALL_S = 2.0, 90.0, 120
#: Seconds until another client is taken, where one could not be.
_AGAIN_S = 1.0
_LONGEST_REQUEST = 1 << 16
#: Behind what runs beside it: shares are written, and containers start, first.
_NICE = 5


class _Words(Value):
    """What a command may be given."""

    flags: tuple[str, ...]
    #: Each with a value.
    options: tuple[str, ...] = ()
    #: How many words besides.
    arguments: int = 0


_COMMANDS = {
    "devices": _Words(("-q", "--quiet", "--wide", "--json"), ("--format",)),
    "events": _Words(("--json",), ("--since", "--container", "--device")),
    # Without a bundle: that is a folder, and root reads others' too.
    "explain": _Words(
        ("--privileged", "--systemd-cgroup", "-v", "--verbose", "--wide", "--json"),
        ("-e", "--env", "--annotation"),
    ),
    "inspect": _Words(("--wide", "--json"), (), 1),
    "metrics": _Words(()),
    "ps": _Words(("--no-trunc", "-q", "--quiet", "--wide", "--json"), ("--format",)),
    "top": _Words(("--once", "--json"), ("--interval",)),
}


def is_shown(words: list[str]) -> bool:
    """Whether there is a form of this command that the group may see."""
    return bool(words) and words[0] in _COMMANDS


def is_answered(words: list[str]) -> bool:
    """Whether `xpu` with these words only shows something that the group may see."""
    known = _COMMANDS.get(words[0]) if words else None
    if known is None:
        return False
    arguments = 0
    rest = iter(words[1:])
    for word in rest:
        if word in known.options:
            if next(rest, "-").startswith("-"):
                return False
        elif word.startswith("-"):
            name, is_long, _ = word.partition("=")
            if word not in known.flags and not (is_long and name in known.options and name.startswith("--")):
                return False
        else:
            arguments += 1
    return arguments == known.arguments


def ask(words: list[str]) -> tuple[int, bytes, bytes] | None:
    """Exit status, stdout and stderr of `xpu` with these words; None where nobody answers this process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(2 * _ALL_S)
        try:
            connection.connect(paths.in_run_dir(SOCKET))
            connection.sendall(json.dumps(words).encode() + b"\n")
            with connection.makefile("rb") as answer:
                status, out, err = json.loads(answer.readline(256))
                texts = answer.read(out), answer.read(err)
        except (OSError, ValueError, TypeError):
            return None
    return (status, *texts) if [out, err] == [len(text) for text in texts] else None


def reading_service(log: Callable[[str], None]) -> Beside | None:
    """The process that answers members of the group; None where the node has no such group."""
    try:
        group = grp.getgrnam(GROUP).gr_gid
    except KeyError:
        return None
    return Beside(f"what answers the group {GROUP}", _NICE, lambda: _serve(group), SOCKET, log)


def _serve(group: int) -> NoReturn:
    """The life of the process that listens; each client is served in one of its own."""
    path = paths.in_run_dir(SOCKET)
    listening = listen(SOCKET, socket.SOCK_STREAM, _QUEUE)
    os.chown(path, -1, group)
    os.chmod(path, 0o660)
    listening.setblocking(True)
    children: set[int] = set()
    while True:
        try:
            children.add(_take(listening))
        except OSError:  # no process or descriptor is left on the machine
            time.sleep(_AGAIN_S)
        while children:
            ended, _ = os.waitpid(-1, os.WNOHANG if len(children) < _MOST else 0)
            if not ended:
                break
            children.discard(ended)


def _take(listening: socket.socket) -> int:
    """Waits for a client, and starts its process. OSError."""
    own = os.getpid()
    connection, _ = listening.accept()
    with connection:
        child = os.fork()
        if child == 0:
            listening.close()
            _answer(connection, own)
    return child


def _answer(connection: socket.socket, parent: int) -> NoReturn:
    """The life of a client's process."""
    try:
        end_with(parent)
        signal.alarm(_ALL_S)
        connection.settimeout(_CLIENT_S)
        request = b""
        while not request.endswith(b"\n") and len(request) < _LONGEST_REQUEST:
            piece = connection.recv(_LONGEST_REQUEST)
            if not piece:
                break
            request += piece
        status, out, err = _run(request)
        connection.settimeout(_COMMAND_S)
        connection.sendall(json.dumps([status, len(out), len(err)]).encode() + b"\n" + out + err)
    finally:
        os._exit(0)


def _run(request: bytes) -> tuple[int, bytes, bytes]:
    try:
        words: Any = json.loads(request)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return 1, b"", b"xpu: no words were understood\n"
    if not is_answered(words):
        return 1, b"", b"xpu: this is for root alone\n"
    program = os.path.join(os.path.dirname(paths.HOOK), "xpu")
    own = os.getpid()
    try:
        done = subprocess.run(
            [program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_S,
            cwd="/",
            check=False,
            preexec_fn=lambda: end_with(own),  # this process has one thread
        )
    except subprocess.TimeoutExpired:
        told = f"xpu: {words[0]} took more than {_COMMAND_S:.0f} s: does the driver answer?\n"
        return 1, b"", told.encode()
    except (OSError, ValueError):  # among them words that no program can be given
        return 1, b"", f"xpu: {program} cannot be run with these words\n".encode()
    return done.returncode, done.stdout, done.stderr
