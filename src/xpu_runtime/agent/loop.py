"""The agent's loop: devices' rounds, grants that come and go, the driver's answers, and clients.

All that holds a limit is in the pages: the loop can be killed at any instant, and containers then have their
caps (compute.LOST_S). It looks often only while a slice is at work whose share depends on others, and between
that a few times a second at most. A container can delay nothing by its page's content, and gain nothing:
pages are read without waiting, and another process asks the driver (observe/samples.py).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xpu_runtime import version
from xpu_runtime.agent.card import ROUND_NS, Card, SliceState
from xpu_runtime.agent.comparison import Comparison
from xpu_runtime.agent.grants import OpenGrants
from xpu_runtime.agent.journal import Journal
from xpu_runtime.agent.side_process import SideProcess
from xpu_runtime.agent.start_workers import StartWorkers
from xpu_runtime.agent.status import StatusSocket
from xpu_runtime.limits import pages
from xpu_runtime.limits.compute import WHOLE
from xpu_runtime.observe.samples import Utilization

_S = 1_000_000_000
#: With this many slices on devices at work there are half as many rounds: with 64 the agent must stay below 1
#: % of a core. A lent share is still back within 100 ms: a look later, and after the borrower's work under
#: way.
_MANY = 32
#: Grants that come and go.
_SLOW_NS = _S
#: New grants are looked for so often while there are rounds: until it is seen, one has its cap, which others
#: may have been lent.
_NEW_NS = _S // 5
#: Caps and policies, which `xpu set` changes.
_REREAD_NS = _S // 5
_MOST_ROUNDS = 1 << 32


class Agent:
    """The loop with its state; only the holder of the run folder's lock makes one."""

    def __init__(
        self,
        opener: Callable[[], Callable[[], Utilization]],
        side_processes: Sequence[SideProcess],
        log: Callable[[str], None],
        has_lock: Callable[[], bool],
        metrics: Mapping[str, str | None],
    ) -> None:
        """`has_lock`: whether the lock is still that of the run folder, which may be made anew. `metrics`:
        `listen` and `group` of the configuration, as they were read, for the status."""
        self._metrics = dict(metrics)
        self._has_lock = has_lock
        self._status_socket = StatusSocket()
        self._workers = StartWorkers(log)
        self._side_processes = side_processes
        self._journal = Journal(log)
        self._comparison = Comparison(opener, log)
        self._grants = OpenGrants(log)
        self._cards: dict[bytes, Card] = {}
        self._found_at = self._reread_at = 0
        self.number = 0
        self._since = time.time()
        self._stopped = False
        self._poll = select.poll()
        self._polled: list[int] = []
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)

    def run(self) -> None:
        """Until a signal says to stop (`stop`); then all containers have their caps."""
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: self.stop())
        try:
            while not self._stopped:
                due = self.step(time.monotonic_ns())
                self._wait(due)
        finally:
            self.close()

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        # If the run folder was removed, the present one is another agent's.
        ours = self._has_lock()
        for card in self._cards.values():
            for each in card.slices:
                each.free()
        self._comparison.close()
        self._status_socket.close(ours)
        self._workers.close(ours)
        for process in self._side_processes:
            process.close(ours)
        self._grants.close()

    def step(self, now: int) -> int:
        """Does the work that is due; returns the time of the next, in ns of the same clock."""
        cards = self._cards.values()
        if now - self._found_at >= (_NEW_NS if any(card.busy for card in cards) else _SLOW_NS):
            self._found_at = now
            if not self._has_lock():
                self.stop()
                return now
            self._status_socket.look()
            self._workers.look()
            for process in self._side_processes:
                process.look()
            self._journal.look()
            if self._grants.refresh():
                self._arrange(now)
                cards = self._cards.values()
        if now - self._reread_at >= _REREAD_NS:
            self._reread_at = now
            for card in cards:
                card.reread()
        slices = sum(len(card.slices) for card in cards if card.busy)
        round_ns = ROUND_NS if slices < _MANY else 2 * ROUND_NS
        wrote = False
        due = now + _SLOW_NS
        for card in cards:
            if card.told:
                if now >= card.due:
                    wrote = card.round(now, self.number, round_ns) or wrote
                due = min(due, card.due)
        if wrote:
            self._next_number()
        if cards:
            self._comparison.ask(now)
        else:
            self._comparison.rest(now)
        return due

    def _next_number(self) -> None:
        self.number = (self.number + 1) % _MOST_ROUNDS or 1

    def _wait(self, due: int) -> None:
        answers = self._comparison.fileno()
        fds = [self._woken.fileno(), *self._status_socket.filenos(), *([] if answers is None else [answers])]
        if fds != self._polled:
            self._polled = fds
            self._poll = select.poll()
            for fd in fds:
                self._poll.register(fd, select.POLLIN)
        left = max(0, due - time.monotonic_ns())
        ready = self._poll.poll(-(-left // 1_000_000))
        if not ready:
            return
        readable = {fd for fd, _ in ready}
        if self._woken.fileno() in readable:
            self._woken.recv(64)
        if answers in readable:
            self._comparison.take(self._cards.values(), self._grants.by_folder)
        self._status_socket.serve(self.status)

    def _arrange(self, now: int) -> None:
        """Puts the slices of all grants on their devices; known slices keep their state."""
        known = {(each.folder, each.position): each for card in self._cards.values() for each in card.slices}
        before, self._cards = self._cards, {}
        for folder, grant in self._grants.by_folder.items():
            for position, page in enumerate(grant.slices):
                if not any(page.uuid):
                    continue  # of a vendor without interposers
                found = known.get((folder, position))
                card = self._cards.get(page.uuid)
                if card is None:
                    card = self._cards[page.uuid] = before.get(page.uuid) or Card(page.uuid)
                    card.slices = []
                card.slices.append(found or SliceState(folder, grant.container, position, page, now))
        for card in self._cards.values():
            card.arrange()
        self._comparison.forget()
        if self._grants.round >= self.number:
            # The next number is one that no container has seen.
            self.number = self._grants.round
            self._next_number()

    # ---- for people ----

    def status(self) -> dict[str, Any]:
        return {
            "who": "xpu agent",
            "version": version.VERSION,
            "abi": pages.ABI,
            "pid": os.getpid(),
            "since": int(self._since),
            "metrics": self._metrics,
            "rounds": self.number,
            "devices": [
                {
                    "uuid": card.name or card.uuid.hex(),
                    "busy": card.busy,
                    "compared": card.compared,
                    "slices": [_slice_status(each, card.compared) for each in card.slices],
                }
                for card in self._cards.values()
            ],
        }


def _slice_status(each: SliceState, compared: bool | None) -> dict[str, Any]:
    """Shares in percent; `compared`: whether the driver's samples are of its device."""
    debt, demand = each.debt, each.demand
    cap = demand.cap * 100 / WHOLE
    strict = None
    if debt.held:
        strict = f"the driver counted more than its cap of {cap:.0f}% for it"
    return {
        "container_id": each.container,
        "position": each.position,
        "cores": cap or None,
        "sched": pages.SCHEDS[demand.sched],
        "priority": pages.PRIORITIES[demand.priority],
        "share": each.share * 100 / WHOLE if demand.cap else None,
        "compared": compared and each.sampled,
        "held_strictly": strict,
        "owed_seconds": round(debt.owed, 1),
    }
