"""Slices that are held more strictly, by the driver's samples: each begin and end is an event, once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xpu_runtime.agent import comparison, pending_events
from xpu_runtime.agent.card import Card, SliceState
from xpu_runtime.agent.comparison import Comparison
from xpu_runtime.ledger import events, waiting
from xpu_runtime.ledger.events import Event, Part
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import folders, pages, usage
from xpu_runtime.limits.compute import GrantPages
from xpu_runtime.linux import files, proc
from xpu_runtime.observe.samples import Utilization

UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
CAP = 30


class Node:
    """A container with a cap, and a driver that tells the share that its process uses."""

    def __init__(self, run_dir: Path) -> None:
        holding = Holding("library", "soft", "library", "soft")
        own = proc.start_time(os.getpid()) or 0
        wanted = Grant(0, "c" * 64, "/b", os.getpid(), own, "", "running", "hook", 0, ())
        with Ledger() as ledger:
            grant, _ = ledger.grant(wanted, lambda _: (Slice("0", UUID, 1 << 30, True, CAP, holding),))
        assert grant is not None
        folder = folders.of(grant)
        os.makedirs(folder)
        pages.create(folder, "c" * 64, (pages.Entry(UUID, 1 << 30, cores=CAP),))
        self._pages = GrantPages(folder)
        self._card = Card(pages.raw_uuid(UUID))
        self._card.slices = [SliceState(folder, "c" * 64, 0, self._pages.slices[0], 0)]
        self._card.arrange()
        self._folder = folder
        self.busy = 0.0
        self.now = 0
        self.comparison = Comparison(lambda: self.utilization, lambda _: None)

    def utilization(self) -> Utilization:
        return {UUID: {os.getpid(): self.busy}}

    def look(self, seconds: int) -> None:
        """The driver answers so often, once a second."""
        for _ in range(seconds):
            self.now += 10**9
            self.comparison.take([self._card], [self._folder])

    def is_asked(self) -> bool:
        """Whether the driver is kept open."""
        samples: object = self.comparison._samples
        assert isinstance(samples, FakeSamples)
        return samples.is_open

    def close(self) -> None:
        self._pages.close()


class FakeSamples:
    """In the place of the process that asks the driver."""

    def __init__(self, opener: Callable[[], Callable[[], Utilization]], _: object) -> None:
        self.answer = opener()
        self.is_open = False

    def ask(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def node(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(comparison, "Samples", FakeSamples)
    monkeypatch.setattr(usage, "processes", lambda _: [os.getpid()])
    made: list[Node] = []
    monkeypatch.setattr(time, "monotonic_ns", lambda: made[0].now if made else 0)
    made.append(Node(run_dir))
    yield made[0]
    made[0].close()


def held_and_unheld() -> list[Event]:
    waiting.allow(5)
    with Ledger() as ledger:
        return [each for each in ledger.history() if each.kind in (events.HELD, events.UNHELD)]


def test_a_slice_over_its_cap_has_an_event_when_it_is_held_and_when_no_longer(node: Node) -> None:
    node.busy = 1.0
    node.look(20)
    (held,) = held_and_unheld()
    assert (held.kind, held.container_id, held.devices) == ("held", "c" * 64, (Part(UUID, "0", None, CAP),))
    assert held.text.startswith("used ") and "s more of the device's time than it may" in held.text
    node.busy = 0.0
    node.look(100)
    assert [each.kind for each in held_and_unheld()] == ["held", "unheld"]


def test_a_ledger_that_is_locked_delays_no_round_and_the_event_is_written_when_it_is_free(
    node: Node, run_dir: Path
) -> None:
    node.look(1)
    node.busy = 1.0
    began = time.time()
    with files.Lock(str(run_dir / "ledger.db.lock")):
        node.look(20)
    assert time.time() - began < 2  # each look would wait, if any did
    assert held_and_unheld() == []
    node.look(1)
    (held,) = held_and_unheld()
    assert began <= held.time <= time.time()


def test_without_slices_the_driver_is_let_go_of_after_a_while_and_events_are_written(
    node: Node, run_dir: Path
) -> None:
    node.look(1)
    node.busy = 1.0
    node.comparison.ask(node.now)
    with files.Lock(str(run_dir / "ledger.db.lock")):
        node.look(20)
    node.comparison.rest(node.now)
    (held,) = held_and_unheld()
    assert held.kind == "held"
    node.comparison.ask(node.now)
    node.comparison.rest(node.now + 10**9)
    assert node.is_asked()
    node.comparison.rest(node.now + 60 * 10**9)
    assert not node.is_asked()


def test_no_more_wait_than_there_is_room_for(run_dir: Path) -> None:
    told = pending_events.PendingEvents()
    for number in range(1000):
        told.add(events.HELD, str(number), Part(UUID), "")
    told.write()  # there is no ledger
    with Ledger():
        pass
    told.write()
    assert [each.container_id for each in held_and_unheld()] == [str(n) for n in range(1000 - 64, 1000)]
