"""The agent's loop: reads what slices use, decides their shares, writes them into the quota pages.

All that holds a limit is in the pages: the loop can be killed at any instant, and containers then have their
caps (compute.LOST_S). It looks often only while a slice is at work whose share depends on others, and between
that a few times a second at most. What a container writes can delay nothing here and gain it nothing: pages
are read without waiting, and the driver is asked in another process (samples.py).
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from xpu_runtime import paths, version
from xpu_runtime.agent import crosscheck, policy, samples
from xpu_runtime.agent.demand import Demand
from xpu_runtime.agent.status import Door
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import folders, pages, usage
from xpu_runtime.limits.compute import LOST_S, ROUND_SHIFT, WHOLE, GrantPages, SlicePages, unpack

_S = 1_000_000_000
#: Between two rounds of a device on which a slice is at work whose share depends on others.
ROUND_NS = _S // 50
#: Between two looks for such a slice; shares of those that are held are renewed then.
_LOOK_NS = int(LOST_S * _S) * 2 // 5
#: Round numbers are renewed so often where shares stay the same.
_RENEW_NS = int(LOST_S * _S) // 5
#: Grants that come and go, and the driver's figures.
_SLOW_NS = _S
#: And where the driver has just said that nobody is at work.
_IDLE_CHECK_NS = 3 * _S
#: New grants are looked for so often while there are rounds: until it is seen, one has its cap, which others
#: may have been lent.
_NEW_NS = _S // 5
#: A folder's time stamp has the clock's ticks: two changes can have the same.
_TICK_NS = _S
#: A device without activity for so long is left alone.
_QUIET_NS = _S
#: Which process is of which container is remembered so long.
_OWNERS_NS = 10 * _S
#: One that has a backlog is looked at so often.
_BACKLOG_NS = _S * 5 // 100
#: Bytes of a look at a page that was not cut.
_WHOLE_LOOK = 16
_MOST_ROUNDS = 1 << 32
#: Of the ledger's lock: rounds wait meanwhile.
_LEDGER_S = 0.2


class Watched:
    """A slice with a cap, and all that is known of it."""

    __slots__ = (
        "account",
        "active",
        "adjusted",
        "container",
        "demand",
        "folder",
        "look_at",
        "page",
        "position",
        "seen",
        "share",
        "wish",
    )

    def __init__(self, folder: str, container: str, position: int, page: SlicePages, now: int) -> None:
        self.folder, self.container, self.position, self.page = folder, container, position, page
        self.seen = page.look()
        used, waits = _numbers(self.seen)
        self.demand = Demand(page.cap, *page.policy, used, waits, now)
        self.account = crosscheck.Account()
        self.wish = self.demand.wish(now)
        self.active = False
        #: Not read before this time.
        self.look_at = 0
        #: What it may have now.
        self.share = self.demand.cap
        #: Whether something other than 0 is in its page.
        self.adjusted = True

    def reread(self) -> bool:
        """Takes over what `xpu set` has changed; whether that is anything."""
        demand, page = self.demand, self.page
        now = page.cap, *page.policy
        if now == (demand.cap, demand.sched, demand.priority):
            return False
        demand.cap, demand.sched, demand.priority = now
        self.wish = self.wish._replace(cap=now[0], sched=now[1], priority=now[2])
        return True

    def free(self) -> None:
        """Only its cap holds."""
        self.share = self.demand.cap
        if self.adjusted:
            self.adjusted = False
            self.page.adjust(0)


class Card:
    """One device, and the slices on it."""

    def __init__(self, uuid: bytes) -> None:
        self.uuid = uuid
        self.name = ""
        self.slices: list[Watched] = []
        #: Whether the driver tells what processes use of it; None: not asked yet.
        self.compared: bool | None = None
        #: There are rounds: a slice is at work whose share depends on others.
        self.busy = False
        #: What a slice wants has changed since the last decision.
        self._changed = True
        self._shares: list[int] = []
        self._active_at = 0
        self._written_at = 0
        #: Whose shares depend on others, or which are held.
        self.told: list[Watched] = []

    def reread(self) -> None:
        """Takes over what has changed in the pages."""
        for each in self.slices:
            self._changed = each.reread() or self._changed
        self.told = [each for each in self.slices if each.demand.governed or each.account.held]
        for each in self.slices:
            if each.adjusted and each not in self.told:
                each.free()

    def look(self, now: int) -> None:
        """Reads what the slices' pages say, and notes whether there is reason for rounds."""
        for each in self.slices:
            if now < each.look_at:
                continue
            content = each.page.look()
            if content == each.seen:
                if not each.active:
                    continue
            else:
                each.seen = content
                if len(content) == _WHOLE_LOOK:
                    each.demand.changed(*unpack(content), now)
                else:
                    each.demand.lost(now)
            demand = each.demand
            demand.measure(each.share, now)
            wish = demand.wish(now)
            if wish != each.wish:
                each.wish = wish
                self._changed = True
            each.active = wish.backlog or wish.need > 0
            if each.active and demand.governed:
                self._active_at = now
            # What has a backlog is believed to have it for a while (HOLD_NS); all others are to be seen as
            # soon as they want something.
            each.look_at = now + _BACKLOG_NS if wish.backlog else 0
        self.busy = now - self._active_at < _QUIET_NS

    def decide(self, now: int, number: int) -> bool:
        """Decides and writes; whether anything was written, with this round's number."""
        if not self._changed and now - self._written_at < _RENEW_NS:
            return False
        if self._changed:
            self._changed = False
            self._shares = policy.shares([each.wish for each in self.slices])
        self._written_at = now
        for each, share in zip(self.slices, self._shares):
            each.share = share
        self.write(number)
        return True

    def write(self, number: int) -> None:
        """Writes the shares into the pages of those that have another than their cap."""
        for each in self.slices:
            if each.account.held:
                # Whatever others leave: it is to come to its cap, by the driver's figures.
                each.share = min(each.share, each.account.share(each.demand.cap))
            elif not each.demand.governed:
                each.free()
                continue
            each.adjusted = True
            each.page.adjust(number << ROUND_SHIFT | each.share)

    def rest(self, number: int) -> None:
        """Nobody is at work: all have their caps, and who is held stays so."""
        self._changed = True
        for each in self.slices:
            each.share = each.demand.cap
            if not each.account.held:
                each.free()
            else:
                each.share = each.account.share(each.demand.cap)
                each.page.adjust(number << ROUND_SHIFT | each.share)


