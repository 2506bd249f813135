"""The agent's start workers: their socket, and their parent process (worker.py).

They are a program of their own, with only a start's imports. When the agent ends, for any reason, its end of
a pipe closes: workers finish their present call, and end. Only they hold the socket: once none of them is
left, connecting fails, and a start is done without them at once instead of waiting in vain.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from xpu_runtime import paths
from xpu_runtime.agent.status import inode, listen, remove

#: As in native/launcher/agent.c.
SOCKET = "start.sock"
_QUEUE = 1024
#: On a small node two keep starts that come together going while one waits for the ledger.
_FEWEST, _MOST = 2, 4
#: Seconds until others are tried where they have ended, and for them to end.
_AGAIN_S, _END_S = 1.0, 5.0
#: Twice as long each time that they end within this.
_LONGEST_PAUSE_S = 60.0


class StartWorkers:
    """Only the holder of the agent's lock makes one."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._program = os.path.join(paths.LIB, "worker.py")
        self._count = max(_FEWEST, min(_MOST, len(os.sched_getaffinity(0))))
        self._inode = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: socket.socket | None = None
        self._not_before = self._started = 0.0
        self._pause = _AGAIN_S

    def look(self) -> None:
        """Starts them where there are none: at first, and when they have ended, as they do too where their
        socket was removed. Never waits."""
        if self._process is not None:
            if self._process.poll() is None:
                if self._ours is not None and inode(SOCKET) != self._inode:
                    self._ours.close()
                    self._ours = None
                return
            self._log(f"the start workers have ended ({self._process.returncode}): others take their place")
            self._forget()
            lived = time.monotonic() - self._started
            self._pause = _AGAIN_S if lived > _LONGEST_PAUSE_S else min(2 * self._pause, _LONGEST_PAUSE_S)
        if time.monotonic() < self._not_before or not os.path.exists(self._program):
            return  # pip has put no such file there: starts are done without
        self._started = time.monotonic()
        self._not_before = self._started + self._pause
        try:
            self._start()
        except OSError as error:
            self._log(f"there are no start workers: {error.filename or SOCKET}: {error.strerror}")
            self._forget()

    def _start(self) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs, listen(SOCKET, socket.SOCK_SEQPACKET, _QUEUE) as listening:
            self._inode = inode(SOCKET)
            fds = (listening.fileno(), theirs.fileno())
            words = [sys.executable, "-I", "-S", self._program, *map(str, fds), str(self._count)]
            self._process = subprocess.Popen(
                words, pass_fds=fds, stdin=subprocess.DEVNULL, cwd="/", start_new_session=True
            )

    def close(self, ours: bool = True) -> None:
        """Waits for a call that is under way, not for long: it ends by itself. `ours`: as in
        StatusSocket.close."""
        process = self._process
        self._forget(ours)
        if process is not None:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                pass

    def _forget(self, ours: bool = True) -> None:
        self._process = None
        if ours:
            remove(SOCKET)
        if self._ours is not None:
            self._ours.close()
            self._ours = None
