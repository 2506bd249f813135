"""The driver's samples of what each process uses of each device, asked for in a process of its own.

A call into a driver can hang for ever, where no signal reaches it: then only the child hangs. The agent asks,
goes on with its rounds, and takes the answer when it is there. A child that does not answer is given up, and
another one tried later, once the first has ended: no more than one hangs. Which driver is asked, and how, is
the vendors' to know.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time

from xpu_runtime.errors import XpuError
from xpu_runtime.linux.child import end_with, keep_only

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Busy shares (0 to 1) by device UUID and process. A device is left out of which the driver does not tell.
Utilization = dict[str, dict[int, float]]

_MOST_BYTES = 1 << 20
#: Seconds until a child that does not answer is given up: cards without persistence mode start slowly.
ANSWER_S = 20.0
#: And until the next one is tried.
AGAIN_S = 60.0


class Samples:
    """Asks a child for them; never blocks. `log` is told what goes wrong, once each time."""

    def __init__(self, opener: Callable[[], Callable[[], Utilization]], log: Callable[[str], None]) -> None:
        """`opener` is called in the child, and may take long; what it returns is called for each question."""
        self._opener = opener
        self._log = log
        self._child = 0
        self._socket: socket.socket | None = None
        self._asked_at: float | None = None
        self._not_before = 0.0
        self._told = ""

    def fileno(self) -> int | None:
        """Readable when there is an answer; None: there is no child."""
        return None if self._socket is None else self._socket.fileno()

    def ask(self) -> None:
        """Asks for samples, unless an answer is still due; `answer` will have them."""
        now = time.monotonic()
        if self._asked_at is not None:
            if now - self._asked_at > ANSWER_S:
                self._give_up("the driver does not answer (see whether its own tools do)")
            return
        if self._socket is None:
            self.reap()
            if now < self._not_before or self._child:
                return
            try:
                self._start()
            except OSError as error:  # too many processes or descriptors, or too little memory
                self._give_up(f"the process that asks the driver cannot be started ({error.strerror})")
                return
        try:
            assert self._socket is not None
            self._socket.send(b"?")
            self._asked_at = now
        except OSError as error:
            self._give_up(f"the process that asks the driver has died ({error.strerror})")

    def answer(self) -> Utilization | None:
        """What was asked for; None where there is none yet, or none to be had."""
        if self._socket is None:
            return None
        try:
            content = self._socket.recv(_MOST_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            content = b""
        if not content:
            self._give_up("the process that asks the driver has died")
            return None
        self._asked_at = None
        answer = json.loads(content)
        if answer["problem"]:
            self._give_up(answer["problem"])
            return None
        if self._told:
            self._told = ""
            self._log("the driver tells again what each process uses")
        return {
            uuid: {int(pid): float(busy) for pid, busy in by_pid.items()}
            for uuid, by_pid in answer["utilization"].items()
        }

    def wait(self, seconds: float) -> Utilization | None:
        """Asks, unless an answer is still due, and waits so long for the answer; as `answer`."""
        self.ask()
        if self._socket is not None:
            select.select([self._socket], [], [], seconds)
        return self.answer()

    def close(self) -> None:
        """Ends the child."""
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        self._asked_at = None
        os.kill(self._child, signal.SIGKILL)
        self.reap()

    def reap(self) -> None:
        """Takes note of the child's end; one that hangs in the driver ends when that lets it."""
        if self._child:
            try:
                if os.waitpid(self._child, os.WNOHANG)[0]:
                    self._child = 0
            except ChildProcessError:
                self._child = 0

    def _give_up(self, why: str) -> None:
        self.close()
        self._not_before = time.monotonic() + AGAIN_S
        if why != self._told:
            self._told = why
            self._log(f"what containers say they use is not compared with the driver's samples: {why}")

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setblocking(False)
            parent = os.getpid()
            try:
                child = os.fork()
            except OSError:
                ours.close()
                raise
            if child == 0:
                _serve(self._opener, theirs, parent)
        self._child, self._socket = child, ours


class InProcess:
    """The same, asked for in the calling process, for one that is given up itself where the driver hangs."""

    def __init__(self, opener: Callable[[], Callable[[], Utilization]]) -> None:
        self._opener = opener
        self._source: Callable[[], Utilization] | None = None

    def ask(self) -> None:
        """Nothing is asked before somebody wants the answer."""

    def answer(self) -> Utilization | None:
        """As Samples has it; it waits as long as the driver does."""
        try:
            if self._source is None:
                self._source = self._opener()
                self._source()  # of a time before anybody asked
            return self._source()
        except Exception:  # a driver's binding can raise anything
            self.close()
            return None

    def wait(self, _seconds: float) -> Utilization | None:
        return self.answer()

    def close(self) -> None:
        self._source = None


def _serve(opener: Callable[[], Callable[[], Utilization]], requests: socket.socket, parent: int) -> None:
    """The child's whole life; never returns."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        end_with(parent)
        # The agent's lock and the grants' pages are among the others.
        keep_only(requests.fileno())
        source = None
        while requests.recv(16):
            try:
                if source is None:
                    source = opener()
                    source()  # of a time before anybody asked
                answer = {"utilization": source(), "problem": ""}
            except XpuError as error:
                answer = {"utilization": {}, "problem": str(error)}
            except Exception as error:  # a driver's binding can raise anything
                answer = {"utilization": {}, "problem": repr(error)}
            requests.send(json.dumps(answer).encode())
    finally:
        os._exit(0)
