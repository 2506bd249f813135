"""Slices that used more than their allowed share, by the driver's samples; and that a hold brings them to
their cap."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from xpu_runtime.agent.crosscheck import Debt, by_slice
from xpu_runtime.limits.compute import WHOLE

CAP = 3000


def ran(debt: Debt, seconds: int, use: Callable[[int], float], late: int = 1) -> list[float]:
    """The use each second of a slice that follows its share, with samples that are `late` seconds old."""
    told = [0.0] * late
    used = []
    for _ in range(seconds):
        share = debt.share(CAP) if debt.held else CAP
        used.append(use(share))
        told.append(round(used[-1], 2))
        debt.check(1.0, told[-1 - late], share / WHOLE, CAP / WHOLE)
    return used


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda share: share / WHOLE * 2, id="says half of what it uses"),
        pytest.param(lambda share: min(1.0, share / WHOLE * 10), id="says a tenth"),
        pytest.param(lambda share: 1.0 if share else 0.0, id="sets back what it is paced by"),
    ],
)
def test_a_slice_that_lies_gains_nothing(use: Callable[[int], float], late: int) -> None:
    used = ran(debt := Debt(), 400, use, late)
    assert debt.held
    # Late samples make it swing, and a held slice gets no credit for unused time.
    assert 0.25 < sum(used) / len(used) < 0.32


@pytest.mark.parametrize("late", [0, 1, 2])
def test_an_honest_slice_is_never_held(late: int) -> None:
    # The driver's samples jump by some percents around what it may use.
    samples = iter([0.26, 0.34] * 200)
    ran(debt := Debt(), 400, lambda share: next(samples), late)
    assert not debt.held


def samples_of(begins: list[float], length: float, seed: int) -> list[tuple[float, float | None]]:
    """The driver's samples of a load whose kernels of `length` seconds begin at these times: (seconds since
    the last question, utilization). Samples are of 1/6 s, and the driver gives their mean."""
    chance = random.Random(seed)
    asked, told = 0.0, []

    def used_until(time: float) -> float:
        return sum(min(length, max(0.0, time - begin)) for begin in begins)

    while asked < begins[-1]:
        now = asked + chance.uniform(0.5, 1.5)
        first, last = asked * 6 // 1 / 6, now * 6 // 1 / 6
        used = round((used_until(last) - used_until(first)) / (last - first), 2)
        told.append((now - asked, used or None))
        asked = now
    return told


@pytest.mark.parametrize("cap", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("length", [0.1, 0.35, 1.0, 2.0])
def test_a_load_of_long_kernels_that_keeps_its_cap_is_never_held(length: float, cap: float) -> None:
    # Two kernels go before the first has been measured, and are paid for then.
    begins = [0.0, length, *(length / cap * paid for paid in range(2, int(200 * cap / length)))]
    for seed in range(10):
        debt = Debt()
        for seconds, used in samples_of(begins, length, seed):
            debt.check(seconds, used, cap, cap)
            assert not debt.held


def test_one_that_has_stopped_lying_is_let_go() -> None:
    debt = Debt()
    ran(debt, 30, lambda share: 1.0 if share else 0.0)
    assert debt.held
    ran(debt, 200, lambda share: share / WHOLE * 0.9)
    assert not debt.held


def test_a_missing_sample_accuses_nobody_and_gives_time_back_to_a_held_slice() -> None:
    debt = Debt()
    for _ in range(100):
        debt.check(1.0, None, 0.3, 0.3)
    assert not debt.held
    for _ in range(10):
        debt.check(1.0, 1.0, 0.3, 0.3)
    assert debt.held
    owed = debt.owed
    debt.check(1.0, None, 0.3, 0.3)
    assert debt.owed < owed


def test_use_of_a_share_that_was_taken_back_a_moment_ago_is_allowed() -> None:
    debt = Debt()
    for _ in range(10):
        debt.check(1.0, 1.0, 1.0, 0.3)
    for _ in range(2):
        debt.check(1.0, 1.0, 0.3, 0.3)
    assert debt.owed == 0


def test_the_samples_of_a_containers_processes_are_added_up() -> None:
    samples = {10: 0.2, 11: 0.1, 12: 0.4, 99: 0.1}
    found = by_slice(samples, {10: 0, 11: 0, 12: 1}, {0, 1})
    assert found is not None and list(found.values()) == pytest.approx([0.29, 0.395])


def test_rounded_up_samples_of_many_processes_are_evidence_only_if_others_use_the_device() -> None:
    debt = Debt()
    samples, owners = dict.fromkeys(range(40), 0.01), dict.fromkeys(range(40), 0)  # each has used 0.6 %
    for _ in range(1000):
        found = by_slice(samples, owners, {0})
        assert found is not None
        debt.check(1.0, found[0], 0.25, 0.25)
        assert debt.owed == 0
    found = by_slice({**samples, 200: 0.4}, {**owners, 200: 1}, {0, 1})
    assert found is not None and list(found.values()) == pytest.approx([0.2, 0.395])


def test_samples_that_are_more_than_the_device_are_no_evidence() -> None:
    assert by_slice({10: 0.9, 11: 0.9}, {10: 0, 11: 1}, {0, 1}) is None
    # Processes of one container that work at the same time do count.
    assert by_slice({10: 0.9, 11: 0.9}, {10: 0, 11: 0}, {0, 1}) == {0: 1.0}
