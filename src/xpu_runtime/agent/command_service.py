"""Answers for the group `xpu`: the agent runs commands that only show something, for users other than root.

Only root may open the ledger itself: a user who can open a file can lock it, and so keep containers from
starting. A member of the group sends a command's words to a socket, and gets the command's output, made for
the member's terminal. Only the words listed here are taken: none that names a file, changes anything or does
not end by itself. Without such a group on the node there is no socket.
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from typing import Any, NoReturn

from xpu_runtime import paths
from xpu_runtime.agent.side_process import SideProcess
from xpu_runtime.agent.status import listen
from xpu_runtime.errors import XpuError
from xpu_runtime.linux.child import end_with
from xpu_runtime.value import Value

GROUP = "xpu"
SOCKET = "read.sock"
#: Answers at a time: for one user; for users who have one already; and in all, so that a few slow questions
#: do not shut out the other users. The last is how many of a user's may wait.
_MOST_OF_ONE, _MOST_MORE, _MOST, _MOST_WAITING = 2, 8, 24, 32
#: Clients that wait to be seen, which takes a moment.
_QUEUE = 128
#: Seconds for a client's request, for a command, and for both. `top --once` takes its interval (60 s at most)
#: and two answers of the driver.
_CLIENT_S, _COMMAND_S, _ALL_S = 2.0, 90.0, 120
#: Seconds until another client is taken after a failure; and for how long and how often a client tries to get
#: into the queue.
_AGAIN_S, _CONNECT_S, _CONNECT_AGAIN_S = 1.0, 10.0, 0.05
_LONGEST_REQUEST = 1 << 16
#: So many of these are in memory at a time as there are answers.
_LONGEST_ANSWER = 16 << 20
_COLUMNS = range(1, 10_000)
_UCRED = struct.Struct("3i")
#: Lower than the processes beside it: writing shares and starting containers come first.
_NICE = 5


class _Words(Value):
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
        ("-e", "--env", "--annotation", "--device"),
    ),
    "inspect": _Words(("--wide", "--json"), (), 1),
    "metrics": _Words(()),
    "ps": _Words(("--no-trunc", "-q", "--quiet", "--wide", "--json"), ("--format",)),
    "top": _Words(("--once", "--json"), ("--interval",)),
}


def is_shown(words: list[str]) -> bool:
    """Whether the group may use a form of this command."""
    return bool(words) and words[0] in _COMMANDS


def is_answered(words: list[str]) -> bool:
    """Whether the group may run `xpu` with these words."""
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


def ask(words: list[str], columns: int | None, coloured: bool) -> tuple[int, bytes, bytes] | None:
    """Exit status, stdout and stderr of `xpu` with these words, made for a terminal of so many columns (None:
    no terminal) with colours or without; None if this process gets no answer. XpuError if the agent is too
    busy."""
    request = {"words": words, "columns": columns, "coloured": coloured}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            _connect(connection)
            connection.settimeout(2 * _ALL_S)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as answer:
                status, out, err = json.loads(answer.readline(256))
                texts = answer.read(out), answer.read(err)
        except (OSError, ValueError, TypeError):
            return None
    return (status, *texts) if [out, err] == [len(text) for text in texts] else None


def _connect(connection: socket.socket) -> None:
    """OSError, XpuError. A full queue refuses a socket with a time-out at once (EAGAIN of connect(2))."""
    connection.settimeout(_CLIENT_S)
    last = time.monotonic() + _CONNECT_S
    while True:
        try:
            return connection.connect(paths.in_run_dir(SOCKET))
        except BlockingIOError:
            if time.monotonic() > last:
                what = f"the agent has not accepted the question on {paths.in_run_dir(SOCKET)}"
                raise XpuError(f"{what} in {_CONNECT_S:.0f} s", "see `xpu doctor`, as root") from None
            time.sleep(_CONNECT_AGAIN_S)


def command_service(log: Callable[[str], None]) -> SideProcess | None:
    """The process that answers members of the group; None where the node has no such group."""
    try:
        group = grp.getgrnam(GROUP).gr_gid
    except KeyError:
        return None
    return SideProcess(f"the service for the group {GROUP}", _NICE, lambda: _serve(group), SOCKET, log)


def _serve(group: int) -> NoReturn:
    """The life of the process that listens; each client is served in one of its own."""
    path = paths.in_run_dir(SOCKET)
    listening = listen(SOCKET, socket.SOCK_STREAM, _QUEUE)
    os.chown(path, -1, group)
    os.chmod(path, 0o660)
    Clients(listening).serve()


class Clients:
    """The clients, in the listening process: each waits for a place, and then gets a process of its own."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        #: In the order in which they came, with their users.
        self._waiting: list[tuple[socket.socket, int]] = []
        #: By the reading end of a pipe that closes when the process ends: its id and its user.
        self._served: dict[int, tuple[int, int]] = {}

    def serve(self) -> NoReturn:
        while True:
            try:
                self._step()
            except OSError:  # no process or descriptor is left on the machine
                time.sleep(_AGAIN_S)

    def _step(self) -> None:
        poll = select.poll()
        for fd in (self._listening.fileno(), *self._served):
            poll.register(fd, select.POLLIN)
        for connection, _ in self._waiting:
            poll.register(connection.fileno(), 0)  # whether it has hung up
        # One that could not be started is tried again.
        ready = {fd for fd, _ in poll.poll(None if self._next() is None else _AGAIN_S * 1000)}
        gone = [each for each in self._waiting if each[0].fileno() in ready]
        self._waiting = [each for each in self._waiting if each not in gone]
        for connection, _ in gone:
            connection.close()
        for fd in ready:
            if fd in self._served:
                child, _ = self._served.pop(fd)
                os.close(fd)
                os.waitpid(child, 0)
        if self._listening.fileno() in ready:
            self._take()
        while (place := self._next()) is not None:
            self._start(*self._waiting[place])
            self._waiting.pop(place)[0].close()

    def _take(self) -> None:
        """Lets a client wait, or tells it that too many of its user's clients do."""
        try:
            connection, _ = self._listening.accept()
        except BlockingIOError:
            return  # the client is gone
        uid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]
        if sum(each == uid for _, each in self._waiting) < _MOST_WAITING:
            self._waiting.append((connection, uid))
            return
        with connection:
            connection.setblocking(False)
            text = f"xpu: {_MOST_WAITING} commands of user {uid} wait for the agent already: wait for them\n"
            with contextlib.suppress(OSError):  # it has not waited for that
                connection.send(_answer_of(1, b"", text.encode()))

    def _next(self) -> int | None:
        """The index of the next client: the first of those whose user has the fewest places."""
        served = [uid for _, uid in self._served.values()]
        count = [served.count(uid) for _, uid in self._waiting]
        least = min(count, default=_MOST_OF_ONE)
        most = _MOST_MORE if least else _MOST
        return count.index(least) if least < _MOST_OF_ONE and len(served) < most else None

    def _start(self, connection: socket.socket, uid: int) -> None:
        own = os.getpid()
        ended, held = os.pipe()
        try:
            child = os.fork()
        except OSError:
            os.close(ended)
            raise
        finally:
            if os.getpid() == own:
                os.close(held)
        if child == 0:
            self._listening.close()
            for other, _ in self._waiting:
                if other is not connection:
                    other.close()
            _answer(connection, own)
        self._served[ended] = child, uid


