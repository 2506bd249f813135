"""The driver's samples of processes, and the messages without them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from xpu_runtime.errors import DeviceError
from xpu_runtime.linux import deadline
from xpu_runtime.observe import samples
from xpu_runtime.observe.samples import Samples, Utilization


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "AGAIN_S", 0.0)


def hang() -> Utilization:
    os.read(os.pipe()[0], 1)
    return {}


def test_a_driver_that_hangs_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "ANSWER_S", 0.0)
    said: list[str] = []
    found = Samples(lambda: hang, said.append)
    for _ in range(6):
        found.ask()
        assert found.answer() is None
    found.close()
    assert len(said) == 1 and "the driver does not answer" in said[0]


def test_a_failure_is_reported_once_and_so_is_its_end() -> None:
    said: list[str] = []
    found = Samples(lambda: failing, said.append)
    for _ in range(30):
        assert found.wait(20) is None
        time.sleep(0.01)
    assert len(said) == 1 and said[0].endswith("containers report: there is no driver: load it")
    found._process = deadline.HelperProcess(works)
    assert found.wait(20) == {"GPU-1": {5: 0.5}}
    found.close()
    assert said[1:] == ["the driver reports the use of each process again"]


def failing() -> Utilization:
    raise DeviceError("there is no driver", "load it")


def works() -> Callable[[object], Iterator[Utilization]]:
    return lambda _: iter([{"GPU-1": {5: 0.5}}])


def test_after_a_failure_it_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "AGAIN_S", 1000.0)
    found = Samples(lambda: failing, lambda _: None)
    assert found.wait(20) is None
    found.ask()
    assert found.fileno() is None
