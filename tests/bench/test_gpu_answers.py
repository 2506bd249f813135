"""The programs of bench/gpu that compare a slice with the host: answers.py and used_memory.py.

They run on the simulated card, by the installed runtime; there only copies compute anything. Their messages
about faults are tried on made-up results.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import answers
import pytest
import used_memory

from support import MIB
from support.sharing_time import until
from support.simulation import Up
from xpu_simulator.simulator import SimState

from .scripts import SCRIPTS, failures


def run(name: str, state: SimState, installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    options = ["--root", state.root, "--prefix", str(installed), "--python", sys.executable]
    command = [sys.executable, str(SCRIPTS / name), *options, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize(
    ("with_it", "after", "said"),
    [
        ((1000, 900), (0, 0), "FAILED: a: the account misses at most 64 MiB of the card's loss"),
        ((1000, 1300), (0, 0), "FAILED: a: the account has at most 256 MiB more than the card's loss"),
        ((1000, 1000), (40, 0), "FAILED: a: afterwards 40 MiB stay on the card, 0 MiB in the account"),
        ((1000, 1000), (0, 40), "FAILED: a: afterwards 0 MiB stay on the card, 40 MiB in the account"),
    ],
)
def test_memory_that_is_not_counted_or_stays_is_a_failure(
    capsys: pytest.CaptureFixture[str], with_it: tuple[int, int], after: tuple[int, int], said: str
) -> None:
    before, *others = (
        used_memory.Seen((5 + card) * MIB, (3 + account) * MIB) for card, account in ((0, 0), with_it, after)
    )
    used_memory.judge("a", before, *others)
    assert failures(capsys.readouterr().out) == [said]


def test_a_slices_results_are_compared_with_the_hosts(up: Up, installed: Path) -> None:
    words = ["--place", "sandbox", "--mem", "4G", "--only", "copies", "--only", "sort"]
    done = run("answers.py", up("1xT4-R580"), installed, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok: copies, bytes: exact, the same bits\n" in done.stdout
    assert "skipped: sort: no PyTorch in " in done.stdout


def test_on_a_small_card_the_slice_has_half_of_it_and_fewer_cases_run_side_by_side(
    up: Up, installed: Path
) -> None:
    done = run("answers.py", up("1xT4-R580"), installed, "--only", "copies")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "slice: 7680 MiB, not 16G: half of this card; 2 cases side by side" in done.stdout
    assert "ok: copies, bytes: exact, the same bits\n" in done.stdout


def ran(folder: Path, value: bytes, **more: object) -> answers.Ran:
    """The files of a case of two floats, as answers_inside.py leaves them."""
    folder.mkdir()
    (folder / "case.a").write_bytes(value)
    entry = {"name": "a", "kind": "float32", "shape": [len(value) // 4], "repeats": True, "holds": True}
    entry |= {"error": 1e-7, "worst": 1e-6, "bound": 1e-5, "exact": False}
    entry |= {"sha256": hashlib.sha256(value).hexdigest(), **more}
    return answers.Ran(0, "", folder, {"a": entry}, [])


ONE, TWO = bytes.fromhex("0000803f"), bytes.fromhex("00000040")  # 1.0 and 2.0


@pytest.mark.parametrize(
    ("value", "more", "said"),
    [
        (ONE + TWO, {}, "ok: case, a: 1.0e-07 off (at most 1e-05), the same bits"),
        (
            ONE + ONE,
            {},
            "FAILED: case, a: 1.0e-07 off (at most 1e-05), repeats itself in each place, and "
            "1 of 2 elements differ, the first at 1, by at most 1",
        ),
        (
            ONE + ONE,
            {"repeats": False},
            "ok: case, a: 1.0e-07 off (at most 1e-05), bits that do not repeat",
        ),
        (
            ONE + ONE,
            {"holds": False, "error": float("inf"), "worst": float("inf")},
            "FAILED: case, a: wrong in the slice alone: inf off, worst inf, bound 1e-05; "
            "1 of 2 elements differ, the first at 1, by at most 1",
        ),
        (
            ONE,
            {"holds": False},
            "FAILED: case, a: wrong in the slice alone: 1.0e-07 off, worst 1.0e-06, bound 1e-05; "
            "it is of another shape or of float32",
        ),
    ],
    ids=["the same", "other bits", "other bits each time", "NaN", "another shape"],
)
def test_a_result_that_differs_from_the_hosts_is_a_failure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, value: bytes, more: dict[str, object], said: str
) -> None:
    native = ran(tmp_path / "native", ONE + TWO)
    answers.compare(answers.Case("case"), native, ran(tmp_path / "slice", value, **more), simulated=False)
    assert capsys.readouterr().out.splitlines() == [said]


def test_other_bits_are_no_fault_where_kernels_are_chosen_by_timing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    case = answers.Case("case", by_timing=True)
    native, inside = (ran(tmp_path / name, value) for name, value in (("a", ONE + TWO), ("b", ONE + ONE)))
    answers.compare(case, native, inside, simulated=False)
    assert capsys.readouterr().out.startswith("ok: case, a: 1.0e-07 off (at most 1e-05), other bits")


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """An interpreter whose programs never end. Each adds a line to `begun` beside it."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho begun >> {tmp_path}/begun; echo begun; exec sleep 1000\n")
    python.chmod(0o755)
    return python


def test_a_case_without_end_on_the_host_is_left_out_in_the_slice(
    up: Up, installed: Path, hanging: Path
) -> None:
    words = ["--place", "sandbox", "--only", "copies", "--python", str(hanging), "--timeout", "1"]
    done = run("answers.py", up("1xT4-R580"), installed, *words)
    assert done.returncode == 1 and done.stdout.count("FAILED: ") == 1, done.stdout + done.stderr
    assert "copies: not run in the slice, it does not end natively: no end within 1 s" in done.stdout
    assert (hanging.parent / "begun").read_text() == "begun\n"


def test_cases_not_yet_compared_at_a_termination_are_named(up: Up, installed: Path, hanging: Path) -> None:
    words = ["--root", up("1xT4-R580").root, "--prefix", str(installed), "--python", str(hanging)]
    command = [sys.executable, str(SCRIPTS / "answers.py"), *words, "--place", "sandbox", "--jobs", "1"]
    command += ["--only", "copies", "--only", "sort"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        until((hanging.parent / "begun").exists, "the first case runs", 60)
        started.terminate()
        text, _ = started.communicate(timeout=60)
    assert started.returncode == 143
    assert [line.split(":")[1] for line in text.splitlines() if line.startswith("not run: ")] == [
        " copies",
        " sort",
    ]


@pytest.mark.parametrize(
    ("native", "inside", "said"),
    [
        ((0, ""), (1, "CUDA error: x"), "FAILED: case: ends with 1 in the slice alone: CUDA error: x"),
        (
            (0, ""),
            (77, "skipped: no PyTorch"),
            "FAILED: case: ends with 77 in the slice alone: skipped: no PyTorch",
        ),
        ((1, "oh"), (0, ""), "FAILED: case: no comparison, it ends natively with 1: oh"),
        ((77, "skipped: none"), (77, "skipped: none"), "skipped: case: none"),
    ],
)
def test_a_case_that_ends_in_another_way_in_the_slice_is_a_failure(
    capsys: pytest.CaptureFixture[str], native: tuple[int, str], inside: tuple[int, str], said: str
) -> None:
    both = [answers.Ran(status, output, Path(os.devnull), {}, []) for status, output in (native, inside)]
    answers.compare(answers.Case("case"), *both, simulated=False)
    assert capsys.readouterr().out.splitlines() == [said]
