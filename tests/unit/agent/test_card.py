"""How often a device's slices are looked at, and how soon a lent share is back, on the test's own clock."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from xpu_runtime.agent.card import LOOK_NS, ROUND_NS, Card, SliceState
from xpu_runtime.agent.demand import HOLD_NS, MS
from xpu_runtime.limits import pages
from xpu_runtime.limits.compute import LOST_S, GrantPages

UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
SECOND = 1000 * MS


class Box:
    """A container on the card, and its pages."""

    def __init__(self, folder: Path, cores: int, sched: str) -> None:
        folder.mkdir()
        pages.create(str(folder), folder.name, (pages.Entry(UUID, None, cores=cores, sched=sched),))
        self.pages = GrantPages(str(folder))
        self.state = SliceState(str(folder), folder.name, 0, self.pages.slices[0], 0)
        self.state.look = self._look
        self._usage = os.open(folder / pages.USAGE, os.O_RDWR)
        self._used = self._waits = 0
        self.looks = 0

    def _look(self) -> bytes:
        self.looks += 1
        return self.pages.slices[0].look()

    @property
    def round(self) -> int:
        return self.pages.slices[0].adjusted[0]

    @property
    def share(self) -> float:
        """In percent, as its programs read it."""
        return self.pages.slices[0].adjusted[1] / 100

    def launch(self, used: int, waits: int) -> None:
        """So much of the device's time is charged; so often a launch was seen to wait for its turn."""
        self._used, self._waits = self._used + used, self._waits + waits
        os.pwrite(self._usage, struct.pack("<2Q", self._used, self._waits), 2048 + 16)

    def close(self) -> None:
        os.close(self._usage)
        self.pages.close()


class Node:
    """A card, and the agent's rounds on it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.card = Card(pages.raw_uuid(UUID))
        self.boxes: list[Box] = []
        self.now = SECOND
        self.round_ns = ROUND_NS
        #: When which number of a round was written.
        self.rounds: dict[int, int] = {}

    def box(self, cores: int, sched: str = "burst") -> Box:
        self.boxes.append(Box(self._folder / str(len(self.boxes)), cores, sched))
        self.card.slices.append(self.boxes[-1].state)
        self.card.arrange()
        return self.boxes[-1]

    def run(self, ns: int, waiting: tuple[Box, ...] = (), using: tuple[Box, ...] = ()) -> None:
        """For so long, with some launching more than they may, and some 60 % without having to wait."""
        for _ in range(ns // (5 * MS)):
            self.now += 5 * MS
            for box in waiting:
                box.launch(MS, 1)
            for box in using:
                box.launch(3 * MS, 0)
            if self.now >= self.card.due:
                self.rounds[self.now // MS] = self.now
                self.card.round(self.now, self.now // MS, self.round_ns)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for box in made.boxes:
        box.close()


@pytest.mark.parametrize("round_ns", [ROUND_NS, 2 * ROUND_NS])
def test_a_lent_share_is_back_a_look_after_its_owner_waits(node: Node, round_ns: int) -> None:
    node.round_ns = round_ns
    owner, guest = node.box(70), node.box(30)
    node.run(3 * SECOND, (guest,))
    assert guest.share == 100
    assert owner.share == 70
    node.run(round_ns, (owner, guest))
    assert (owner.share, guest.share) == (70, 30)


def test_a_share_that_its_owner_no_longer_wants_is_lent(node: Node) -> None:
    owner, guest = node.box(70), node.box(30)
    node.run(SECOND, (owner, guest))
    assert guest.share == 30
    node.run(HOLD_NS + 2 * ROUND_NS, (guest,))
    assert guest.share == 100


@pytest.mark.parametrize("cap", [50, 60, 90])
@pytest.mark.parametrize("into_its_window", range(5))
def test_so_it_is_where_the_owner_was_not_seen_to_wait(node: Node, cap: int, into_its_window: int) -> None:
    owner, guest = node.box(cap, "weight"), node.box(10, "weight")
    node.run(SECOND + into_its_window * ROUND_NS, (guest,), using=(owner,))
    node.run(HOLD_NS + 2 * ROUND_NS, (guest,))
    assert guest.share == 100


def test_a_slice_with_a_backlog_is_looked_at_the_more_often_the_larger_its_share(node: Node) -> None:
    large, *small = node.box(50), *(node.box(10) for _ in range(5))
    node.run(SECOND, tuple(node.boxes))
    before = [box.looks for box in node.boxes]
    node.run(SECOND, tuple(node.boxes))
    first, *others = [box.looks - was for box, was in zip(node.boxes, before)]
    assert 40 <= first <= 50
    assert all(12 <= looks <= 17 for looks in others)
    assert (large.share, small[0].share) == (50, 10)


def test_without_a_borrower_few_looks_are_enough(node: Node) -> None:
    alone = node.box(30)
    node.run(SECOND, (alone,))
    assert alone.share == 100
    before = alone.looks
    node.run(SECOND, (alone,))
    assert alone.looks - before <= SECOND // LOOK_NS + 1
    node.run(2 * SECOND)
    assert alone.share == 0  # its cap, and nothing to be renewed


@pytest.mark.parametrize("beside", [0, 1, 7])
def test_a_share_that_stays_is_renewed_long_before_it_counts_as_lost(node: Node, beside: int) -> None:
    one, *others = [node.box(10) for _ in range(1 + beside)]
    node.run(SECOND, (one,))
    for _ in range(50):
        node.run(ROUND_NS, (one, *others[1:]))
        for box in node.boxes:
            assert node.now - node.rounds[box.round] <= LOST_S * SECOND // 2


def test_the_highest_share_since_the_last_comparison_counts(node: Node) -> None:
    guest = node.box(30).state
    assert guest.highest_share() == 3000
    guest.set_share(10_000)
    guest.set_share(3000)
    assert guest.highest_share() == 10_000
    assert guest.highest_share() == 3000
