"""The process that asks the driver: after every failure its caller goes on, with the reason."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from xpu_runtime.errors import DeviceError
from xpu_runtime.ledger.grants import MEMORY
from xpu_runtime.limits.backend import Change
from xpu_runtime.limits.separate_process import SeparateProcess

from .resizing import GIB


class Dies(Change):
    """A driver that takes the process that asks it with it."""

    def set(self, position: int, kind: str, value: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Change):
    """A driver that hangs in the kernel, where no signal is heard."""

    def set(self, position: int, kind: str, value: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(30)


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_a_change_whose_process_has_died_is_told_as_that() -> None:
    with SeparateProcess(Dies()) as asked:
        for _ in range(2):
            with pytest.raises(DeviceError, match="the process that asks the driver has died"):
                asked.set(0, MEMORY, GIB)


def test_ctrl_c_does_not_wait_for_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    kill = os.kill
    sent: list[tuple[int, int]] = []

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "kill", lambda *call: sent.append(call))
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    others = set(children())
    before = signal.signal(signal.SIGALRM, interrupt)
    started = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt), SeparateProcess(Hangs()) as asked:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            asked.set(0, MEMORY, GIB)
        took = time.monotonic() - started
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        left = [int(child) for child in set(children()) - others]
        for child in left:
            kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert took < 15
    assert sent == [(child, signal.SIGKILL) for child in left]
