"""Asks the drivers for the node's devices as `xpu devices` does, each time in a process of its own.

It is a new program and no fork, as gRPC's threads could have left any lock taken. It ends with each answer,
so the plugin does not carry the memory of a driver's library. Asking renews the inventory that containers'
starts use, and reaps dead containers' slices, as that asks drivers too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from xpu_runtime import granting
from xpu_runtime.config.defaults import Config
from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger import cgroup_records, waiting
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux.deadline import HelperProcess
from xpu_runtime.vendors import discovery
from xpu_runtime.vendors.inventory import Inventory

#: Seconds for the ledger, in that process.
_LEDGER_S = 2.0


class DriverPoller:
    """Asks again and again. One thread; waits for the end of a process alone, for a second at most."""

    def __init__(self, every_s: float, answer_s: float) -> None:
        """`every_s`: seconds from one question to the next; `answer_s`: for an answer (cards without
        persistence mode start slowly)."""
        self._every_s = every_s
        self._answer_s = answer_s
        self._process = HelperProcess(_opener, program=True)
        self._asked_at: float | None = None
        #: The last answer; None: none yet.
        self.inventory: Inventory | None = None
        #: Why the drivers cannot be asked now; "": they have answered.
        self.problem = ""

    def step(self) -> bool:
        """Asks when it is time, and takes answers; returns whether there is something new."""
        now = time.monotonic()
        if self._process.until is None and (self._asked_at is None or now - self._asked_at >= self._every_s):
            self._asked_at = now
            self._process.ask(None, self._answer_s)
        answer = self._process.answer()
        if answer is None:
            return False
        self._process.close()
        before = self.inventory, self.problem
        if answer.hung:
            self.problem = f"the driver does not answer: {answer.why}"
        elif answer.error:
            self.problem = f"the drivers cannot be asked: {answer.why}" if answer.died else answer.why
        else:
            self.inventory, self.problem = answer.values[0], ""
        return before != (self.inventory, self.problem)

    def close(self) -> None:
        self._process.close()


def _opener() -> Callable[[object], Iterator[Inventory]]:
    return lambda _: iter([_ask()])


def _ask() -> Inventory:
    config = load()
    try:
        _reap(config)
    except XpuError:
        pass  # the ledger is locked, or missing; the next time may succeed
    return discovery.refresh(*discovery.driver_root(config))


def _reap(config: Config) -> None:
    """Reaps slices of containers that died without notice, for example with their shim: otherwise only the
    next start that finds no room does so, and until then they would not be offered."""
    waiting.allow(_LEDGER_S)
    with Ledger(as_is=True) as ledger:
        grants = ledger.grants()
    if not all(map(cgroup_records.has_processes, grants)):
        granting.reap(config)
