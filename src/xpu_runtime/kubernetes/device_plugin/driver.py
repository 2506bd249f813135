"""What the node has, asked of the drivers as `xpu devices` does, each time by a process of its own.

A driver can hang where no signal reaches it: then only that process hangs, and no other is started until it
has ended. It is a new program and no fork, as gRPC's threads could have left any lock taken; and what a
driver's library needs of memory is not the plugin's. Asking renews the inventory that containers' starts use,
and takes back what the dead hold, as that asks drivers too.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Callable

from xpu_runtime import granting
from xpu_runtime.config.defaults import Config
from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import cgroups, proc
from xpu_runtime.messages import line_of
from xpu_runtime.vendors import discovery
from xpu_runtime.vendors.inventory import Inventory

_MOST_BYTES = 16 << 20
#: Seconds for the ledger, in that process.
_LEDGER_S = 2.0

_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import main; main()"


class DriverLook:
    """Asks again and again. One thread; never waits."""

    def __init__(self, every_s: float, answer_s: float) -> None:
        """`every_s`: seconds from one question to the next; `answer_s`: for an answer (cards without
        persistence mode start slowly)."""
        self._every_s = every_s
        self._answer_s = answer_s
        self._process: subprocess.Popen[bytes] | None = None
        self._received = bytearray()
        self._asked_at: float | None = None
        self._given_up = False
        #: What was told last; None: nothing yet.
        self.inventory: Inventory | None = None
        #: Why the drivers cannot be asked now; "": they have answered.
        self.problem = ""

    def step(self) -> bool:
        """Asks where it is time, and takes what was answered; whether there is something new."""
        now = time.monotonic()
        if self._process is not None:
            return self._take(self._process, now)
        if self._asked_at is None or now - self._asked_at >= self._every_s:
            self._asked_at = now
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-IS", "-c", _PROGRAM.format(path=sys.path, module=__name__)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except OSError as error:
                return self._failed(f"the drivers cannot be asked: {error.strerror}")
            self._received, self._given_up = bytearray(), False
        return False

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._close_pipe(self._process)
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                pass  # it ends when the driver lets it

    def _take(self, process: subprocess.Popen[bytes], now: float) -> bool:
        if self._given_up:
            if process.poll() is not None:
                self._process = None
            return False
        assert process.stdout is not None and self._asked_at is not None
        while select.select([process.stdout], [], [], 0)[0]:
            piece = os.read(process.stdout.fileno(), 1 << 16)
            self._received += piece
            if not piece or len(self._received) > _MOST_BYTES:
                return self._answered(process)
        if now - self._asked_at < self._answer_s:
            return False
        process.kill()
        self._given_up = True
        self._close_pipe(process)
        return self._failed(f"the driver has not answered for {self._answer_s:.0f} s")

    def _answered(self, process: subprocess.Popen[bytes]) -> bool:
        self._close_pipe(process)
        process.kill()
        process.wait()
        self._process = None
        try:
            found, problem = pickle.loads(self._received)  # noqa: S301 - from our own program
        except Exception:  # it was killed, or the driver's library has ended it
            return self._failed(f"the process that asks the drivers has ended with {process.returncode}")
        if found is None:
            return self._failed(problem)
        new = (found, "") != (self.inventory, self.problem)
        self.inventory, self.problem = found, ""
        return new

    def _failed(self, problem: str) -> bool:
        new, self.problem = problem != self.problem, problem
        return new

    @staticmethod
    def _close_pipe(process: subprocess.Popen[bytes]) -> None:
        if process.stdout is not None:
            process.stdout.close()


def main(ask: Callable[[], Inventory] | None = None) -> None:
    """The process's whole life: the inventory, or why there is none, on stdout."""
    out = sys.stdout.buffer
    try:
        answer: tuple[Inventory | None, str] = (ask or _ask)(), ""
    except XpuError as error:
        answer = None, str(error)
    except Exception as error:  # a driver's binding can raise anything
        answer = None, line_of(error)
    out.write(pickle.dumps(answer))
    out.flush()


def _ask() -> Inventory:
    config = load()
    try:
        _reap(config)
    except XpuError:
        pass  # the ledger is locked, or nobody's; the next time may do better
    return discovery.refresh(*discovery.driver_root(config))


def _reap(config: Config) -> None:
    """Takes back what is held by containers that have died without a word, such as with their shim: nobody
    else does until the next start that finds no room, and until then it would not be offered."""
    waiting.allow(_LEDGER_S)
    with Ledger(as_is=True) as ledger:
        grants = ledger.grants()
    if not all(map(_lives, grants)):
        granting.reap(config)


def _lives(grant: Grant) -> bool:
    if proc.is_alive(grant.pid, grant.start_time):
        return True
    return bool(grant.cgroup) and cgroups.has_processes(grant.cgroup)
