"""Steps of a run on a lent machine (bench/gpu/lent/steps.py): their ends, and leftover processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from support.sharing_time import until

from .stepped import Run, is_running, python, shell

#: Leaves a process in another session that holds the pipe, and prints its pid.
_DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(f"daemon: {os.getpid()}", flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
"""
#: Leaves a process whose first thread has ended, so that it looks like a zombie, and prints its pid.
_THREAD = """
import ctypes, os, sys, threading, time
child = os.fork()
if child == 0:
    threading.Thread(target=time.sleep, args=(600,)).start()
    ctypes.CDLL(None).pthread_exit(None)
while open(f"/proc/{child}/stat").read().rpartition(")")[2].split()[0] != "Z":
    time.sleep(0.01)
print(f"thread of: {child}", flush=True)
"""


def test_a_step_that_is_late_may_clean_up_and_is_ended_with_its_group(run: Callable[..., Run]) -> None:
    stubborn = "trap '' TERM; sleep 600 & echo \"child: $!\"; sleep 600; sleep 600"
    tidy = "trap 'echo \"ok: cleaned up\"; exit 0' TERM; sleep 600 & wait"
    done = run(shell("stubborn", stubborn, seconds=1), shell("tidy", tidy, seconds=1), shell("next", "true"))
    assert done.outcomes() == {"stubborn": "late", "tidy": "late", "next": "ok"}
    assert not is_running(int(done.results(name="child")[0]["value"]))
    assert "no end within 1 s" in done.text()
    assert done.results(kind="ok", step="tidy", text="cleaned up")


def test_a_late_step_has_failed_only_if_a_check_failed_or_it_printed_nothing(
    run: Callable[..., Run],
) -> None:
    done = run(shell("late", "echo 'ok: it holds'; sleep 600", seconds=1))
    assert done.outcomes() == {"late": "late"} and done.popen.returncode == 0
    assert "FAILED" not in done.text() and "1 held, no end within 1 s" in done.text()
    done = run(
        shell("wrong", "echo 'FAILED: the limit'; sleep 600", seconds=1),
        shell("mute", "sleep 600", seconds=1),
    )
    assert done.outcomes() == {"wrong": "late", "mute": "late"} and done.popen.returncode == 1
    assert "FAILED wrong: the limit" in done.text() and "FAILED mute: late" in done.text()


def test_each_step_has_its_own_grace(run: Callable[..., Run]) -> None:
    stubborn = "trap '' TERM; echo 'ok: begun'; while :; do sleep 0.1; done"
    done = run(shell("short", stubborn, seconds=1, grace=0.5), shell("long", stubborn, seconds=1, grace=6))
    short, long = (each["seconds"] for each in done.results(kind="step"))
    assert 1.4 < short < 4 < 6.9 < long


def test_the_last_step_has_all_of_the_remaining_time(run: Callable[..., Run]) -> None:
    done = run(shell("one", "sleep 3; echo 'ok: done'", seconds=1, last=True), seconds=30)
    assert done.outcomes() == {"one": "ok"}


def test_processes_that_a_step_leaves_in_any_form_are_ended(run: Callable[..., Run]) -> None:
    done = run(python("daemon", _DAEMON), python("thread", _THREAD), shell("next", "true"))
    assert done.outcomes() == {"daemon": "ok", "thread": "ok", "next": "ok"}
    assert not is_running(int(done.results(name="daemon")[0]["value"]))
    assert done.results(kind="step", step="daemon")[0]["seconds"] < 15
    assert not Path("/proc", done.results(name="thread of")[0]["value"]).exists()


def test_an_ended_orphan_is_reaped_while_its_step_runs(run: Callable[..., Run]) -> None:
    """An init would reap it too. A program that waits for the orphan's end must not wait for ever."""
    orphan = """
import os, sys, time
read, write = os.pipe()
if os.fork() == 0:
    pid = os.fork()
    if pid:
        os.write(write, str(pid).encode())
    os._exit(0)
os.wait()
pid = os.read(read, 10).decode()
while os.path.exists(f"/proc/{pid}"):
    time.sleep(0.01)
print("ok: gone")
"""
    done = run(python("orphan", orphan, seconds=10))
    assert done.outcomes() == {"orphan": "ok"} and done.results(kind="ok")


