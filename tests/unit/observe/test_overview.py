"""The page's data for more slices than it lists: the sums are of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from xpu_runtime.ledger import events
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits.usage import Usage
from xpu_runtime.observe import overview
from xpu_runtime.observe.reading import Card, Reading, Row
from xpu_runtime.vendors.inventory import Inventory

GIB = 1 << 30
INVENTORY = Inventory("/", False, (), (), (), "", ())


def card(uuid: str, slices: int) -> Card:
    part = Slice("0", uuid, GIB, True, 5, Holding("library", "soft", "library", "soft"))
    grants = (Grant(n, f"c{n}", "/b", 1, 0, "", "running", "hook", 1.0, (part,)) for n in range(slices))
    rows = tuple(
        Row(each, 0, each.container_id, 5, 1.0, None, "fixed", "normal", False, 7, GIB, None, "")
        for each in grants
    )
    return Card("0", uuid, "T4", None, 7 * slices, 512 * GIB, rows)


def test_sums_are_of_all_slices_and_no_card_is_left_without_rows(run_dir: object) -> None:
    counts = {"a": 300, "b": 2, "c": 200, "d": 0}
    cards = tuple(card(uuid, slices) for uuid, slices in counts.items())
    reading = Reading(True, cards, INVENTORY, Usage(INVENTORY))
    found = {each["uuid"]: each for each in overview._devices(reading, lambda _: None, [])}
    assert {uuid: each["slices_total"] for uuid, each in found.items()} == counts
    assert {uuid: len(each["slices"]) for uuid, each in found.items()} == {"a": 127, "b": 2, "c": 127, "d": 0}
    assert {uuid: each["memory_asked_bytes"] // GIB for uuid, each in found.items()} == counts
    assert {uuid: each["cores_asked"] for uuid, each in found.items()} == {
        uuid: 5 * slices for uuid, slices in counts.items()
    }
    assert found["a"]["memory_used_bytes"] == 2100
    sample = overview._sample(reading)
    assert len(sample["slices"]) == 256


@pytest.mark.parametrize(
    ("counts", "room"),
    [([], []), ([0, 0], [0, 0]), ([300], [256]), ([10, 300, 10], [10, 236, 10]), ([128, 128], [128, 128])],
)
def test_those_with_few_slices_have_all_of_them_listed(counts: list[int], room: list[int]) -> None:
    assert overview._room([card(str(n), count) for n, count in enumerate(counts)]) == room


def test_events_of_a_ledger_that_was_removed_are_forgotten(tmp_path: Path) -> None:
    """The next one may have as many by the time that it is read."""
    latest = overview._Latest()
    for container in ("c1", "c2"):
        with Ledger(str(tmp_path / container)) as ledger:
            ledger.note(events.REFUSED, container)
            latest.read(ledger)
        for kept in (latest.events, latest.refusals):
            assert [each.container_id for each in kept] == [container]