class Agent:
    """All of it; made by who holds the lock of the run folder."""

    def __init__(
        self, opener: Callable[[], Callable[[], samples.Figures]], log: Callable[[str], None]
    ) -> None:
        self._log = log
        self._door = Door()
        self._samples = samples.Samples(opener, log)
        self._grants: dict[str, GrantPages] = {}
        self._cards: dict[bytes, Card] = {}
        self._stamp = -1
        self._looked_at = self._found_at = self._checked_at = self._renewed_at = 0
        self._check_every = _SLOW_NS
        self._of: dict[str, Grant] = {}
        self._owners: dict[int, tuple[int, str]] = {}
        self._figures_at = time.monotonic_ns()
        self._untold: set[str] = set()
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
        for card in self._cards.values():
            for each in card.slices:
                each.free()
        self._samples.close()
        self._door.close()
        for grant in self._grants.values():
            grant.close()

    def step(self, now: int) -> int:
        """Does what is due; when there will be more, in ns of the same clock."""
        busy = [card for card in self._cards.values() if card.busy]
        if now - self._found_at >= (_NEW_NS if busy else _SLOW_NS):
            self._found_at = now
            self._find(now)
        if now - self._renewed_at >= _RENEW_NS:
            self._renewed_at = now
            for card in self._cards.values():
                card.reread()
        look = now - self._looked_at >= _LOOK_NS
        if look:
            self._looked_at = now
        wrote = False
        for card in self._cards.values():
            wrote = self._round(card, now, look) or wrote
        if wrote:
            self._next_number()
        if now - self._checked_at >= self._check_every and self._cards:
            self._checked_at = now
            self._samples.ask()
        return self._due(now)

    def _due(self, now: int) -> int:
        if any(card.busy for card in self._cards.values()):
            return now + ROUND_NS
        return now + (_LOOK_NS if any(card.told for card in self._cards.values()) else _SLOW_NS)

    def _round(self, card: Card, now: int, look: bool) -> bool:
        if not card.told or not (card.busy or look):
            return False
        was = card.busy
        card.look(now)
        if card.busy:
            return card.decide(now, self.number)
        if was or any(each.account.held for each in card.told):
            card.rest(self.number)
            return True
        return False

    def _next_number(self) -> None:
        self.number = (self.number + 1) % _MOST_ROUNDS or 1

    def _wait(self, due: int) -> None:
        answers = self._samples.fileno()
        fds = [self._woken.fileno(), *self._door.filenos(), *([] if answers is None else [answers])]
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
            self._take(self._samples.answer())
        self._door.serve(self.status)

    # ---- grants ----

    def _find(self, now: int) -> None:
        """Opens the pages of new grants, closes those of grants that have ended."""
        top = paths.in_run_dir(paths.GRANT_FOLDERS)
        try:
            stamp = os.stat(top).st_mtime_ns
        except OSError:
            stamp = 0
        if stamp == self._stamp:
            return
        # Not remembered while it is new: more may have come in the same tick of the clock.
        self._stamp = stamp if time.time_ns() - stamp > _TICK_NS else -1
        there = set(folders.left())
        changed = False
        for folder in [each for each in self._grants if each not in there]:
            self._grants.pop(folder).close()
            changed = True
        for folder in sorted(there - self._grants.keys()):
            try:
                self._grants[folder] = self._opened(folder)
                changed = True
            except (OSError, ValueError) as error:
                self._not_opened(folder, error)
        self._untold &= there
        if changed:
            self._arrange(now)

    def _opened(self, folder: str) -> GrantPages:
        grant = GrantPages(folder, write=True)
        grant.keep_from_children()
        for each in grant.slices:
            # The next number is one that no container has seen.
            self.number = max(self.number, each.adjusted[0] + 1) % _MOST_ROUNDS or 1
        return grant

    def _not_opened(self, folder: str, error: OSError | ValueError) -> None:
        if getattr(error, "errno", None) in (errno.ENOENT, errno.ENOTDIR):
            return  # no pages (yet): its limits are held by something else
        self._stamp = -1
        if folder not in self._untold:
            self._untold.add(folder)
            why = getattr(error, "strerror", None) or error
            self._log(f"{folder}: the container keeps its caps and gets no more: {why}")

    def _arrange(self, now: int) -> None:
        """Puts the slices of all grants on their devices; what is known of each stays."""
        known = {(each.folder, each.position): each for card in self._cards.values() for each in card.slices}
        cards: dict[bytes, Card] = {}
        for folder, grant in self._grants.items():
            for position, page in enumerate(grant.slices):
                if not any(page.uuid):
                    continue  # of a vendor without interposers
                found = known.get((folder, position))
                found = found or Watched(folder, grant.container, position, page, now)
                if page.uuid not in cards:
                    cards[page.uuid] = Card(page.uuid)
                    before = self._cards.get(page.uuid)
                    if before is not None:
                        cards[page.uuid].name, cards[page.uuid].busy = before.name, before.busy
                        cards[page.uuid].compared = before.compared
                cards[page.uuid].slices.append(found)
        self._cards = cards
        for card in cards.values():
            card.reread()
        self._of = {}
        self._owners = {}

    # ---- the driver's figures ----

    def _take(self, figures: samples.Figures | None) -> None:
        """Compares them with what slices were allowed."""
        if figures is None:
            return
        now = time.monotonic_ns()
        seconds = min((now - self._figures_at) / _S, 5.0)
        self._figures_at = now
        # Only what is at work costs a look each second.
        self._check_every = _SLOW_NS if any(figures.values()) else _IDLE_CHECK_NS
        if not self._know_grants():
            return
        owners = self._owners_of({pid for by_pid in figures.values() for pid in by_pid}, now)
        for card in self._cards.values():
            self._note(card, card.name in figures)
            if not card.compared:
                continue
            here = {each.folder: number for number, each in enumerate(card.slices)}
            theirs = {pid: here[folder] for pid, folder in owners.items() if folder in here}
            by_slice = crosscheck.by_slice(figures[card.name], theirs, set(here.values()))
            if by_slice is None:
                continue
            for number, each in enumerate(card.slices):
                if each.demand.cap:
                    self._compare(card, each, seconds, by_slice.get(number))

    def _note(self, card: Card, compared: bool) -> None:
        """Says, once, where nobody can tell whether a cap holds, as on MIG devices."""
        if compared is card.compared:
            return
        card.compared = compared
        if not compared and card.name and any(each.demand.cap for each in card.slices):
            self._log(
                f"the driver does not tell what processes use of {card.name}: pages alone hold its caps"
            )

    def _compare(self, card: Card, each: Watched, seconds: float, figure: float | None) -> None:
        account, was = each.account, each.account.held
        account.check(seconds, figure, max(each.share, 0) / WHOLE, each.demand.cap / WHOLE)
        if account.held == was:
            return
        card.reread()
        name, cap = each.container[:12], each.demand.cap / WHOLE
        if account.held:
            self._log(
                f"container {name} is held more strictly on {card.name}: the driver counts "
                f"{figure or 0:.0%} of the device for it, {cap:.0%} is its cap"
            )
        else:
            self._log(f"container {name} is held as usual again on {card.name}")

    def _know_grants(self) -> bool:
        """Reads the ledger, where grants have changed; whether it is known whose processes are whose."""
        if self._of:
            return True
        waiting.allow(_LEDGER_S)
        try:
            with Ledger(as_is=True) as ledger:
                grants = ledger.grants()
        except XpuError:
            return False  # a start holds it, or it is made anew: the next check asks again
        self._of = {folders.of(grant): grant for grant in grants}
        for card in self._cards.values():
            for each in card.slices:
                grant = self._of.get(each.folder)
                if grant is not None and each.position < len(grant.slices):
                    card.name = grant.slices[each.position].device_uuid
        return True

    def _owners_of(self, pids: set[int], now: int) -> dict[int, str]:
        """The folder of the grant of each of these processes, "" for none.

        By the container's cgroup, which a container cannot leave. Asked once for a process, and again after
        some seconds: numbers are used again.
        """
        self._owners = {pid: each for pid, each in self._owners.items() if now - each[0] < _OWNERS_NS}
        if not pids <= self._owners.keys():
            self._owners = {}
            for folder in self._grants:
                grant = self._of.get(folder)
                for pid in (usage.processes(grant) or ()) if grant else ():
                    self._owners[pid] = (now, folder)
            for pid in pids:
                self._owners.setdefault(pid, (now, ""))
        return {pid: self._owners[pid][1] for pid in pids}

    # ---- for people ----

    def status(self) -> dict[str, Any]:
        """As the socket tells it."""
        return {
            "who": "xpu agent",
            "version": version.VERSION,
            "abi": pages.ABI,
            "pid": os.getpid(),
            "since": int(self._since),
            "rounds": self.number,
            "devices": [
                {
                    "uuid": card.name or card.uuid.hex(),
                    "busy": card.busy,
                    "compared": card.compared,
                    "slices": [_slice_status(each) for each in card.slices],
                }
                for card in self._cards.values()
            ],
        }


def _slice_status(each: Watched) -> dict[str, Any]:
    """Shares in percent."""
    account, demand = each.account, each.demand
    cap = demand.cap * 100 / WHOLE
    strict = None
    if account.held:
        strict = f"the driver counted more than its cap of {cap:.0f}% for it"
    return {
        "container_id": each.container,
        "position": each.position,
        "cores": cap or None,
        "sched": pages.SCHEDS[demand.sched],
        "priority": pages.PRIORITIES[demand.priority],
        "share": each.share * 100 / WHOLE if demand.cap else None,
        "held_strictly": strict,
        "owed_seconds": round(account.owed, 1),
    }


def _numbers(content: bytes) -> tuple[int, int]:
    return unpack(content) if len(content) == _WHOLE_LOOK else (0, 0)
