"""A change of limits that is made in another process, so that a driver which hangs blocks only that one.

A limit changes while the ledger is locked (resize.py), and a call into a driver can hang for ever, where no
signal reaches it. Then only the child hangs, which has no lock, and the caller goes on after a few seconds.
What the child was asked for last may still come into force when the driver answers again: repeating the
change puts that right. It knows no driver: any backend's own change can be made there.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from typing import Any

from xpu_runtime.errors import DeviceError, XpuError
from xpu_runtime.limits.backend import Change
from xpu_runtime.linux import child

#: Seconds for the driver's start, before anything is locked.
_START_S = 20.0
#: Seconds for all calls together while the ledger is locked: less than a container's end waits for it.
LOCKED_S = 4.0
#: And for the end of the process, which takes milliseconds unless it hangs.
_END_S = 1.0
_MOST_BYTES = 1 << 16


class SeparateProcess(Change):
    """The calls of `change`, which is entered in the other process, each with an end.

    DeviceError too where they do not end in time.
    """

    def __init__(self, change: Change) -> None:
        self._change = change
        self._until = 0.0
        #: The number of the last question: the answer to an interrupted one comes before the next one's.
        self._asked = 0
        self._problem: DeviceError | None = None

    def __enter__(self) -> SeparateProcess:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            self._socket.close()
            _serve(self._change, theirs, own)
        theirs.close()
        self._allow(_START_S)
        try:
            self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        child.end(self._child, _END_S)

    def locked(self) -> None:
        self._allow(LOCKED_S)

    def set(self, position: int, kind: str, value: int) -> None:
        self._ask(position, kind, value)

    def in_use(self, position: int, kind: str) -> int:
        return int(self._ask(position, kind, None))

    def _allow(self, seconds: float) -> None:
        """All calls from here on end within `seconds`."""
        self._until = time.monotonic() + seconds

    def _ask(self, *request: object) -> Any:
        if self._problem is not None:
            raise self._problem
        self._asked += 1
        try:
            self._socket.send(json.dumps([self._asked, *request]).encode())
        except OSError:
            raise self._died() from None
        return self._answer()

    def _answer(self) -> Any:
        number = -1
        while number != self._asked:
            left = max(0.0, self._until - time.monotonic())
            if not select.select([self._socket], [], [], left)[0]:
                self._problem = DeviceError(
                    "the driver does not answer (see whether its own tools do)",
                    "repeat the change when it does: `xpu inspect` shows what is in force",
                )
                raise self._problem
            try:
                answer = self._socket.recv(_MOST_BYTES)
            except OSError:
                answer = b""
            if not answer:
                raise self._died()
            number, value, what, todo = json.loads(answer)
        if what:
            raise DeviceError(what, todo)
        return value

    def _died(self) -> DeviceError:
        self._problem = DeviceError("the process that asks the driver has died", "repeat the change")
        return self._problem


def _serve(change: Change, requests: socket.socket, parent: int) -> None:
    """The child's whole life; never returns."""
    try:
        # Apart from the terminal's Ctrl-C, after which what has shrunk is put back through this process.
        os.setpgid(0, 0)
        child.end_with(parent)
        child.silence()
        with change:
            requests.send(_encoded(0, None))
            while content := requests.recv(_MOST_BYTES):
                number, *request = json.loads(content)
                try:
                    requests.send(_encoded(number, _call(change, *request)))
                except XpuError as error:
                    requests.send(_encoded(number, None, error))
            os._exit(0)  # without the end of the change, which can hang as well
    except XpuError as error:
        requests.send(_encoded(0, None, error))
    finally:
        os._exit(0)


def _call(change: Change, position: int, kind: str, value: int | None) -> int:
    """Sets the limit, or where that is None, returns what is in use."""
    if value is None:
        return change.in_use(position, kind)
    change.set(position, kind, value)
    return 0


def _encoded(number: int, value: int | None, error: XpuError | None = None) -> bytes:
    """The answer to the question of that number; 0: to whether the change could be entered."""
    return json.dumps([number, value, error.what if error else "", error.todo if error else ""]).encode()
