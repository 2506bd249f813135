"""Makes pages in a process of its own, asked for by one that must not wait.

A driver that is asked for its figures can hang for ever, where no signal reaches it: then only that process
hangs, is given up, and another one is tried when somebody asks again and it has ended: no more than one
hangs. It is started when it is first asked, and ended when nobody has asked for a while, or after an hour:
what a driver's library loses of its memory comes back. What it makes is not known here.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from collections.abc import Callable

from xpu_runtime.errors import XpuError
from xpu_runtime.linux.child import end_with, keep_only
from xpu_runtime.messages import line_of

_LENGTH = struct.Struct("=?I")
_MOST_BYTES = 64 << 20
_LONGEST_QUESTION = 64
#: It is ended when nobody has asked for so many seconds, and after the first answer when it is so old.
_IDLE_S = 300.0
_OLDEST_S = 3600.0
#: For the end of one that was killed.
_END_S = 0.5

#: Called in the process; what it returns makes a page, of what is asked.
Make = Callable[[], Callable[[bytes], bytes]]


class Collector:
    """One process at a time, and what it has answered so far."""

    #: Seconds for an answer. Prometheus itself waits for 10, and what is told without one takes some as well.
    longest_s = 7.0

    def __init__(self, make: Make) -> None:
        """`make` is called in the process, once, and what it returns for each question: XpuError of both."""
        self._make = make
        self._child = 0
        self._socket: socket.socket | None = None
        self._received = b""
        #: When an answer is given up (time.monotonic); None: nothing was asked.
        self.until: float | None = None
        self._started = 0.0
        #: The process that was killed last, as long as it has not ended, and when that was.
        self._killed, self._killed_at = 0, 0.0
        #: When a process that nobody asks is to be closed; None: it is at work, or there is none.
        self.idle_until: float | None = None

    def fileno(self) -> int | None:
        """Readable when there is something to `answer`; None: there is no process."""
        return None if self._socket is None else self._socket.fileno()

    def ask(self, question: bytes) -> int | None:
        """Asks, unless an answer is due already; as `fileno`, where None: it cannot be asked."""
        if self.until is not None:
            return self.fileno()
        self.until, self.idle_until = time.monotonic() + self.longest_s, None
        for _ in range(2):  # the one there is may have just ended
            try:
                if self._socket is None:
                    if not self._has_ended():
                        break
                    self._start()
                assert self._socket is not None
                self._socket.send(question)
            except OSError:
                self._end()
            else:
                return self.fileno()
        self.until = None
        return None

    def answer(self) -> tuple[bytes, str] | None:
        """The page, or why there is none; None: it is not there yet. Never waits."""
        try:
            piece = self._socket.recv(1 << 20) if self._socket is not None else b""
            self._received += piece
            ended = not piece
        except BlockingIOError:
            ended = False
        except OSError:
            ended = True
        if len(self._received) >= _LENGTH.size:
            is_page, length = _LENGTH.unpack_from(self._received)
            if len(self._received) >= _LENGTH.size + length:
                content = self._received[_LENGTH.size :]
                now = time.monotonic()
                self._received, self.until, self.idle_until = b"", None, now + _IDLE_S
                if now - self._started > _OLDEST_S:
                    self.close()
                return (content, "") if is_page else (b"", content.decode(errors="replace"))
        late = self.until is not None and time.monotonic() >= self.until
        if not ended and not late:
            return None
        hangs = self._killed if self._socket is None else 0
        self.close()
        if hangs:
            return b"", f"the driver hangs: process {hangs}, which asked it, cannot be ended"
        if late:
            return b"", f"the figures took more than {self.longest_s:.0f} s: does the driver answer?"
        return b"", "the process that collects the figures has ended"

    def close(self) -> None:
        """Ends the process; one that hangs in the driver ends when that lets it."""
        self.until = None
        self._end()

    def _end(self) -> None:
        self._received, self.idle_until = b"", None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            os.kill(self._child, signal.SIGKILL)
            self._killed, self._killed_at = self._child, time.monotonic()
        self._reap()

    def _has_ended(self) -> bool:
        """Whether the process that was killed is gone; that takes it a moment, which is waited for once."""
        self._reap()
        while self._killed and time.monotonic() - self._killed_at < _END_S:
            time.sleep(0.01)
            self._reap()
        return not self._killed

    def _reap(self) -> None:
        try:
            while ended := os.waitpid(-1, os.WNOHANG)[0]:
                if ended == self._killed:
                    self._killed = 0
        except ChildProcessError:
            self._killed = 0

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            _serve(self._make, theirs, parent)
        theirs.close()
        self._child, self._socket, self._started = child, ours, time.monotonic()


def _serve(make: Make, requests: socket.socket, parent: int) -> None:
    """The process's whole life; never returns."""
    try:
        end_with(parent)
        keep_only(requests.fileno())
        page = None
        while question := requests.recv(_LONGEST_QUESTION):
            try:
                if page is None:
                    page = make()
                _send(requests, True, page(question))
            except XpuError as error:
                _send(requests, False, str(error).encode())
            except Exception as error:  # a driver's binding can raise anything
                _send(requests, False, line_of(error).encode())
    except OSError:
        pass  # nobody asks any more
    finally:
        os._exit(0)


def _send(requests: socket.socket, is_page: bool, content: bytes) -> None:
    content = content[:_MOST_BYTES]
    requests.sendall(_LENGTH.pack(is_page, len(content)) + content)
