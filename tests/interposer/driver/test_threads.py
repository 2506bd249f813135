"""The CUDA interposer with many threads at the same time, also built with sanitizers.

memory/test_storm.py has threads of several processes that allocate, fork and are killed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support import GIB, MIB

from ..calls import CONTEXT, HEAVY
from ..sandboxes import RUNTIMES, Make, Sandbox, build, compile_c, runtime_of

STORMS = ("double", "retain")


def storm(one: Sandbox) -> str:
    """The program, in a folder that sandboxes can read."""
    source = Path(__file__).with_name("cuda_storm.c")
    return str(compile_c(source, one.pages.with_name("storm"), one.driver / "libcuda.so.1"))


@pytest.mark.parametrize("what", STORMS)
def test_the_account_is_exact_whatever_threads_do_at_once(sandbox: Make, what: str) -> None:
    one = sandbox(2 * CONTEXT, topology=HEAVY)
    done = one.run([storm(one), what, "8", "300"], env={"XPU_LOG": "off"})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"left {CONTEXT}\n", "")
    # All of its memory has come back at its end.
    assert one.run([storm(one), "retain", "1", "1"]).stdout == f"left {CONTEXT}\n"


def test_a_program_may_use_and_leave_cuda_when_it_ends(sandbox: Make) -> None:
    one = sandbox(CONTEXT + 64 * MIB, topology=HEAVY)
    done = one.run([storm(one), "atexit", "1", "1"])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"left {CONTEXT + 64 * MIB}\n", "")


@pytest.mark.parametrize("what", STORMS)
@pytest.mark.parametrize("kind", RUNTIMES)
def test_sanitizers_find_nothing(sandbox: Make, kind: str, what: str) -> None:
    one = sandbox(GIB, topology=HEAVY, libraries=build(kind))
    # Only the interposer's own races in the program are reported: the program and the driver are built
    # without the sanitizer.
    environ = [f"LD_PRELOAD={runtime_of(kind)}", "ASAN_OPTIONS=detect_leaks=0", "TSAN_OPTIONS=exitcode=66"]
    # unshare and sh run first, without the sanitizer
    done = one.run(["env", *environ, storm(one), what, "4", "60"])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"left {CONTEXT}\n", "")
