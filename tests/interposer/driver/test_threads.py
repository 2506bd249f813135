"""The CUDA interposer with many threads at the same time, also built with sanitizers.

memory/test_storm.py has threads of several processes that allocate, fork and are killed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support import GIB, MIB

from ..sandboxes import RUNTIMES, Sandbox, build, compile_c, runtime_of

Make = Callable[..., Sandbox]

CONTEXT = 300 * MIB
HEAVY = {"driver": "R580", "gpus": [{"model": "T4", "context_mib": 300}]}
STORMS = ("double", "retain")


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, in a folder that sandboxes can read."""
    out = tmp_path_factory.mktemp("storm") / "storm"
    return compile_c(Path(__file__).with_name("cuda_storm.c"), out, "-lpthread", "-ldl")


@pytest.mark.parametrize("what", STORMS)
def test_the_account_is_exact_whatever_threads_do_at_once(sandbox: Make, storm: Path, what: str) -> None:
    one = sandbox(2 * CONTEXT, topology=HEAVY)
    done = one.run([str(storm), what, "8", "300"], env={"XPU_LOG": "off"})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"left {CONTEXT}\n", "")
    # All of its memory has come back at its end.
    assert one.run([str(storm), "retain", "1", "1"]).stdout == f"left {CONTEXT}\n"


def test_a_program_may_use_and_leave_cuda_when_it_ends(sandbox: Make, storm: Path) -> None:
    one = sandbox(CONTEXT + 64 * MIB, topology=HEAVY)
    done = one.run([str(storm), "atexit", "1", "1"])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"left {CONTEXT + 64 * MIB}\n", "")


@pytest.mark.parametrize("what", STORMS)
@pytest.mark.parametrize("kind", RUNTIMES)
def test_sanitizers_find_nothing(sandbox: Make, storm: Path, kind: str, what: str) -> None:
    one = sandbox(GIB, topology=HEAVY, libraries=build(kind))
    # Only the interposer's own races in the program are reported: the program and the driver are built
    # without the sanitizer.
    environ = [f"LD_PRELOAD={runtime_of(kind)}", "ASAN_OPTIONS=detect_leaks=0", "TSAN_OPTIONS=exitcode=66"]
    # unshare and sh run first, without the sanitizer
    done = one.run(["env", *environ, str(storm), what, "4", "60"])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"left {CONTEXT}\n", "")
