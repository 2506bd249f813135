"""The process that asks the driver what each process uses: no more than one hangs."""

from __future__ import annotations

import os
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
    os.waitpid(made[1], 0)