def _answer(connection: socket.socket, parent: int) -> NoReturn:
    """The life of a client's process."""
    try:
        end_with(parent)
        signal.alarm(_ALL_S)
        status, out, err = _run(_request(connection))
        connection.settimeout(_COMMAND_S)
        connection.sendall(_answer_of(status, out, err))
    finally:
        os._exit(0)


def _request(connection: socket.socket) -> bytes:
    """The client's request; TimeoutError if it does not come within _CLIENT_S."""
    last = time.monotonic() + _CLIENT_S
    request = b""
    while not request.endswith(b"\n") and len(request) < _LONGEST_REQUEST:
        connection.settimeout(max(0.001, last - time.monotonic()))
        piece = connection.recv(_LONGEST_REQUEST)
        if not piece:
            break
        request += piece
    return request


def _answer_of(status: int, out: bytes, err: bytes) -> bytes:
    return json.dumps([status, len(out), len(err)]).encode() + b"\n" + out + err


def _run(request: bytes) -> tuple[int, bytes, bytes]:
    try:
        asked: Any = json.loads(request)
        words, columns, coloured = (asked[name] for name in ("words", "columns", "coloured"))
    except (ValueError, TypeError, LookupError, RecursionError):
        words = columns = coloured = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return 1, b"", b"xpu: no words were understood\n"
    if not is_answered(words):
        return 1, b"", b"xpu: this is for root alone\n"
    environ = dict(os.environ)
    if isinstance(columns, int) and columns in _COLUMNS:
        environ[paths.TERMINAL_VARIABLE] = f"{columns} coloured" if coloured is True else f"{columns}"
    program = os.path.join(os.path.dirname(paths.HOOK), "xpu")
    own = os.getpid()
    try:
        command = subprocess.Popen(
            [program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=environ,
            preexec_fn=lambda: end_with(own),  # this process has one thread
        )
    except (OSError, ValueError):  # among them words that no program can be given
        return 1, b"", f"xpu: {program} cannot be run with these words\n".encode()
    try:
        return _to_its_end(command)
    except _TooMuchError as error:
        command.kill()  # its end is not waited for: it may hang in the kernel
        return 1, b"", f"xpu: {words[0]} {error}\n".encode()


class _TooMuchError(Exception):
    """The limit, time or output, that a member's command has exceeded."""


def _to_its_end(command: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Exit status, stdout and stderr; _TooMuchError."""
    assert command.stdout is not None and command.stderr is not None
    texts = {command.stdout.fileno(): bytearray(), command.stderr.fileno(): bytearray()}
    last = time.monotonic() + _COMMAND_S
    poll = select.poll()
    for fd in texts:
        poll.register(fd, select.POLLIN)
    still_open = set(texts)
    while still_open:
        for fd, _ in poll.poll(max(0.0, last - time.monotonic()) * 1000):
            piece = os.read(fd, 1 << 16)
            texts[fd] += piece
            if not piece:
                poll.unregister(fd)
                still_open.remove(fd)
        if time.monotonic() > last:
            raise _TooMuchError(f"took more than {_COMMAND_S:.0f} s: does the driver answer?")
        if sum(map(len, texts.values())) > _LONGEST_ANSWER:
            size = f"{_LONGEST_ANSWER >> 20} MiB"
            raise _TooMuchError(f"tells more than {size}: ask for less (--since, --container), or as root")
    out, err = map(bytes, texts.values())
    return command.wait(), out, err
