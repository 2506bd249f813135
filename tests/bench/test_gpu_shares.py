"""The scripts that measure launches, caps, the driver's reports, MPS, and the kernel driver's boundary.

test_gpu_caps.py has the judgement of caps.

They run on a simulated card, and find faults. Times and shares are not asserted.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import card
import launches
import mps
import pytest
import reported

from support import MIB
from support.sharing_time import until
from support.simulation import Up

from .scripts import RECORD, SCRIPTS, failures

Small = Callable[..., tuple[int, str, list[dict[str, Any]]]]


@pytest.fixture
def small(up: Up, installed: Path, tmp_path: Path) -> Small:
    """Runs a script in short on a simulated card. Returns its status, its output, and its lines of JSON."""
    root = up("1xT4-R580").root

    def run(name: str, *words: str, how: str = "--small") -> tuple[int, str, list[dict[str, Any]]]:
        results = tmp_path / "results"
        command = [sys.executable, str(SCRIPTS / name), how, "--json", str(results), "--root", root]
        command += ["--prefix", str(installed), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert not done.stderr, done.stdout + done.stderr
        return done.returncode, done.stdout, [json.loads(line) for line in results.read_text().splitlines()]

    return run


@pytest.mark.parametrize("status", [0, 1, 77])
def test_only_a_programs_figures_are_taken_from_its_output(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, status: int
) -> None:
    """A program that finds no GPU on a host with one has failed, too."""
    printed = (
        "launch 2012.5\nlibcuda: a warning of 12.5\nleft behind and killed: 7 (sleep)\ngraph launch 3.0\n"
    )
    done = SimpleNamespace(returncode=status, stdout=printed)
    place: Any = SimpleNamespace(kind="native", shared=tmp_path, run=lambda words, timeout: done)
    (tmp_path / "program").touch()
    (tmp_path / "in").mkdir()
    place.shared = tmp_path / "in"
    options: Any = SimpleNamespace(launches=10)
    found = launches.run(RECORD, place, str(tmp_path / "program"), options)
    said = "libcuda: a warning of 12.5 / left behind and killed: 7 (sleep)"
    text = capsys.readouterr().out
    assert found == ({} if status else {"launch": 2012.5, "graph launch": 3.0})
    assert text.startswith("FAILED: ") == bool(status) and text.endswith(f": {said}\n")


def test_on_a_card_too_small_for_frameworks_caps_are_measured_with_other_loads(small: Small) -> None:
    words = ("--caps", "30", "--turns", "1", "--seconds", "1")
    status, text, results = small("caps.py", *words, how="--no-pairs")
    assert status in (0, 1), text
    assert "slice: 1 GiB, with spin and short: matmul,decode,eager,train would need 42 GiB" in text
    assert {"spin at 30", "short at 30"} <= {each["name"] for each in results}, text


def test_pairs_are_measured_on_the_host_too(small: Small) -> None:
    status, text, results = small("caps.py", "--only-pairs", "--caps", "")
    assert status in (0, 1), text
    found = {each["name"]: each for each in results}
    (two,) = [each for name, each in found.items() if name == "spin beside spin on the host"]
    assert sum(two["got"]) > 50 and "without a cap" not in text
    for low, high, got, _, _ in found["spin at 30 beside spin at 70"]["outcomes"]:
        assert 0 < low <= high and got > 0
    assert len(found["four of spin at 25"]["outcomes"]) == 4


def test_the_drivers_reports_are_measured(small: Small) -> None:
    status, text, _ = small("reported.py")
    assert status == 0, text
    assert re.search(r"pids, pid namespace: \d+ inside, \d+ on the host", text)
    assert "the driver's figure after alloc: " in text and "utilisation while busy: " in text
    assert "ok: the account moves with each of 10 calls by the same amount" in text


@pytest.mark.parametrize(
    ("program", "script", "told"),
    [
        (
            "control",
            'echo the output; echo the log > "$CUDA_MPS_LOG_DIRECTORY/control.log"; exit 1',
            "fails (1); start.log: the output; control.log: the log",
        ),
        ("server", "exit 1", "the MPS server ends at once; control.log: "),
    ],
)
def test_the_output_of_failing_mps_programs_is_reported(
    small: Small, run_dir: Path, program: str, script: str, told: str
) -> None:
    (path,) = run_dir.rglob(f"usr/bin/nvidia-cuda-mps-{program}")
    path.unlink()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    status, text, _ = small("mps.py")
    assert status == 1
    assert [line for line in failures(text) if told in line], text
    assert "ok: host afterwards: kernels run" in text


def test_the_logs_of_mps_are_in_the_steps_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run/devices/mps/GPU-1/log"
    folder.mkdir(parents=True)
    (folder / "control.log").write_text("first: line\n" + "more\n" * mps.LINES)
    (folder / "server.log").write_text("its own")
    mps.logs(RECORD, tmp_path)
    told = capsys.readouterr().out.splitlines()
    assert told[-2:] == [f"MPS control.log {mps.LINES + 1}: more", "MPS server.log 1: its own"]
    assert len(told) == mps.LINES + 1


@pytest.mark.parametrize(("rate", "held"), [("30.5", True), ("20", True), ("60", False)])
def test_a_container_with_more_than_its_part_under_mps_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rate: str, held: bool
) -> None:
    monkeypatch.setattr(card, "_failed", [])
    mps.judge(RECORD, 30, {mps.RATE: rate}, {mps.RATE: "100"}, simulated=False)
    assert bool(failures(capsys.readouterr().out)) != held


def test_at_a_termination_mps_quits_before_anything_is_killed(up: Up, installed: Path) -> None:
    words = ["--root", up("1xT4-R580").root, "--prefix", str(installed), "--seconds", "100"]
    command = [sys.executable, str(SCRIPTS / "mps.py"), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        # A daemon with two clients means that both containers have started.
        until(lambda: len(_clients()) == 2, "both work", 60)
        started.terminate()
        text, _ = started.communicate(timeout=90)
    assert started.returncode == 143
    assert "told to quit: status 0" in text and "ok: the MPS daemon ends when it is told to quit" in text


def _clients() -> list[str]:
    """The computing programs of mps.py's containers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[2:4] == [b"client", b"100.0"]:
                found.append(path.parent.name)
    return found


