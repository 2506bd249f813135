"""Compares slices' use by the driver's samples with their allowed shares.

The samples are of processes; the containers' cgroups tell a process's slice. crosscheck.py decides about
holds, and observe/samples.py asks the driver.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection

from xpu_runtime.agent import crosscheck
from xpu_runtime.agent.card import Card, SliceState
from xpu_runtime.agent.pending_events import PendingEvents
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger import events, waiting
from xpu_runtime.ledger.events import Part
from xpu_runtime.ledger.grants import CORES, Grant
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import folders, registry, usage
from xpu_runtime.limits.compute import WHOLE
from xpu_runtime.observe.samples import Samples, Utilization

_S = 1_000_000_000
#: Nanoseconds between two questions to the driver: on average, and after an answer without any work. The
#: distances vary: a load of the same period would otherwise always be found at work, where only the last
#: sample is reported.
_ASK_NS, _ASK_IDLE_NS = _S, 3 * _S
#: Seconds for which a process's container is remembered: process ids are used again.
_OWNERS_NS = 10 * _S
#: Without a slice the driver is kept open so long: one container often follows another.
_LET_GO_NS = 10 * _S
#: Seconds to wait for the ledger's lock; the agent's rounds wait for this.
_LEDGER_S = 0.2
#: Seconds that a sample counts for at most: the driver may have been slow.
_LONGEST_S = 5.0


class Comparison:
    """Asks the driver now and then, and adds its samples to the slices' debts. `log` is for people."""

    def __init__(self, opener: Callable[[], Callable[[], Utilization]], log: Callable[[str], None]) -> None:
        """`opener`: as of Samples."""
        self._log = log
        self._samples = Samples(opener, log)
        self._events = PendingEvents()
        self._ask_at = 0
        self._ask_every = _ASK_NS
        self._taken_at = time.monotonic_ns()
        self._grants: dict[str, Grant] = {}
        self._owners: dict[int, tuple[int, str]] = {}

    def fileno(self) -> int | None:
        """Readable when there is an answer; None: there is none to wait for."""
        return self._samples.fileno()

    def ask(self, now: int) -> None:
        """If it is time to."""
        if now >= self._ask_at:
            self._ask_at = now + random.randrange(self._ask_every // 2, self._ask_every * 3 // 2)  # noqa: S311
            self._samples.ask()
            self._events.write()

    def rest(self, now: int) -> None:
        """Instead of `ask` while there is no slice: after a while the driver is let go of, so that it can be
        unloaded and the device reset."""
        self._events.write()
        if now - self._ask_at > _LET_GO_NS:
            self._samples.close()

    def forget(self) -> None:
        """Forgets the containers of processes: grants have come or gone."""
        self._grants = {}
        self._owners = {}

    def close(self) -> None:
        self._events.write()
        self._samples.close()

    def take(self, cards: Collection[Card], grants: Collection[str]) -> None:
        """The driver's answer, for all slices on `cards`; `grants`: the folders of those on the node."""
        utilization = self._samples.answer()
        if utilization is None:
            return
        now = time.monotonic_ns()
        seconds = min((now - self._taken_at) / _S, _LONGEST_S)
        self._taken_at = now
        # Only working processes cost a look each second.
        self._ask_every = _ASK_NS if any(utilization.values()) else _ASK_IDLE_NS
        if not self._know_grants(cards):
            return
        pids = {pid for by_pid in utilization.values() for pid in by_pid}
        owners = self._owners_of(pids, grants, now)
        for card in cards:
            self._note(card, card.name in utilization)
            if not card.compared:
                continue
            here = {each.folder: number for number, each in enumerate(card.slices)}
            theirs = {pid: here[folder] for pid, folder in owners.items() if folder in here}
            by_slice = crosscheck.by_slice(utilization[card.name], theirs, set(here.values()))
            if by_slice is None:
                continue
            for number, each in enumerate(card.slices):
                if each.demand.cap and each.sampled:
                    self._compare(card, each, seconds, by_slice.get(number))
        self._events.write()

    def _note(self, card: Card, compared: bool) -> None:
        """Logs, once, that caps cannot be checked on a device, such as a MIG device."""
        if compared is card.compared:
            return
        card.compared = compared
        if not compared and card.name and any(each.demand.cap for each in card.slices):
            self._log(
                f"the driver does not report the use of each process on {card.name}: "
                "only the containers' own accounts hold its caps"
            )

    def _compare(self, card: Card, each: SliceState, seconds: float, utilization: float | None) -> None:
        debt, was = each.debt, each.debt.held
        debt.check(seconds, utilization, each.highest_share() / WHOLE, each.demand.cap / WHOLE)
        if debt.held == was:
            return
        card.arrange()
        name, cap = each.container[:12], each.demand.cap / WHOLE
        if debt.held:
            self._log(
                f"container {name} is held more strictly on {card.name}: the driver counts "
                f"{utilization or 0:.0%} of the device for it, its cap is {cap:.0%}"
            )
            used = f"used {debt.owed:.0f} s more of the device's time than it may, by the driver's count"
            self._add_event(events.HELD, card, each, used)
        else:
            self._log(f"container {name} is held as usual again on {card.name}")
            self._add_event(events.UNHELD, card, each, "owes nothing any more")

    def _add_event(self, kind: str, card: Card, each: SliceState, text: str) -> None:
        grant = self._grants.get(each.folder)
        slices = grant.slices if grant else ()
        index = slices[each.position].device_index if each.position < len(slices) else ""
        part = Part(card.name, index, None, each.demand.cap * 100 // WHOLE)
        self._events.add(kind, grant.container_id if grant else each.container, part, text)

    def _know_grants(self, cards: Collection[Card]) -> bool:
        """Reads the ledger if grants have changed; returns whether processes can be assigned to slices."""
        if self._grants:
            return True
        waiting.allow(_LEDGER_S)
        try:
            with Ledger(as_is=True) as ledger:
                grants = ledger.grants()
        except XpuError:
            return False  # a start holds the ledger, or it is made anew: the next answer asks again
        self._grants = {folders.of(grant): grant for grant in grants}
        for card in cards:
            for each in card.slices:
                grant = self._grants.get(each.folder)
                if grant is not None and each.position < len(grant.slices):
                    slice_ = grant.slices[each.position]
                    card.name = slice_.device_uuid
                    # The driver counts processes that run side by side as one: the server.
                    holder = registry.known_holder(slice_, CORES)
                    each.sampled = holder is None or not holder.SIDE_BY_SIDE
        return True

    def _owners_of(self, pids: set[int], grants: Collection[str], now: int) -> dict[int, str]:
        """The folder of the grant of each of these processes, "" for none.

        By the container's cgroup, which a container cannot leave. Asked once for a process, and again after
        some seconds.
        """
        self._owners = {pid: each for pid, each in self._owners.items() if now - each[0] < _OWNERS_NS}
        if not pids <= self._owners.keys():
            self._owners = {}
            for folder in grants:
                grant = self._grants.get(folder)
                for pid in (usage.processes(grant) or ()) if grant else ():
                    self._owners[pid] = (now, folder)
            for pid in pids:
                self._owners.setdefault(pid, (now, ""))
        return {pid: self._owners[pid][1] for pid in pids}
