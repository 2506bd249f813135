"""The process that makes a page for scrapes: when there is one, and what comes of its end."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xpu_runtime.agent import collector, scrapes
from xpu_runtime.agent.collector import Collector
from xpu_runtime.agent.scrapes import Listener, Made, Server
from xpu_runtime.errors import XpuError


class Scraper:
    """A server in this process, and its clients."""

    def __init__(self, path: Path, make: collector.Make) -> None:
        self._path = str(path)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self._path)
        self._listening.listen()
        self._listening.setblocking(False)
        self.collector = Collector(make)
        self._server = Server(self.collector, {"/metrics": Made(b"metrics", "text/plain")})
        self._server.listen(Listener(self._listening))

    def ask(self) -> tuple[int, str]:
        """The status and the body of an answer."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(self._path)
            client.send(b"GET /metrics HTTP/1.1\r\n\r\n")
            client.setblocking(False)
            content = b""
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                self._server.step(0.01)
                try:
                    piece = client.recv(1 << 16)
                except BlockingIOError:
                    continue
                if not piece:
                    head, _, body = content.decode().partition("\r\n\r\n")
                    return int(head.split()[1]), body
                content += piece
        raise AssertionError("no answer")

    def until_ended(self) -> None:
        deadline = time.monotonic() + 20
        while self.collector.fileno() is not None:
            assert time.monotonic() < deadline
            self._server.step(0.01)

    def close(self) -> None:
        self.collector.close()
        self._listening.close()


Start = Callable[[collector.Make], Scraper]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(scrapes, "_FRESH_S", 0.0)
    started: list[Scraper] = []

    def scraper(make: collector.Make) -> Scraper:
        started.append(Scraper(tmp_path / "socket", make))
        return started[-1]

    yield scraper
    for each in started:
        each.close()


def own_number() -> Callable[[bytes], bytes]:
    return lambda _: str(os.getpid()).encode()


def test_one_process_answers_again_and_again(start: Start) -> None:
    scraper = start(own_number)
    assert scraper.collector.fileno() is None  # nobody has asked
    first = scraper.ask()
    assert first[0] == 200 and first[1] != str(os.getpid())
    assert scraper.ask() == first


def test_it_is_ended_when_nobody_asks_and_when_it_is_old(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    scraper = start(own_number)
    first = scraper.ask()
    monkeypatch.setattr(collector, "_IDLE_S", 0.1)
    assert scraper.ask() == first
    scraper.until_ended()
    second = scraper.ask()
    monkeypatch.setattr(collector, "_OLDEST_S", 0.0)
    assert second != first and scraper.ask() == second
    assert scraper.collector.fileno() is None
    assert scraper.ask() not in (first, second)


def test_one_that_hangs_is_given_up_and_one_that_dies_is_told(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Collector, "longest_s", 0.3)
    hanging = start(lambda: lambda _: time.sleep(1000) or b"")  # type: ignore[func-returns-value]
    status, body = hanging.ask()
    assert status == 503 and "does the driver answer?" in body
    hanging.close()


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda: os._exit(1), "has ended"),
        (lambda: 1 / 0, "division by zero"),
        (lambda: _raise(XpuError("the driver\nis gone", "load it")), "the driver is gone: load it"),
    ],
)
def test_what_goes_wrong_in_it_is_told_and_the_next_one_may_do_better(
    start: Start, act: Callable[[], bytes], told: str
) -> None:
    scraper = start(lambda: lambda _: act())
    for _ in range(3):
        status, body = scraper.ask()
        assert status == 503 and told in body


def _raise(error: Exception) -> bytes:
    raise error