# ---- faults are found ----


def report(*, account: int, shown: str = "7=0") -> reported.Report:
    lines = ["pid 7 4294967296", "lists real 7=0", f"lists ours {shown}"]
    for i in range(2 * reported.STEPS):
        change = reported.STEP if i < reported.STEPS else -reported.STEP
        name = "alloc" if i < reported.STEPS else "free"
        lines.append(f"step {name} {i}.0 {i}.001 {change} 0 {account if change > 0 else change}")
    return reported.Report(RECORD, lines, 4711)


def watched(lag: float, most: int) -> Any:
    """A driver whose figure for the process grows to `most`, `lag` seconds after the first call."""
    seen = [(at / 100, 0 if at / 100 < 0.001 + lag else most) for at in range(-50, 100)]
    return SimpleNamespace(of=lambda pid: seen if pid == 4711 else [], errors={})


def test_an_account_that_does_not_move_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    report(account=reported.STEP).memory(watched(0.1, reported.STEP), [])
    assert not failures(capsys.readouterr().out)
    report(account=0).memory(watched(0.1, reported.STEP), [])
    assert failures(capsys.readouterr().out) == [
        "FAILED: the account moves with each of 10 calls by the same amount"
    ]


def test_a_driver_that_reports_more_than_the_slice_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    report(account=reported.STEP).memory(watched(0.1, 5 << 30), [])
    assert failures(capsys.readouterr().out) == [
        "FAILED: the driver reports 5120 MiB at most, of a slice of 4096"
    ]


def test_a_process_of_another_container_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    report(account=0, shown="7=0 8=0").pids([4711], "pid namespace")
    assert failures(capsys.readouterr().out)


def test_a_lag_is_counted_from_the_calls_return() -> None:
    step = reported.Step("alloc", 10.0, 10.1, reported.STEP, 0, reported.STEP)
    seen = [(9.9, 100 * MIB), (10.05, 100 * MIB), (10.25, 612 * MIB)]
    assert reported.lags([step], seen) == [pytest.approx(0.15)]
    assert reported.lags([step], [(9.9, 0), (10.05, reported.STEP)]) == [0]
    assert reported.lags([step], [(9.9, 0), (10.2, 0)]) == [None]