def test_a_step_that_closes_its_output_runs_on(run: Callable[..., Run], tmp_path: Path) -> None:
    done = run(shell("closed", f"exec >&- 2>&-; sleep 0.3; echo done > {tmp_path}/mark"))
    assert done.outcomes() == {"closed": "ok"} and (tmp_path / "mark").exists()


def test_a_step_that_no_longer_fits_is_left_out(run: Callable[..., Run]) -> None:
    steps = (
        shell("first", "true", seconds=4),
        shell("long", "true", seconds=60),
        shell("short", "true", seconds=4),
    )
    done = run(*steps, seconds=20)
    assert done.outcomes() == {"first": "ok", "long": "left out", "short": "ok"}
    assert "left out long" in done.text() and "60 are needed" in done.text()


def test_a_step_has_at_most_the_runs_remaining_time(run: Callable[..., Run]) -> None:
    done = run(shell("long", "sleep 600", seconds=8), seconds=12)
    assert done.outcomes() == {"long": "late"}
    assert done.results(kind="step")[0]["seconds"] < 12


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_terminated_run_leaves_its_results(tmp_path: Path, number: signal.Signals) -> None:
    steps = [
        shell("first", "echo 'a value: 1'"),
        shell("second", "echo 'another: 2'; echo 'a line of' 'the log'; sleep 600", seconds=90),
        shell("third", "true"),
    ]
    made = Run(tmp_path / "out", steps)
    made.wait_for("another")
    # The log is flushed each second.
    until(lambda: b"a line of the log" in made.log(), "the log has it", 30)
    made.popen.send_signal(number)
    status = made.popen.wait(30)
    assert made.results(name="a value") and made.results(name="another")
    assert b"a line of the log" in made.log()
    assert "| first | ok |" in (made.out / "summary.md").read_text()
    if number == signal.SIGTERM:
        assert status == 143 and made.outcomes() == {"first": "ok", "second": "late", "third": "left out"}
        assert "stopped by SIGTERM" in made.text().splitlines()[-1]
    else:
        assert "ok       first" in made.text()


@pytest.mark.parametrize("least", [1, 200, 1500])
def test_a_killed_runs_results_are_readable_at_every_moment(tmp_path: Path, least: int) -> None:
    noisy = 'i=0; while :; do i=$((i+1)); echo "value $i: $i"; done'
    made = Run(tmp_path / "out", [shell("noisy", noisy)])
    file = made.out / "results.jsonl"
    until(lambda: file.exists() and file.read_bytes().count(b"\n") >= least, "results", 30)
    made.popen.kill()
    made.popen.wait()
    whole = file.read_text().rpartition("\n")[0].splitlines()
    assert [json.loads(line)["value"] for line in whole] == [str(i + 1) for i in range(len(whole))]
    assert made.log().startswith(b"===== noisy")


def test_the_next_run_ends_a_killed_runs_processes(tmp_path: Path, run: Callable[..., Run]) -> None:
    first = Run(tmp_path / "first", [python("daemon", _DAEMON + "time.sleep(600)")])
    first.wait_for("daemon")
    daemon = int(first.results(name="daemon")[0]["value"])
    first.popen.kill()
    first.popen.wait()
    assert is_running(daemon)
    done = run(shell("next", "true"))
    until(lambda: not is_running(daemon), "it has ended", 30)
    assert done.outcomes() == {"next": "ok"}


def test_a_living_runs_processes_are_left_alone(tmp_path: Path, run: Callable[..., Run]) -> None:
    first = Run(tmp_path / "first", [shell("waits", 'echo "child: $$"; sleep 600')])
    first.wait_for("child")
    run(shell("next", "true"))
    assert is_running(int(first.results(name="child")[0]["value"]))
    first.popen.terminate()
    first.popen.wait(30)
