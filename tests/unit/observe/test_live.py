"""The waits of a reading: a driver gives each sample once, and some drivers give none of processes."""

from __future__ import annotations

import time

import pytest

from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.observe import live as observed
from xpu_runtime.observe.live import Live
from xpu_runtime.observe.samples import Utilization
from xpu_runtime.vendors.vendor import WHOLE


class Answers:
    """In the place of the process that asks the drivers."""

    def __init__(self, *answers: Utilization) -> None:
        self.left = list(answers)

    def wait(self, _: float) -> Utilization | None:
        return self.left.pop(0)


def live(answers: Answers, naming: set[str]) -> Live:
    """After its first reading, on a node where the drivers of the devices `naming` tell of processes."""
    found = Live.__new__(Live)
    found._samples = answers  # type: ignore[assignment]
    found._naming = frozenset(naming)
    found._is_open = True
    return found


def test_a_card_whose_driver_names_no_process_is_not_waited_for() -> None:
    answers = Answers({"nvidia": {WHOLE: 0.5, 7: 0.5}, "amd": {WHOLE: 0.5}}, {})
    assert live(answers, {"nvidia"})._waited_for(60) == {"nvidia": {WHOLE: 0.5, 7: 0.5}, "amd": {WHOLE: 0.5}}
    assert answers.left == [{}]


def test_one_cards_values_count_while_another_is_waited_for() -> None:
    answers = Answers(
        {"first": {WHOLE: 0.5, 7: 0.5}, "second": {WHOLE: 0.9}},
        {"first": {WHOLE: 0.4}, "second": {WHOLE: 0.9}},
        {"first": {WHOLE: 0.3}, "second": {WHOLE: 0.8, 8: 0.8}},
    )
    found = live(answers, {"first", "second"})._waited_for(60)
    assert found == {"first": {WHOLE: pytest.approx(0.3), 7: 0.5}, "second": {WHOLE: 0.8, 8: 0.8}}


def test_a_cards_last_values_count_for_some_seconds_where_there_are_no_newer_ones() -> None:
    found, without = live(Answers(), {"first"}), {"first": {WHOLE: 0.9}}
    for age, counts in ((0, True), (60, False)):
        found._sampled = {"first": (time.monotonic() - age, {WHOLE: 0.5, 7: 0.5})}
        told = found._with_last({uuid: dict(busy) for uuid, busy in without.items()})
        assert told == ({"first": {WHOLE: 0.9, 7: 0.5}} if counts else without)


def test_time_beyond_a_cap_is_told_when_two_readings_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Slice("0", "first", 1 << 30, True, 30, Holding("library", "soft", "library", "soft"))
    grant = Grant(1, "c", "/b", 1, 0, "", "running", "hook", 1.0, (part,))
    monkeypatch.setattr(observed, "processes", lambda _: [7])
    found = live(Answers(), {"first"})
    found._beyond = {}
    got, told = observed._Got(30.0), []
    for used in (0.9, 0.9, 0.3, 0.9):
        told.append(found._compared((1, 0), got, grant, part, {"first": {WHOLE: 0.9, 7: used}}).note)
    assert told == ["", "60% more by the driver's count: a program goes round the cap", "", ""]
