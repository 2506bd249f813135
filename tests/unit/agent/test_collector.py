"""The process that makes the served pages: its beginning, and its end."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from xpu_runtime.agent import collector
from xpu_runtime.agent.collector import Collector, Page
from xpu_runtime.agent.history import SAMPLE, History
from xpu_runtime.errors import XpuError
from xpu_runtime.http_message import Answer
from xpu_runtime.linux.deadline import HelperProcess

PAGES = ("metrics", "data")


class Scraper:
    """A collector and its clients."""

    def __init__(
        self,
        make: collector.Make,
        history: History | None = None,
        missing: Callable[[str], bytes] | None = None,
    ) -> None:
        self.collector = Collector(make, history or History(timed=False))
        self._pages = {name: Page(name.encode(), "text/plain", missing=missing) for name in PAGES}

    def step(self) -> None:
        """One step, as the server takes it."""
        until = self.collector.until
        left = 0.01 if until is None else min(0.01, max(0.0, until - time.monotonic()))
        select.select([fd for fd in (self.collector.fileno(),) if fd is not None], [], [], left)
        self.collector.step()

    def asking(self, page: str) -> list[Answer]:
        """Where the answer will be."""
        told: list[Answer] = []
        self.collector.ask(self._pages[page], told.append)
        return told

    def ask(self) -> tuple[int, str]:
        """The status and the body of an answer."""
        return self.answer(self.asking("metrics"))

    def answer(self, told: list[Answer]) -> tuple[int, str]:
        self.until(lambda: bool(told))
        (answer,) = told
        return answer.status, answer.content.decode()

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < deadline
            self.step()


Start = Callable[..., Scraper]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(collector, "_FRESH_S", 0.0)
    started: list[Scraper] = []

    def scraper(make: collector.Make, *options: Any, **named: Any) -> Scraper:
        started.append(Scraper(make, *options, **named))
        return started[-1]

    yield scraper
    for each in started:
        each.collector.close()


def own_number() -> Callable[[bytes], bytes]:
    return lambda _: str(os.getpid()).encode()


def test_the_process_ends_when_nobody_asks_and_when_it_is_old(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    scraper = start(own_number)
    first = scraper.ask()
    monkeypatch.setattr(collector, "_IDLE_S", 0.1)
    assert scraper.ask() == first
    scraper.until(lambda: scraper.collector.fileno() is None)
    monkeypatch.setattr(collector, "_IDLE_S", 300.0)
    second = scraper.ask()
    monkeypatch.setattr(collector, "_OLDEST_S", 0.0)
    assert second != first and scraper.ask() == second
    assert scraper.collector.fileno() is None
    assert scraper.ask() not in (first, second)


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda: os._exit(1), "its process died"),
        (lambda: 1 / 0, "division by zero"),
        (lambda: _raise(XpuError("the driver\nis gone", "load it")), "the driver is gone: load it"),
    ],
)
def test_an_error_of_the_process_is_reported_and_the_next_one_may_do_better(
    start: Start, act: Callable[[], bytes], told: str
) -> None:
    scraper = start(lambda: lambda _: act())
    for _ in range(3):
        status, body = scraper.ask()
        assert status == 503 and told in body


def _raise(error: Exception) -> bytes:
    raise error


def test_a_page_that_cannot_be_made_fails_no_request_for_another(start: Start) -> None:
    def make(question: bytes) -> bytes:
        return question if question == b"metrics" else _raise(XpuError("not now", "later"))

    scraper = start(lambda: make)
    data, metrics = scraper.asking("data"), scraper.asking("metrics")
    assert scraper.answer(data) == (503, "not now: later\n")
    assert scraper.answer(metrics) == (200, "metrics")


def test_where_it_hangs_all_that_wait_are_told_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Collector, "longest_s", 2.0)
    asked: list[object] = []
    ask = HelperProcess.ask

    def counted(process: HelperProcess, question: object, seconds: float) -> None:
        asked.append(question)
        ask(process, question, seconds)

    monkeypatch.setattr(HelperProcess, "ask", counted)
    scraper = start(lambda: lambda _: time.sleep(1000) or b"")  # type: ignore[func-returns-value]
    clients = [scraper.asking(page) for page in PAGES]
    for client in clients:
        status, body = scraper.answer(client)
        assert status == 503 and "does the driver answer?" in body
    assert len(asked) == 1


def test_the_answer_in_place_of_a_page_is_made_once_for_all_clients(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making it takes seconds, in which no other client is served."""
    monkeypatch.setattr(Collector, "longest_s", 1.0)
    monkeypatch.setattr(collector, "_FRESH_S", 60.0)
    made: list[str] = []

    def missing(why: str) -> bytes:
        made.append(why)
        return b"0"

    scraper = start(lambda: lambda _: time.sleep(1000) or b"", missing=missing)  # type: ignore[func-returns-value]
    clients = [scraper.asking(page) for page in ("data", "metrics", "metrics", "metrics")]
    assert [scraper.answer(client) for client in clients] == [(200, "0")] * 4
    assert scraper.answer(scraper.asking("metrics")) == (200, "0")
    assert len(made) == len(PAGES)


def test_samples_are_taken_while_nobody_asks_and_a_failed_one_is_left_out(start: Start) -> None:
    history = History(timed=True)
    scraper = start(lambda: lambda question: b"1\n" if question == SAMPLE else b"", history)
    scraper.until(lambda: b"[1]" in history.json())
    failing = History(timed=True)
    scraper = start(lambda: lambda _: _raise(XpuError("not now", "later")), failing)
    scraper.until(lambda: failing.due is None or failing.due > time.monotonic())
    assert b"[]" in failing.json()
