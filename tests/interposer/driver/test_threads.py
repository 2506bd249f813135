"""The CUDA interposer with many threads and forks at the same time, also built with sanitizers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import GIB, MIB

from ..sandboxes import FORK_FENCE, RUNTIMES, Sandbox, build, compile_c, runtime_of

Make = Callable[..., Sandbox]

CONTEXT = 300 * MIB
HEAVY = {"driver": "R580", "gpus": [{"model": "T4", "context_mib": 300}]}
STORMS = ("mixed", "double", "retain", "forks")


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, in a folder that sandboxes can read."""
    out = tmp_path_factory.mktemp("storm") / "storm"
    return compile_c(Path(__file__).with_name("cuda_storm.c"), out, "-lpthread", "-ldl")


@pytest.mark.parametrize("what", STORMS)
def test_the_account_is_exact_whatever_threads_do_at_once(sandbox: Make, storm: Path, what: str) -> None:
    # 80 MiB are less than the threads keep when they can.
    one = sandbox(2 * CONTEXT + 80 * MIB, topology=HEAVY)
    done = one.run([str(storm), what, "8", "300"], env={"XPU_LOG": "off"})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"left {CONTEXT}\n", "")
    # All of its memory has come back at its end.
    assert one.run([str(storm), "retain", "1", "1"]).stdout == f"left {CONTEXT}\n"


def test_several_processes_at_once_never_pass_the_limit_and_leave_nothing(sandbox: Make, storm: Path) -> None:
    limit = 4 * CONTEXT + 60 * MIB
    one = sandbox(limit, topology=HEAVY)
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    command, quiet = [str(storm), "mixed", "4", "200", "wait"], {"XPU_LOG": "off"}
    users = [one.start(command, env=quiet, **pipes) for _ in range(4)]
    assert [user.stdout.readline() for user in users] == ["ready\n"] * 4
    for user in users:
        user.stdin.write("\n")
        user.stdin.flush()
    while any(user.poll() is None for user in users):
        assert one.total() <= limit
    assert [user.communicate()[1] for user in users] == [""] * 4
    assert [user.returncode for user in users] == [0] * 4
    assert one.run([str(storm), "retain", "1", "1"]).stdout == f"left {CONTEXT}\n"


def test_a_program_may_use_and_leave_cuda_when_it_ends(sandbox: Make, storm: Path) -> None:
    one = sandbox(CONTEXT + 64 * MIB, topology=HEAVY)
    done = one.run([str(storm), "atexit", "1", "1"])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"left {CONTEXT + 64 * MIB}\n", "")


SANITIZED = [(kind, what) for kind in RUNTIMES for what in STORMS]


def fenced(kind: str, folder: Path) -> Path:
    """The program with a fence for gcc 12's sanitizers at a fork: see fork_fence.c."""
    source = Path(__file__).with_name("cuda_storm.c")
    return compile_c(source, folder / "storm", str(FORK_FENCE), "-lpthread", "-ldl", f"-l{RUNTIMES[kind]}")


@pytest.mark.parametrize(("kind", "what"), SANITIZED)
def test_sanitizers_find_nothing(sandbox: Make, storm: Path, tmp_path: Path, kind: str, what: str) -> None:
    one = sandbox(GIB, topology=HEAVY, libraries=build(kind))
    program = fenced(kind, tmp_path) if what == "forks" else storm
    # Only the interposer's own races in the program are reported: the program and the driver are built
    # without the sanitizer.
    environ = {
        "LD_PRELOAD": runtime_of(kind),
        "ASAN_OPTIONS": "detect_leaks=0",
        # A child starts the driver's threads after a fork, beside those of its parent.
        "TSAN_OPTIONS": "exitcode=66 die_after_fork=0",
    }
    # unshare and sh run first, without the sanitizer
    done = one.run(
        ["env", *(f"{name}={value}" for name, value in environ.items()), str(program), what, "4", "60"]
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"left {CONTEXT}\n", "")
