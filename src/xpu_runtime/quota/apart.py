"""The driver's limits, set by a process of its own: so that a driver which does not answer stops nobody else.

A limit changes while the ledger is locked (resize.py), and a call into the driver can hang for ever, where no
signal reaches it. Then only the child hangs, which has no lock, and the caller goes on after a bound. What
the child was asked for last may still come into force when the driver answers again: repeating the change
puts that right.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from xpu_runtime.devices.inventory import Inventory, find
from xpu_runtime.errors import DeviceError, XpuError
from xpu_runtime.quota import driver

#: Seconds for the driver's start, before anything is locked.
_START_S = 20.0
#: Seconds for all calls together while the ledger is locked: less than a container's end waits for it.
LOCKED_S = 4.0
#: And for the end of the process, which takes milliseconds unless it hangs.
_END_S = 1.0
_MOST_BYTES = 1 << 16


class Apart:
    """A context manager with the calls of `driver` that a change of a limit needs, each with an end."""

    def __init__(self, found: Inventory) -> None:
        self._found = found
        self._until = 0.0
        self._problem: DeviceError | None = None

    def __enter__(self) -> Apart:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        self._child = os.fork()
        if self._child == 0:
            self._socket.close()
            _serve(self._found, theirs)
        theirs.close()
        self.allow(_START_S)
        try:
            self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        os.kill(self._child, signal.SIGKILL)
        ended = os.pidfd_open(self._child)
        try:
            # One that hangs in the driver ends when that lets it, and is then init's.
            select.select([ended], [], [], _END_S)
            os.waitpid(self._child, os.WNOHANG)
        finally:
            os.close(ended)

    def allow(self, seconds: float) -> None:
        """All calls from here on end within `seconds`."""
        self._until = time.monotonic() + seconds

    def set_limit(self, uuid: str, folder: str, limit: int) -> None:
        """As `driver.set_limit`; DeviceError too where the driver does not answer in time."""
        self._ask(uuid, folder, limit)

    def in_use(self, uuid: str, folder: str) -> int:
        """Bytes that the driver counts in the cgroup `folder`; errors as of `set_limit`."""
        return int(self._ask(uuid, folder, None))

    def _ask(self, *request: object) -> Any:
        if self._problem is not None:
            raise self._problem
        try:
            self._socket.send(json.dumps(request).encode())
        except OSError:
            raise self._died() from None
        return self._answer()

    def _answer(self) -> Any:
        left = max(0.0, self._until - time.monotonic())
        if not select.select([self._socket], [], [], left)[0]:
            self._problem = DeviceError(
                "the driver does not answer (see whether nvidia-smi does)",
                "repeat the change when it does: `xpu inspect` shows what is in force",
            )
            raise self._problem
        try:
            answer = self._socket.recv(_MOST_BYTES)
        except OSError:
            answer = b""
        if not answer:
            raise self._died()
        value, what, todo = json.loads(answer)
        if what:
            raise DeviceError(what, todo)
        return value

    def _died(self) -> DeviceError:
        self._problem = DeviceError("the process that asks the driver has died", "repeat the change")
        return self._problem


def _serve(found: Inventory, requests: socket.socket) -> None:
    """The child's whole life; never returns."""
    try:
        if not found.nvml:
            _serve_with(found, None, requests)
        else:
            with driver.Nvml(found) as nvml:
                _serve_with(found, nvml, requests)
    except XpuError as error:
        requests.send(_encoded(None, error))
    finally:
        os._exit(0)


def _serve_with(found: Inventory, nvml: driver.Nvml | None, requests: socket.socket) -> None:
    requests.send(_encoded(None))
    while request := requests.recv(_MOST_BYTES):
        uuid, folder, limit = json.loads(request)
        try:
            requests.send(_encoded(_call(found, nvml, uuid, folder, limit)))
        except XpuError as error:
            requests.send(_encoded(None, error))
    os._exit(0)  # without nvmlShutdown, which can hang as well


def _call(found: Inventory, nvml: driver.Nvml | None, uuid: str, folder: str, limit: int | None) -> int:
    """Sets the limit, or where that is None, returns the bytes in use (0: the driver does not count)."""
    device = find(found, uuid)
    assert device is not None  # the caller has looked
    if nvml is not None and device.vendor == "nvidia":
        if limit is None:
            return nvml.memory_limit(uuid, folder).used
        nvml.set_memory_limit(uuid, folder, limit)
    elif limit is not None:
        driver.set_limit(found, device, folder, limit)
    return 0


def _encoded(value: int | None, error: XpuError | None = None) -> bytes:
    return json.dumps([value, error.what if error else "", error.todo if error else ""]).encode()
