"""A process beside the agent: it is started again after every failure, and never waited for."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

import pytest

from xpu_runtime.agent import side_process


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_process, "AGAIN_S", 0.0)


def _live(lives: Path) -> None:
    """A process that notes its number, and stays."""
    with lives.open("a") as file:
        file.write(f"{os.getpid()}\n")
    signal.pause()


def _wait_for(path: Path, lines: int) -> list[int]:
    """The numbers of the processes that have lived, when there are this many."""
    end = time.monotonic() + 30
    while not path.exists() or path.read_text().count("\n") < lines:
        assert time.monotonic() < end, "no process was started"
        time.sleep(0.01)
    return [int(line) for line in path.read_text().split()]


def _end_of(process: side_process.SideProcess, told: list[str], text: str) -> None:
    end = time.monotonic() + 30
    while not any(text in line for line in told):
        assert time.monotonic() < end, told
        process.look()
        time.sleep(0.01)


def test_an_ended_process_is_started_again_and_close_ends_it(tmp_path: Path) -> None:
    lives, told = tmp_path / "lives", list[str]()

    process = side_process.SideProcess("what is tried", 0, lambda: _live(lives), "tried.sock", told.append)
    process.look()
    (first,) = _wait_for(lives, 1)
    process.look()
    assert not told, "it lives: nothing is done"
    os.kill(first, signal.SIGKILL)
    _end_of(process, told, "has ended, and is started again")
    _, second = _wait_for(lives, 2)
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


def test_where_no_process_can_be_started_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lives, told = tmp_path / "lives", list[str]()
    fork = os.fork
    failures = [OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)), OSError(errno.ENOMEM, "no memory")]

    def fail_first() -> int:
        if failures:
            raise failures.pop(0)
        return fork()

    def live() -> None:
        lives.write_text(f"{os.getpid()}\n")

    monkeypatch.setattr(os, "fork", fail_first)
    process = side_process.SideProcess("what is tried", 0, live, "s", told.append)
    for _ in range(3):
        process.look()
    _wait_for(lives, 1)
    assert [line.partition(";")[0] for line in told] == [
        "what is tried cannot be started: Resource temporarily unavailable",
        "what is tried cannot be started: no memory",
    ]
    _end_of(process, told, "has ended")
    process.close()


def test_a_failing_process_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ValueError("of no use")

    def say(text: str) -> None:
        os.write(2, text.encode() + b"\n")

    process = side_process.SideProcess("what is tried", 0, fail, "s", say)
    process.look()
    os.waitpid(process._child, 0)
    assert "what is tried has failed: ValueError('of no use')" in capfd.readouterr().err
    process.close()


def test_a_process_without_a_socket_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPU_RUN_DIR", str(tmp_path))
    lives, told, socket = tmp_path / "lives", list[str](), tmp_path / "tried.sock"

    process = side_process.SideProcess("what is tried", 0, lambda: _live(lives), socket.name, told.append)
    process.look()
    _wait_for(lives, 1)
    socket.touch()
    process.look()
    assert not told
    socket.unlink()
    _end_of(process, told, "has ended, and is started again")
    _wait_for(lives, 2)
    # The socket of a dead process is not taken for the next one's.
    told.clear()
    socket.touch()
    process.look()
    os.kill(_wait_for(lives, 2)[-1], signal.SIGKILL)
    _end_of(process, told, "has ended, and is started again")
    _wait_for(lives, 3)
    assert not socket.exists()
    process.close()
