"""Steps of a run on a machine that is lent (bench/gpu/steps.py): what is kept and printed, whatever they do.

Each test runs a program with steps of its own, as bench/gpu/lease does, in processes of its own.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "bench/gpu"))
import results as kept

SCRIPTS = REPOSITORY / "bench" / "gpu"
#: What is printed, and brought back: characters, files, bytes of each.
MOST_PRINTED, MOST_FILES, MOST_BYTES = 12_000, 8, 16 << 20

_PROGRAM = """
import json, sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
import steps

run = steps.Steps("a run", Path({out!r}), {seconds}, {count})
steps.end_earlier_runs()
for name, seconds, words, *how in json.loads({given!r}):
    run.step(name, seconds, words, "a fault", **{{"measures": True, **(how[0] if how else {{}})}})
sys.exit(run.finish())
"""
#: Leaves a process in another session that holds the pipe, and says which.
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
#: Leaves a process whose first thread has ended, so that it is shown as a zombie, and says which.
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
Step = tuple[Any, ...]


def shell(name: str, script: str, seconds: float = 20, **how: Any) -> Step:
    """`how`: more words for Steps.step."""
    return name, seconds, ["sh", "-c", script], how


def python(name: str, script: str, seconds: float = 20) -> Step:
    return name, seconds, [sys.executable, "-c", script]


class Run:
    """A run of these steps, which writes into `out`."""

    def __init__(self, out: Path, steps: Sequence[Step], seconds: float = 100) -> None:
        self.out, self.printed = out, out.with_name("printed")
        program = self.program(out, steps, seconds)
        with self.printed.open("wb") as output:
            self.popen = subprocess.Popen([sys.executable, "-c", program], stdout=output, stderr=output)

    @staticmethod
    def program(out: Path, steps: Sequence[Step], seconds: float = 100) -> str:
        given = json.dumps(steps)
        return _PROGRAM.format(
            scripts=str(SCRIPTS), out=str(out), seconds=seconds, count=len(steps), given=given
        )

    def text(self) -> str:
        return self.printed.read_text()

    def results(self, **like: object) -> list[dict[str, Any]]:
        """Those lines that have these values; every line is whole."""
        lines = [json.loads(line) for line in (self.out / "results.jsonl").read_text().splitlines()]
        return [line for line in lines if like.items() <= line.items()]

    def outcomes(self) -> dict[str, str]:
        return {line["step"]: line["word"] for line in self.results(kind="step")}

    def log(self) -> bytes:
        """As zcat shows it: all members, and of one that was cut off what is there."""
        rest, text = (self.out / "log.gz").read_bytes(), b""
        while rest:
            member = zlib.decompressobj(31)
            text += member.decompress(rest)
            rest = member.unused_data
        return text


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    """Runs steps to their end."""

    def to_its_end(*steps: Step, seconds: float = 100) -> Run:
        made = Run(tmp_path / "out", steps, seconds)
        made.popen.wait(120)
        return made

    return to_its_end


def until(holds: Callable[[], bool], what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_step_s_lines_are_results_and_its_output_is_in_the_log(run: Callable[..., Run]) -> None:
    done = run(shell("one", "echo 'size: 4 GiB'; echo 'ok: it holds'; echo 'a remark'; echo aside >&2"))
    assert done.popen.returncode == 0
    (value,), (held,) = done.results(kind="value"), done.results(kind="ok")
    assert (value["step"], value["name"], value["value"], held["text"]) == (
        "one",
        "size",
        "4 GiB",
        "it holds",
    )
    for line in (b"size: 4 GiB", b"a remark", b"aside"):
        assert line in done.log()
    assert "one: size: 4 GiB" in done.text() and "1 held" in done.text()
    assert "| one | ok |" in (done.out / "summary.md").read_text()


def test_the_next_step_goes_on_whatever_came(run: Callable[..., Run]) -> None:
    done = run(
        shell("fails", "echo 'FAILED: the limit'; exit 1"),
        shell("says so and ends well", "echo 'FAILED: another'"),
        shell("has a status", "exit 3"),
        shell("is killed", "kill -9 $$"),
        ("is missing", 20, ["/no/such/program"]),
        shell("has no tool", "echo 'skipped: no torch'; exit 77"),
        shell("holds", "true"),
    )
    assert list(done.outcomes().values()) == ["FAILED"] * 5 + ["skipped", "ok"]
    assert done.popen.returncode == 1
    for line in (
        "fails: the limit",
        "has a status: exit status 3",
        "is killed: exit status -9",
        "is missing: not started",
    ):
        assert f"FAILED {line}" in done.text()


def test_a_step_that_is_late_is_ended_with_its_group(run: Callable[..., Run]) -> None:
    script = "trap '' TERM; sleep 600 & echo \"child: $!\"; sleep 600; sleep 600"
    done = run(shell("late", script, seconds=1), shell("next", "true"))
    assert done.outcomes() == {"late": "late", "next": "ok"}
    assert not is_running(int(done.results(name="child")[0]["value"]))
    assert "no end within 1 s" in done.text()


def test_a_step_that_was_late_has_failed_only_if_a_check_did_or_if_it_had_said_nothing(
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


def test_a_step_has_the_grace_that_is_its_own(run: Callable[..., Run]) -> None:
    stubborn = "trap '' TERM; echo 'ok: begun'; while :; do sleep 0.1; done"
    done = run(shell("short", stubborn, seconds=1, grace=0.5), shell("long", stubborn, seconds=1, grace=6))
    short, long = (each["seconds"] for each in done.results(kind="step"))
    assert 1.4 < short < 4 < 6.9 < long


def test_the_last_step_has_all_that_is_left(run: Callable[..., Run]) -> None:
    done = run(shell("one", "sleep 3; echo 'ok: done'", seconds=1, last=True), seconds=30)
    assert done.outcomes() == {"one": "ok"}


def test_a_run_in_which_every_measuring_step_was_skipped_says_so(run: Callable[..., Run]) -> None:
    no_tool = "echo 'skipped: no torch'; exit 77"
    done = run(shell("facts", "true"), shell("doctor", "true", measures=False), shell("a", no_tool))
    assert done.popen.returncode == 77
    assert done.text().splitlines()[-1].endswith("not tried: a")
    assert run(shell("b", no_tool), shell("c", "true")).popen.returncode == 0


def test_a_step_that_is_late_may_clean_up(run: Callable[..., Run]) -> None:
    script = "trap 'echo \"ok: cleaned up\"; exit 0' TERM; sleep 600 & wait"
    done = run(shell("late", script, seconds=1))
    assert done.outcomes() == {"late": "late"}
    assert done.results(kind="ok", text="cleaned up")


def test_a_daemon_that_holds_the_pipe_in_another_session_is_ended(run: Callable[..., Run]) -> None:
    done = run(python("daemon", _DAEMON), shell("next", "true"))
    assert done.outcomes() == {"daemon": "ok", "next": "ok"}
    assert not is_running(int(done.results(name="daemon")[0]["value"]))
    assert done.results(kind="step", step="daemon")[0]["seconds"] < 15


def test_a_process_of_which_only_a_later_thread_runs_is_ended(run: Callable[..., Run]) -> None:
    done = run(python("thread", _THREAD))
    assert done.outcomes() == {"thread": "ok"}
    (said,) = done.results(name="thread of")
    assert not Path("/proc", said["value"]).exists()


def test_an_orphan_that_ends_is_gone_while_its_step_runs(run: Callable[..., Run]) -> None:
    """As on a machine with an init: who waits until it is gone would wait for ever."""
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


def test_what_floods_the_log_keeps_its_begin_and_its_last_words(run: Callable[..., Run]) -> None:
    junk = (
        "import os\nprint('begin: here', flush=True)\n"
        "for _ in range(400): os.write(1, os.urandom(1 << 16))\nprint('\\nlast words')"
    )
    done = run(*(python(f"junk {number}", junk) for number in range(4)), shell("next", "echo 'after: all'"))
    assert done.outcomes()["next"] == "ok" and done.results(name="after")
    log = done.log()
    assert log.count(b"\nbegin: here\n") == log.count(b"\nlast words\n") == 4
    assert b"bytes left out" in log and b"\nafter: all\n" in log
    assert (done.out / "log.gz").stat().st_size < MOST_BYTES
    assert len(done.printed.read_bytes()) < MOST_PRINTED


def test_with_everything_failing_what_is_printed_and_kept_is_bounded(run: Callable[..., Run]) -> None:
    many = 'i=0; while [ $i -lt 3000 ]; do echo "FAILED: check $i of many, {}"; i=$((i+1)); done; exit 1'
    done = run(*(shell(f"step {number}", many.format("long " * 60)) for number in range(20)))
    assert list(done.outcomes().values()) == ["FAILED"] * 20
    printed = done.printed.read_bytes()
    assert len(printed) < MOST_PRINTED and printed.isascii()
    for number in range(20):
        assert f"FAILED step {number}: check 0 of many" in done.text()
    assert done.text().splitlines()[-1].startswith("a run: ")
    files = list(done.out.iterdir())
    assert len(files) <= MOST_FILES and all(file.stat().st_size < MOST_BYTES for file in files)


def test_on_a_full_disk_all_steps_run_and_are_told(tmp_path: Path) -> None:
    steps = [shell("first", "seq 100000; echo 'ok: it holds'"), shell("second", "echo 'size: 4'")]
    program = Run.program(tmp_path / "out", steps)
    full = f'mount -t tmpfs -o size=8k full {tmp_path} && exec {sys.executable} -c "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", full, "sh", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr
    assert "ok       first" in done.stdout and "second: size: 4" in done.stdout and "1 held" in done.stdout


def test_folders_in_the_way_and_a_folder_that_goes_away_cost_what_would_be_in_it(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    for name in ("log.gz", "results.jsonl", "summary.new"):
        (tmp_path / "out" / name / "in the way").mkdir(parents=True)
    done = run(shell("one", "echo 'ok: it holds'"))
    assert done.outcomes() == {"one": "ok"} and b"it holds" in done.log()
    gone = run(shell("removes", f"rm -r {tmp_path}/out; echo 'ok: gone'"), shell("next", "echo 'size: 4'"))
    assert gone.popen.returncode == 0 and "next: size: 4" in gone.text()


def test_results_of_an_earlier_run_are_moved_aside_and_those_of_one_that_lives_are_left(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    run(shell("earlier", "true"))
    first = Run(tmp_path / "out", [shell("waits", "echo 'here: 1'; sleep 600")])
    until(lambda: (first.out / "results.jsonl").exists() and first.results(name="here") != [], "no result")
    assert '"earlier"' in (tmp_path / "out.before/results.jsonl").read_text()
    second = Run(tmp_path / "out", [shell("second", "true")])
    assert second.popen.wait(30) != 0
    assert first.results(name="here") != [] and first.popen.poll() is None
    first.popen.terminate()
    first.popen.wait(30)


def test_a_long_failure_is_printed_with_its_end_which_says_what_to_do(run: Callable[..., Run]) -> None:
    long = f"no kit in {'/a/folder' * 30}: run make lease again"
    done = run(
        shell("one", f"echo 'FAILED: {long}'"),
        shell("doctor", f"echo 'problem  kit: {long}'; exit 1", measures=False),
    )
    assert f"FAILED one: {long}" in done.text() and f"FAILED doctor: problem  kit: {long}" in done.text()
    assert "would be our fault: a fault" in done.text()
    assert "would be our fault: a fault" in (done.out / "summary.md").read_text()


def test_a_fault_of_ours_is_named_only_where_something_was_measured(run: Callable[..., Run]) -> None:
    no_place = "echo 'card: Tesla T4'; echo 'FAILED: not measured: no container: 16G requested'; exit 1"
    done = run(
        shell("no place", no_place),
        shell("crash", "exit 1"),
        ("no program", 20, ["/none"], {"measures": False}),
        shell("figures", "echo 'ratio: 2'; exit 1"),
        shell("check", "echo 'FAILED: the limit'"),
        shell("doctor", "echo 'problem  kit: no'; exit 1", measures=False),
    )
    rows = {line[9:21].strip(): line for line in done.text().splitlines() if line.startswith("FAILED   ")}
    nothing = {name for name, row in rows.items() if "nothing was measured (set up wrong" in row}
    ours = {name for name, row in rows.items() if "would be our fault: a fault" in row}
    assert (nothing, ours) == ({"no place", "crash", "no program"}, {"figures", "check", "doctor"})
    assert "FAILED no place: not measured: no container: 16G requested" in done.text()


def test_a_step_without_checks_says_so(run: Callable[..., Run]) -> None:
    done = run(shell("share", "echo 'at 30: 29.8'"), shell("none", "echo 'skipped: no JAX'; exit 77"))
    assert "ok       share        0 s, measured only" in done.text()
    assert "skipped  none         0 s, 1 skipped (no JAX)" in done.text()


def test_values_are_printed_step_by_step_and_what_is_no_value_is_none(run: Callable[..., Run]) -> None:
    lines = (
        "1 GiB by cuMemAlloc, MiB: 1024\\nxpu: refused\\nValueError: no\\nwritten: /a\\nratio: 0.61043068300"
    )
    done = run(
        shell("one", f"printf '{lines}\\n'"),
        shell("two", "echo 'a: 1'; echo 'skipped: no JAX'; echo 'skipped: no JAX'; echo 'ok: b'"),
        shell("facts", "echo 'card: T4'; echo 'tools: many'"),
    )
    assert [each["name"] for each in done.results(step="one", kind="value")] == [
        "1 GiB by cuMemAlloc, MiB",
        "ratio",
    ]
    printed = [line for line in done.text().splitlines() if line.startswith(("one: ", "two: ", "facts: "))]
    assert printed == [
        "one: 1 GiB by cuMemAlloc, MiB: 1024",
        "one: ratio: 0.6104",
        "two: a: 1",
        "facts: card: T4",
    ]
    assert "1 held, 2 skipped (no JAX)" in done.text()


def test_no_more_is_printed_than_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    screen = kept.Screen(steps=10, most=700)
    for number in range(100):
        screen.say(f"line {number}")
    assert 600 < len(capsys.readouterr().out) <= 700


def test_a_step_that_no_longer_fits_is_left_out(run: Callable[..., Run]) -> None:
    steps = (
        shell("first", "true", seconds=4),
        shell("long", "true", seconds=60),
        shell("short", "true", seconds=4),
    )
    done = run(*steps, seconds=20)
    assert done.outcomes() == {"first": "ok", "long": "left out", "short": "ok"}
    assert "left out long" in done.text() and "it wants 60" in done.text()


def test_a_step_has_what_is_left_of_the_run(run: Callable[..., Run]) -> None:
    done = run(shell("long", "sleep 600", seconds=8), seconds=12)
    assert done.outcomes() == {"long": "late"}
    assert done.results(kind="step")[0]["seconds"] < 12


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_run_that_is_ended_leaves_what_it_had(tmp_path: Path, number: signal.Signals) -> None:
    steps = [
        shell("first", "echo 'a value: 1'"),
        shell("second", "echo 'another: 2'; echo 'a line of' 'the log'; sleep 600", seconds=90),
        shell("third", "true"),
    ]
    made = Run(tmp_path / "out", steps)
    until(lambda: (made.out / "results.jsonl").exists() and made.results(name="another") != [], "no result")
    # The log is flushed each second.
    until(lambda: b"a line of the log" in made.log(), "nothing in the log")
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
def test_a_run_that_was_killed_is_readable_at_every_moment(tmp_path: Path, least: int) -> None:
    noisy = 'i=0; while :; do i=$((i+1)); echo "value $i: $i"; done'
    made = Run(tmp_path / "out", [shell("noisy", noisy)])
    file = made.out / "results.jsonl"
    until(lambda: file.exists() and file.read_bytes().count(b"\n") >= least, "no results")
    made.popen.kill()
    made.popen.wait()
    whole = file.read_text().rpartition("\n")[0].splitlines()
    assert [json.loads(line)["value"] for line in whole] == [str(i + 1) for i in range(len(whole))]
    assert made.log().startswith(b"===== noisy")


def test_what_a_killed_run_has_left_is_ended_by_the_next(tmp_path: Path, run: Callable[..., Run]) -> None:
    first = Run(tmp_path / "first", [python("daemon", _DAEMON + "time.sleep(600)")])
    until(lambda: (first.out / "results.jsonl").exists() and first.results(name="daemon") != [], "no daemon")
    daemon = int(first.results(name="daemon")[0]["value"])
    first.popen.kill()
    first.popen.wait()
    assert is_running(daemon)
    done = run(shell("next", "true"))
    until(lambda: not is_running(daemon), "it lives")
    assert done.outcomes() == {"next": "ok"}


def test_what_a_run_that_lives_has_started_is_left_alone(tmp_path: Path, run: Callable[..., Run]) -> None:
    first = Run(tmp_path / "first", [shell("waits", 'echo "child: $$"; sleep 600')])
    until(lambda: (first.out / "results.jsonl").exists() and first.results(name="child") != [], "no child")
    run(shell("next", "true"))
    assert is_running(int(first.results(name="child")[0]["value"]))
    first.popen.terminate()
    first.popen.wait(30)
