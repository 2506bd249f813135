"""Figures of time, on machines that have other things to do."""

from __future__ import annotations

from collections.abc import Callable

TIMES = 3


def within(low: float, high: float, measure: Callable[[], float]) -> None:
    """The figure is between two; measured again where the machine was too busy for it."""
    found = [measure()]
    while not low <= found[-1] <= high and len(found) < TIMES:
        found.append(measure())
    assert low <= found[-1] <= high, found


def equals(expected: object, measure: Callable[[], object]) -> None:
    """They are as expected, say pytest.approx; measured again where the machine was too busy for it."""
    found = [measure()]
    while found[-1] != expected and len(found) < TIMES:
        found.append(measure())
    assert found[-1] == expected, found
