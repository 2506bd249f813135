"""A call that hangs, dies or fails is ended in time, and what it had found before is kept."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from xpu_runtime.doctor import bounded, machine
from xpu_runtime.doctor.areas import driver
from xpu_runtime.errors import DeviceError
from xpu_runtime.finding import PROBLEM


def hangs() -> Iterator[int]:
    yield 1
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.Signals)
    time.sleep(1000)


def dies() -> Iterator[int]:
    yield 2
    os.kill(os.getpid(), signal.SIGKILL)


def fails() -> Iterator[int]:
    yield 3
    raise DeviceError("it is broken", "mend it")


def big() -> Iterator[bytes]:
    yield bytes(3 << 20)


def test_each_call_has_its_answer_and_none_waits_for_another() -> None:
    started = time.monotonic()
    answers = bounded.together([hangs, dies, fails, big, lambda: iter(())], 3)
    assert time.monotonic() - started < 20
    assert [answer.values for answer in answers] == [(1,), (2,), (3,), (bytes(3 << 20),), ()]
    assert [answer.error for answer in answers] == [
        "it did not end within 3 s", "its process died (SIGKILL)", "it is broken", "", "",
    ]  # fmt: skip
    assert [answer.hung for answer in answers] == [True, False, False, False, False]
    assert [answer.died for answer in answers] == [False, True, False, False, False]
    assert answers[2].todo == "mend it"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_call_ends_with_whoever_waits_for_it(number: signal.Signals) -> None:
    reading, writing = os.pipe()
    asker = os.fork()
    if asker == 0:
        os.close(reading)

        def waits() -> Iterator[int]:
            os.write(writing, b"%d" % os.getpid())
            time.sleep(1000)
            yield 1

        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            bounded.together([waits], 1000)
        finally:
            os._exit(1)
    os.close(writing)
    call = int(os.read(reading, 100))
    # Python loses a Ctrl-C that comes while it runs what modules have registered for after a fork.
    while os.waitpid(asker, os.WNOHANG) == (0, 0):
        os.kill(asker, number)
        time.sleep(0.05)
    # The pipe is open in the call alone.
    has_ended = bool(select.select([reading], [], [], 10)[0])
    os.close(reading)
    if not has_ended:
        os.kill(call, signal.SIGKILL)
    assert has_ended


def test_of_several_that_cannot_be_ended_none_is_waited_for_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # They hang where no signal reaches them.
    kill_group, sent = os.killpg, list[int]()
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(pid))
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    started = time.monotonic()
    answers = bounded.together([hangs] * 8, 0.5)
    took = time.monotonic() - started
    for pid in sent:
        kill_group(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert len(sent) == 8
    assert [answer.hung for answer in answers] == [True] * 8
    assert took < 0.5 + 4 * bounded._END_S


def test_an_end_by_a_real_time_signal_is_told() -> None:
    def dies() -> None:
        os.kill(os.getpid(), 40)

    assert bounded.one(dies, 10).error == "its process died (signal 40)"


def test_what_a_call_has_started_ends_with_it(tmp_path: Path) -> None:
    def starts() -> Iterator[int]:
        child = subprocess.Popen(["sleep", "1000"])
        yield child.pid
        child.wait()

    (answer,) = bounded.together([starts], 3)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{answer.values[0]}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{answer.values[0]}/stat").read_text().rpartition(") ")[2][0] == "Z":
            break
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{answer.values[0]}").exists()


def test_a_driver_that_hangs_is_a_problem(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_discover", lambda root, simulated: time.sleep(1000))
    monkeypatch.setattr(machine, "_DRIVER_S", 0.4)
    monkeypatch.setenv("XPU_CONFIG", str(run_dir / "none.yaml"))
    asked = machine.ask().replace(driver_root=str(run_dir))
    assert asked.grants == ()
    (finding,) = driver.look(asked)
    assert finding.state == PROBLEM
    assert "does not answer" in finding.text
    assert "nvidia-smi" in str(finding.todo)
