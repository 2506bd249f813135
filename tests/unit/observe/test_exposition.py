"""The text for Prometheus: a counter that goes down would be counted twice."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.limits.pages import Compute
from xpu_runtime.limits.usage import Usage
from xpu_runtime.linux import proc
from xpu_runtime.observe.node_metrics import NodeMetrics
from xpu_runtime.observe.reading import Card, Reading, Row
from xpu_runtime.vendors.inventory import Inventory

UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
INVENTORY = Inventory("/", False, (), (), (), "", ())


class Server(NodeMetrics):
    """The agent's, of a node with one slice."""

    def __init__(self) -> None:
        super().__init__()
        self.slice = Slice("0", UUID, 1 << 30, True, 30, Holding("library", "soft", "library", "soft"))
        self.number = 1
        self.compute: Compute | None = None
        self.is_there = True
        #: The process is as old as this machine.
        self.started = 0

    def read(self) -> Reading:
        grant = Grant(
            self.number, "c", "/b", 1, self.started, "", "running", "hook", float(self.number), (self.slice,)
        )
        row = Row(
            grant, 0, "c", 30, None, None, "fixed", "normal", False, None, 1 << 30, self.compute, "", "", None
        )
        card = Card("0", UUID, "T4", None, None, 1 << 34, (row,) if self.is_there else ())
        return Reading(True, (card,), INVENTORY, Usage(INVENTORY))

    def scrape(self, name: str = "device") -> float | None:
        found = re.search(rf"^xpu_slice_{name}_seconds_total\{{.*\}} (.*)$", self.text().decode(), re.M)
        return float(found[1]) if found else None


@pytest.fixture
def server(run_dir: Path) -> Server:
    return Server()


def seconds(used: float, held: float = 0.0) -> Compute:
    return Compute(int(used * 10**9), 0, 0, int(held * 10**9))


def test_time_that_is_taken_back_takes_no_counter_back(server: Server) -> None:
    told = []
    for used in (1.0, 2.0, 1.5, 1.9, 2.5):
        server.compute = seconds(used, used)
        told.append((server.scrape(), server.scrape("held_back")))
    assert told == [(each, each) for each in (1.0, 2.0, 2.0, 2.0, 2.5)]


def test_a_page_that_cannot_be_read_for_once_takes_none_back_either(server: Server) -> None:
    server.compute = seconds(2.0)
    assert server.scrape() == 2.0
    server.compute = None
    assert server.scrape() is None
    server.compute = seconds(1.0)
    assert server.scrape() == 2.0


def test_another_run_of_a_container_begins_anew_and_ended_ones_are_forgotten(server: Server) -> None:
    server.compute = seconds(2.0)
    assert server.scrape() == 2.0
    server.number, server.compute = 2, seconds(1.0)
    assert server.scrape() == 1.0
    server.is_there = False
    assert server.scrape() is None
    assert server._counted._last == {}


def test_no_container_has_had_more_than_the_time_since_its_process_began_whatever_the_clock_says(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.started = proc.start_time(os.getpid()) or 0
    server.compute = seconds(1e9)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    told = server.scrape()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - proc.seconds(server.started)
    assert told is not None and 0 < told <= age


def test_marks_that_cannot_be_read_are_left_out_and_not_taken_for_none(server: Server) -> None:
    told = server.text().decode()
    assert "# HELP xpu_device_drained " in told and "# HELP xpu_device_reserved " in told
    assert "xpu_device_drained{" not in told and "xpu_device_reserved{" not in told
