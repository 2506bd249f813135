"""The process that asks the driver: whatever becomes of it, its caller goes on, and says what happened."""

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


def test_a_process_that_has_died_before_it_is_asked_is_told_too() -> None:
    before = set(children())
    with SeparateProcess(Change()) as asked:
        (child,) = set(children()) - before
        os.kill(int(child), signal.SIGKILL)
        os.waitid(os.P_PID, int(child), os.WEXITED | os.WNOWAIT)
        with pytest.raises(DeviceError, match="the process that asks the driver has died"):
            asked.set(0, MEMORY, GIB)
    assert set(children()) == before


def test_a_process_that_dies_with_a_question_unread_is_told_too() -> None:
    before = set(children())
    with SeparateProcess(Change()) as asked:
        (child,) = set(children()) - before
        os.kill(int(child), signal.SIGSTOP)
        os.waitid(os.P_PID, int(child), os.WSTOPPED)
        asked._socket.send(b"[]")
        os.kill(int(child), signal.SIGKILL)
        os.waitid(os.P_PID, int(child), os.WEXITED | os.WNOWAIT)
        with pytest.raises(DeviceError, match="the process that asks the driver has died"):
            asked._answer()


def test_ctrl_c_in_a_terminal_leaves_the_process_by_which_a_limit_is_put_back() -> None:
    with SeparateProcess(Change()) as asked:
        # The terminal's is for the whole group of the command that it runs.
        assert os.getpgid(asked._child) == asked._child != os.getpgrp()


def test_what_is_asked_after_ctrl_c_is_answered_itself(tmp_path: Path) -> None:
    """By that what has shrunk is put back."""

    class Slow(Change):
        def set(self, position: int, kind: str, value: int) -> None:
            time.sleep(0.3)
            with (tmp_path / "set").open("a") as file:
                file.write(f"{value} ")

        def in_use(self, position: int, kind: str) -> int:
            return 7

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with SeparateProcess(Slow()) as asked:
            asked.locked()
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                asked.set(0, MEMORY, 50)
            asked.set(0, MEMORY, 100)
            assert (tmp_path / "set").read_text() == "50 100 "
            assert asked.in_use(0, MEMORY) == 7
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_who_presses_ctrl_c_does_not_wait_for_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    kill = os.kill
    sent: list[tuple[int, int]] = []

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "kill", lambda *call: sent.append(call))
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
