"""The log of an API that cannot be followed: each outage once, and once its end."""

from __future__ import annotations

import pytest

from unit.kubernetes.replica import until
from xpu_runtime.kubernetes import outages
from xpu_runtime.kubernetes.outages import Outages

FORBIDDEN = "the API server refuses: nodes is forbidden (403)"


@pytest.fixture
def log() -> list[str]:
    return []


def of(log: list[str], first: str = "") -> Outages:
    return Outages(log.append, lambda: log.append("again"), first)


def test_watches_that_begin_and_are_refused_in_turns_are_one_outage(log: list[str]) -> None:
    told = of(log).told
    for _ in range(50):
        told(FORBIDDEN)
        told("")
    told(FORBIDDEN)

    assert log == [FORBIDDEN]


def test_an_outage_is_over_when_a_watch_has_stood(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "_STANDS_S", 0.05)
    told = of(log).told
    told(FORBIDDEN)
    told("")
    told("")
    until(lambda: len(log) == 2, "it is over")
    told("")

    assert log == [FORBIDDEN, "again"]


def test_the_same_reason_is_said_again_after_a_minute_and_another_one_at_once(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "_STANDS_S", 0.01)
    told = of(log).told
    told(FORBIDDEN)
    told("")
    until(lambda: len(log) == 2, "it is over")
    told(FORBIDDEN)
    told("the watch broke off")
    told(FORBIDDEN)
    assert log == [FORBIDDEN, "again", "the watch broke off"]
    monkeypatch.setattr(outages, "_AGAIN_S", 0.0)
    told(FORBIDDEN)

    assert log == [FORBIDDEN, "again", "the watch broke off", FORBIDDEN]


def test_that_nothing_was_followed_before_is_not_said_but_its_end_is(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "_STANDS_S", 0.01)
    told = of(log, "not asked yet").told
    told("")
    until(lambda: log, "it is over")

    assert log == ["again"]
