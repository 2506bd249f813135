"""The ring of samples that the page's last hour is drawn of."""

from __future__ import annotations

import json
import time

import pytest

from xpu_runtime.agent.history import History


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def kept(ring: History) -> list[int]:
    found: list[int] = json.loads(ring.json())["samples"]
    return found


def test_an_answer_has_the_sample_and_the_shown_values(clock: Clock) -> None:
    ring = History(timed=False)
    assert kept(ring) == [] and ring.due is None
    assert ring.taken(b'1\n{"a":1}') == b'{"a":1}'
    clock.now += 5
    assert ring.taken(b"2\nx") == b"x"  # too early for another one
    clock.now += 10
    ring.taken(b"3\n")
    assert kept(ring) == [1, 3]


def test_samples_older_than_an_hour_go(clock: Clock) -> None:
    ring = History(timed=True)
    for number in range(1000):
        assert ring.due == clock.now
        ring.taken(b"%d\n" % number)
        clock.now += 15
    assert len(kept(ring)) == 241 and kept(ring)[-1] == 999


def test_it_is_bounded_in_bytes_too(clock: Clock) -> None:
    ring = History(timed=True)
    for size, low, high in ((16_000, 239, 242), (40_000, 90, 110)):  # of 256 slices an hour
        for _ in range(300):
            ring.taken(b'"' + b"x" * size + b'"\n')
            clock.now += 15
        assert low < len(kept(ring)) < high


def test_one_that_failed_is_a_gap_and_no_reason_to_ask_at_once(clock: Clock) -> None:
    ring = History(timed=True)
    ring.missed()
    assert ring.due == clock.now + 15 and kept(ring) == []
    clock.now += 15
    ring.taken(b"\n{}")  # the node could not be read
    assert kept(ring) == [] and ring.due == clock.now + 15
