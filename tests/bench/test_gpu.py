"""The scripts for machines with a real GPU: they say where there is none, and work on a simulated one.

What they find on a simulated card says nothing of hardware; what computes is for real cards alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sandbox
from support import REPOSITORY
from xpu_runtime.limits import pages
from xpu_simulator.simulator import SimState

SCRIPTS = REPOSITORY / "bench" / "gpu"
SKIPPED = 77
#: What scripts import.
MODULES = {"bundle.py", "card.py", "host.py", "places.py"}
CASES = [
    *(("torch_limit.py", case) for case in ("caching", "expandable", "graphs", "processes", "nccl")),
    *(("arrays.py", case) for case in ("cupy", "jax")),
    *((name,) for name in ("smi.py", "mem_info.py", "limit.py", "vector_add.py", "sanitizer.py")),
    *((name,) for name in ("overhead.py", "lookups.py")),
]


def run(name: str, *words: str, timeout: int = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPTS / name), *words], capture_output=True, text=True, timeout=timeout
    )


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_outside_a_slice_a_script_is_skipped_with_a_reason(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == SKIPPED, done.stdout + done.stderr
    assert done.stdout.startswith("skipped: ") and done.stdout.count("\n") == 1
    assert not done.stderr


def test_every_script_is_in_the_list() -> None:
    scripts = {path.name for path in SCRIPTS.glob("*.py")} - MODULES
    assert scripts == {words[0] for words in CASES}
    text = (SCRIPTS / "run").read_text()
    for words in CASES:
        assert str(list(words)).replace("'", '"') in text, words


def test_without_a_driver_all_is_skipped() -> None:
    # Also on a machine that has one.
    hide = ["unshare", "--mount", "sh", "-ec", 'mount -t tmpfs none /proc/driver; exec "$@"', "sh"]
    done = subprocess.run(
        [*hide, sys.executable, str(SCRIPTS / "run")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == SKIPPED
    assert done.stdout.startswith("skipped: no NVIDIA driver")


def test_all_that_does_not_compute_holds_on_a_simulated_card(
    up: Callable[..., SimState], tmp_path: Path
) -> None:
    state = up("1xT4-R580")
    record = tmp_path / "record.md"
    done = run("run", "--root", state.root, "--mem", "2G", "--record", str(record), timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in record.read_text().splitlines() if line.startswith("| ")][1:]
    outcomes = {fields[1].strip(): fields[2].strip() for fields in (line.split("|") for line in rows)}
    held = {name for name, outcome in outcomes.items() if outcome == "ok"}
    assert held == {
        "nvidia-smi inside",
        "cuMemGetInfo against the driver's report",
        "driver API to the limit and past it",
        "look-ups",
        "overhead",
    }
    assert "Tesla T4, 580.105.08" in record.read_text() and "simulated" in record.read_text()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("limit.py", "FAILED: cuMemAlloc past the limit: granted"),
        ("mem_info.py", "FAILED: the card is as large as the slice"),
        ("smi.py", "FAILED: the card is as large as the slice"),
    ],
)
def test_a_limit_that_does_not_hold_is_found(
    up: Callable[..., SimState], tmp_path: Path, script: str, said: str
) -> None:
    """With the real libraries where the interposers should be, programs get more than the slice."""
    state = up("1xT4-R580")
    (driver,) = Path(state.root).glob("usr/lib/*-linux-gnu")
    uuid = "GPU-" + "-".join("0" * length for length in (8, 4, 4, 4, 12))
    pages.create(str(tmp_path), "a-slice", (pages.Entry(uuid, 2 << 30),))
    words = [sys.executable, str(SCRIPTS / script)]
    command = sandbox.command(
        words, pages=str(tmp_path), real=str(driver), interposers=sandbox.build(), simulation=state.root
    )
    path = {"PATH": f"{state.root}/usr/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        command, env=sandbox.environ(path, interposed=False), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stdout
