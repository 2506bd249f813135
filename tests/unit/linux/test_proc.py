"""One process of one boot, told from all others."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from xpu_runtime.linux import proc


def test_the_boot_id_is_the_kernels() -> None:
    assert str(uuid.UUID(proc.boot_id())) == proc.boot_id()


def test_the_start_time_is_when_the_process_began() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    earliest = time.clock_gettime(time.CLOCK_BOOTTIME)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    latest = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        started = proc.start_time(child)
        assert started is not None
        assert int(earliest * ticks) <= started <= int(latest * ticks) + 1
        assert proc.is_alive(child, started)
        assert not proc.is_alive(child, started + 1)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert proc.start_time(child) is None
    assert not proc.is_alive(child, started)


def test_a_zombie_is_not_alive() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    started = proc.start_time(child)
    assert started is not None
    assert not proc.is_alive(child, started)
    os.waitpid(child, 0)


def test_a_process_of_which_only_a_later_thread_runs_is_alive() -> None:
    child = os.fork()
    if child == 0:
        threading.Thread(target=time.sleep, args=(600,)).start()
        ctypes.CDLL(None).pthread_exit(None)
    try:
        started = proc.start_time(child)
        while Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        assert started is not None
        assert proc.is_alive(child, started)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("name", ["a) R 1 (b", ") ) )", "(", "x y z", "\n) S 2"])
def test_a_process_cannot_lie_by_its_name(name: str, in_child: Callable[..., None]) -> None:
    def rename_and_look() -> None:
        before = proc.start_time(os.getpid())
        Path("/proc/self/comm").write_text(name)
        assert Path("/proc/self/comm").read_text() == name + "\n"
        assert proc.start_time(os.getpid()) == before
        assert before is not None
        assert proc.is_alive(os.getpid(), before)

    in_child(rename_and_look)


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1, 2**31 + 5])
def test_a_number_that_is_no_process_has_no_start(pid: int) -> None:
    assert proc.start_time(pid) is None
    assert not proc.is_alive(pid, 0)
