"""The process that asks the driver what each process uses: no more than one hangs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import resource
import signal
import time

import pytest

from xpu_runtime.agent import samples
from xpu_runtime.agent.samples import Samples, Utilization


def hang() -> Utilization:
    time.sleep(1000)
    return {}


def test_one_that_cannot_be_ended_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "ANSWER_S", 0.0)
    monkeypatch.setattr(samples, "AGAIN_S", 0.0)
    made: list[int] = []
    fork = os.fork

    def counted() -> int:
        made.append(fork())
        return made[-1]

    monkeypatch.setattr(os, "fork", counted)
    said: list[str] = []
    asked = Samples(lambda: hang, said.append)
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda *_: None)  # as if it were deep in the driver
        for _ in range(6):
            asked.ask()
            assert asked.answer() is None
    assert len(made) == 1
    assert len(said) == 1 and "the driver does not answer" in said[0]
    os.kill(made[0], signal.SIGKILL)
    assert os.waitid(os.P_PID, made[0], os.WEXITED | os.WNOWAIT)
    asked.ask()
    assert len(made) == 2
    asked.close()
    with contextlib.suppress(ChildProcessError):  # it has been waited for
        os.waitpid(made[1], 0)


def test_where_no_process_can_be_started_the_agent_goes_on_and_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samples, "AGAIN_S", 0.0)
    said: list[str] = []
    asked = Samples(lambda: dict, said.append)

    def none_left() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    gc.collect()  # earlier tests may have left some in cycles
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", none_left)
        for _ in range(3):
            asked.ask()
    assert os.listdir("/proc/self/fd") == before
    (line,) = said
    assert "cannot be started (Resource temporarily unavailable)" in line
    assert asked.wait(20) == {}
    asked.close()


def numbers_of_descriptors() -> Utilization:
    return {"kept": {int(fd): 1.0 for fd in os.listdir("/proc/self/fd")}}


def test_the_process_keeps_no_descriptor_of_the_agents_whatever_its_number() -> None:
    high = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 900)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))  # what is open beyond it stays open
    asked = Samples(lambda: numbers_of_descriptors, pytest.fail)
    try:
        answer = asked.wait(20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        asked.close()
        os.close(high)
    assert answer is not None and max(answer["kept"]) < high
