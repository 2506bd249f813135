"""Steps of a run on a lent machine (bench/gpu/lent/steps.py): their files and their output."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import results as kept

from .stepped import Run, python, shell

#: The limits: printed characters, files, and bytes of each file.
MOST_PRINTED, MOST_FILES, MOST_BYTES = 12_000, 8, 16 << 20


def test_a_steps_lines_are_results_and_its_output_is_in_the_log(run: Callable[..., Run]) -> None:
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


def test_the_next_step_runs_after_any_outcome(run: Callable[..., Run]) -> None:
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


def test_a_run_in_which_every_measuring_step_was_skipped_says_so(run: Callable[..., Run]) -> None:
    no_tool = "echo 'skipped: no torch'; exit 77"
    done = run(shell("facts", "true"), shell("doctor", "true", measures=False), shell("a", no_tool))
    assert done.popen.returncode == 77
    assert done.text().splitlines()[-1].endswith("not tried: a")
    assert run(shell("b", no_tool), shell("c", "true")).popen.returncode == 0


def test_a_step_that_floods_the_log_keeps_its_first_and_last_lines(run: Callable[..., Run]) -> None:
    junk = (
        "import os\nprint('begin: here', flush=True)\n"
        "for _ in range(100): os.write(1, os.urandom(1 << 16))\nprint('\\nlast words')"
    )
    done = run(*(python(f"junk {number}", junk) for number in range(4)), shell("next", "echo 'after: all'"))
    assert done.outcomes()["next"] == "ok" and done.results(name="after")
    log = done.log()
    assert log.count(b"\nbegin: here\n") == log.count(b"\nlast words\n") == 4
    assert b"bytes left out" in log and b"\nafter: all\n" in log
    assert (done.out / "log.gz").stat().st_size < MOST_BYTES
    assert len(done.printed.read_bytes()) < MOST_PRINTED


def test_the_output_and_files_of_failing_steps_are_bounded(run: Callable[..., Run]) -> None:
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


def test_on_a_full_disk_all_steps_run_and_are_reported(tmp_path: Path) -> None:
    steps = [shell("first", "seq 100000; echo 'ok: it holds'"), shell("second", "echo 'size: 4'")]
    program = Run.program(tmp_path / "out", steps)
    full = f'mount -t tmpfs -o size=8k full {tmp_path} && exec {sys.executable} -c "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", full, "sh", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr
    assert "ok       first" in done.stdout and "second: size: 4" in done.stdout and "1 held" in done.stdout


def test_folders_in_the_way_and_a_folder_that_vanishes_cost_only_their_own_files(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    for name in ("log.gz", "results.jsonl", "summary.new"):
        (tmp_path / "out" / name / "in the way").mkdir(parents=True)
    done = run(shell("one", "echo 'ok: it holds'"))
    assert done.outcomes() == {"one": "ok"} and b"it holds" in done.log()
    gone = run(shell("removes", f"rm -r {tmp_path}/out; echo 'ok: gone'"), shell("next", "echo 'size: 4'"))
    assert gone.popen.returncode == 0 and "next: size: 4" in gone.text()


def test_results_of_an_earlier_run_are_moved_aside_and_a_living_runs_are_left(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    run(shell("earlier", "true"))
    first = Run(tmp_path / "out", [shell("waits", "echo 'here: 1'; sleep 600")])
    first.wait_for("here")
    assert '"earlier"' in (tmp_path / "out.before/results.jsonl").read_text()
    second = Run(tmp_path / "out", [shell("second", "true")])
    assert second.popen.wait(30) != 0
    assert first.results(name="here") != [] and first.popen.poll() is None
    first.popen.terminate()
    first.popen.wait(30)


def test_a_long_failure_is_printed_with_its_end_which_has_the_remedy(run: Callable[..., Run]) -> None:
    long = f"no kit in {'/a/folder' * 30}: run make lease again"
    done = run(
        shell("one", f"echo 'FAILED: {long}'"),
        shell("doctor", f"echo 'problem  kit: {long}'; exit 1", measures=False),
    )
    assert f"FAILED one: {long}" in done.text() and f"FAILED doctor: problem  kit: {long}" in done.text()
    assert "our fault would be: a fault" in done.text()
    assert "our fault would be: a fault" in (done.out / "summary.md").read_text()


def test_our_own_fault_is_named_only_if_something_was_measured(run: Callable[..., Run]) -> None:
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
    ours = {name for name, row in rows.items() if "our fault would be: a fault" in row}
    assert (nothing, ours) == ({"no place", "crash", "no program"}, {"figures", "check", "doctor"})
    assert "FAILED no place: not measured: no container: 16G requested" in done.text()


def test_values_are_printed_step_by_step_with_the_number_of_checks_and_other_lines_are_not(
    run: Callable[..., Run],
) -> None:
    lines = (
        "1 GiB by cuMemAlloc, MiB: 1024\\nxpu: refused\\nValueError: no\\nwritten: /a\\nratio: 0.61043068300"
    )
    done = run(
        shell("one", f"printf '{lines}\\n'"),
        shell("two", "echo 'a: 1'; echo 'skipped: no JAX'; echo 'skipped: no JAX'; echo 'ok: b'"),
        shell("facts", "echo 'card: T4'; echo 'tools: many'"),
        shell("share", "echo 'at 30: 29.8'"),
        shell("none", "echo 'skipped: no JAX'; exit 77"),
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
    assert "ok       share        0 s, measured only" in done.text()
    assert "skipped  none         0 s, 1 skipped (no JAX)" in done.text()


def test_no_more_is_printed_than_the_visible_limit(capsys: pytest.CaptureFixture[str]) -> None:
    screen = kept.Screen(steps=10, most=700)
    for number in range(100):
        screen.say(f"line {number}")
    assert 600 < len(capsys.readouterr().out) <= 700
