"""The agent's socket, by which commands learn that it runs, and its state (observe/agent_status.py).

A stream socket in the run folder, for root only. A client writes a line, `status`, and reads one line of
JSON. The agent answers between its rounds without waiting: a slow client is dropped.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from xpu_runtime import paths
from xpu_runtime.errors import XpuError
from xpu_runtime.observe.agent_status import SOCKET, WAIT_S

#: sun_path of unix(7), and the 0 at its end.
_LONGEST_PATH = 108 - 1
_MOST_CLIENTS = 8
_LONGEST_LINE = 256
#: asm-generic/socket.h; Python has no name for it. The answer must fit: the agent does not wait for the
#: reader.
_SO_SNDBUFFORCE = 32


def listen(name: str, kind: int, queue: int) -> socket.socket:
    """A listening socket in the run folder, for root only; it does not block.

    OSError; XpuError where the path is too long for a socket. The caller holds the agent's lock: a socket
    that is there is a dead agent's.
    """
    path = paths.in_run_dir(name)
    if (length := len(os.fsencode(path))) > _LONGEST_PATH:
        what = f"the path of the agent's socket {path} has {length} bytes: Linux takes {_LONGEST_PATH}"
        raise XpuError(what, "name a shorter folder in XPU_RUN_DIR")
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listening = socket.socket(socket.AF_UNIX, kind)
    listening.setblocking(False)
    old = os.umask(0o177)
    try:
        listening.bind(path)
    finally:
        os.umask(old)
    listening.listen(queue)
    return listening


def inode(name: str) -> int:
    """The inode of the socket of that name in the run folder; 0 if there is none."""
    try:
        return os.stat(paths.in_run_dir(name), follow_symlinks=False).st_ino
    except OSError:
        return 0


def remove(name: str) -> None:
    """Removes a socket from the run folder; no error if there is none."""
    try:
        os.unlink(paths.in_run_dir(name))
    except OSError:
        pass


class StatusSocket:
    """The listening end, in a poll loop of the agent's own."""

    def __init__(self) -> None:
        self._clients: dict[socket.socket, float] = {}
        self._listen()

    def _listen(self) -> None:
        self._listening = listen(SOCKET, socket.SOCK_STREAM, _MOST_CLIENTS)
        self._inode = inode(SOCKET)

    def look(self) -> None:
        """Makes the socket anew where somebody has removed it, if that can be; never waits."""
        if inode(SOCKET) == self._inode:
            return
        before = self._listening
        try:
            self._listen()
        except OSError:
            return  # as where the disk is full: at the next look
        before.close()

    def filenos(self) -> list[int]:
        """The descriptors to poll for reading."""
        return [self._listening.fileno(), *(client.fileno() for client in self._clients)]

    def serve(self, status: Callable[[], dict[str, Any]]) -> None:
        """Takes new clients, and answers those that have asked."""
        self._accept()
        now = time.monotonic()
        for client, since in list(self._clients.items()):
            try:
                line = client.recv(_LONGEST_LINE, socket.MSG_PEEK)
            except BlockingIOError:
                line = b"..."
            except OSError:
                line = b""
            if line == b"status\n":
                self._answer(client, status())
            elif not line or len(line) == _LONGEST_LINE or now - since > WAIT_S:
                self._drop(client)

    def close(self, ours: bool = True) -> None:
        """`ours`: the socket in the run folder is, and is removed."""
        for client in list(self._clients):
            self._drop(client)
        self._listening.close()
        if ours:
            remove(SOCKET)

    def _accept(self) -> None:
        while len(self._clients) < _MOST_CLIENTS:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            client.setblocking(False)
            self._clients[client] = time.monotonic()

    def _answer(self, client: socket.socket, status: dict[str, Any]) -> None:
        content = json.dumps(status).encode() + b"\n"
        try:
            client.recv(_LONGEST_LINE)  # closed with something unread, it would lose the answer
            client.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, len(content))
            client.send(content)
        except OSError:
            pass
        self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        del self._clients[client]
        client.close()
