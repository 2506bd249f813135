"""Processes of the agent beside its loop, so that no round waits for their clients.

Each is forked from the agent, is killed when the agent ends, and is started again when it ends itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from xpu_runtime.agent.status import inode, remove
from xpu_runtime.linux.child import end_with, keep_only

#: Seconds until a process that has ended, or could not be started, is started again.
AGAIN_S = 10.0


class SideProcess:
    """One process; only the holder of the agent's lock makes one. `what` is its name in the log."""

    def __init__(
        self, what: str, nice: int, life: Callable[[], None], socket: str, log: Callable[[str], None]
    ) -> None:
        """`life` is called in the process, which ends when it returns; `socket` is the name of its socket in
        the run folder; `nice` is its priority, or the agent's if that is lower."""
        self._what = what
        self._nice = nice
        self._life = life
        self._socket = socket
        self._log = log
        self._child = 0
        self._inode = 0
        self._not_before = 0.0

    def look(self) -> None:
        """Starts the process if there is none: at first, when it has ended, and after it was killed because
        its socket is gone. Never waits."""
        now = time.monotonic()
        if self._child and not _has_ended(self._child):
            found = inode(self._socket)
            if not self._inode:
                self._inode = found  # which it makes once it has begun, or once there is room
            elif found != self._inode:
                os.kill(self._child, signal.SIGKILL)
            return
        if self._child:
            self._child, self._not_before = 0, now + AGAIN_S
            self._inode = 0
            self._log(f"{self._what} has ended, and is started again in {AGAIN_S:.0f} s")
        if now < self._not_before:
            return
        remove(self._socket)  # a dead one's, which must not pass for that of the new one
        agent = os.getpid()
        try:
            self._child = os.fork()
        except OSError as error:  # too many processes, or too little memory
            self._not_before = now + AGAIN_S
            self._log(
                f"{self._what} cannot be started: {error.strerror}; it is tried again in {AGAIN_S:.0f} s"
            )
            return
        if self._child == 0:
            self._live(agent)

    def close(self, ours: bool = True) -> None:
        """`ours`: as in StatusSocket.close."""
        if not self._child:
            return
        try:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
        except OSError:
            pass  # gone already
        if ours:
            remove(self._socket)
        self._child = 0

    def _live(self, agent: int) -> NoReturn:
        """The process's whole life."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            end_with(agent)
            keep_only()
            # The agent's own is for its rounds.
            os.setpriority(os.PRIO_PROCESS, 0, max(self._nice, os.getpriority(os.PRIO_PROCESS, 0)))
            self._life()
        except Exception as error:  # the next one may do better
            self._log(f"{self._what} has failed: {error!r}")
        finally:
            sys.stderr.flush()
            os._exit(1)


def _has_ended(child: int) -> bool:
    return os.waitpid(child, os.WNOHANG)[0] != 0
