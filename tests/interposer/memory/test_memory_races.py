"""The CUDA interposer: threads and processes that take and free memory at the limit, in every way at once."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import GIB, MIB

from ..calls import kinds
from ..sandboxes import Sandbox, build, compile_c

Make = Callable[..., Sandbox]


def start(sandbox: Sandbox, folder: Path, *options: str, words: tuple[str, ...] = (), **environ: str) -> Any:
    """Starts memory_races with four threads in a sandbox."""
    source = Path(__file__).with_name("memory_races.c")
    out = folder / "races"
    if not out.exists():
        (library,) = Path(sandbox.driver_root).glob("usr/lib/*-linux-gnu/libcuda.so.1")
        compile_c(source, out, str(library), "-pthread", *options)
    return sandbox.start(
        [str(out), "4", "40", *words],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(one: Any) -> tuple[int, int]:
    """How many calls succeeded and how many were refused. The process waits for `end`."""
    line = one.stdout.readline()
    assert line, one.stderr.read()
    given, refused = line.split()
    return int(given), int(refused)


@pytest.mark.parametrize("kind", ["", "thread", "address,undefined"])
def test_threads_at_the_limit_leave_the_account_exact(sandbox: Make, tmp_path: Path, kind: str) -> None:
    one = sandbox(256 * MIB, libraries=build(kind))
    options = [f"-fsanitize={kind}"] if kind else []
    racing = start(one, tmp_path, *options, TSAN_OPTIONS="halt_on_error=1", ASAN_OPTIONS="detect_leaks=0")
    given, refused = finished(racing)
    assert given
    assert refused
    assert not set(kinds(one)) - {"overhead"}
    output = racing.communicate("\n", timeout=60)
    assert racing.returncode == 0, output


def test_processes_at_the_limit_leave_the_account_exact(sandbox: Make, tmp_path: Path) -> None:
    # Contexts have a size, as on any card. Otherwise the driver reports none, and each is guessed by the
    # card's free memory, which the other processes change. All contexts are made first: a later one may not
    # fit.
    topology = {"driver": "R580", "gpus": [{"model": "T4", "context_mib": 64}]}
    one = sandbox(512 * MIB + 3 * 64 * MIB, topology=topology)
    racing = [start(one, tmp_path, words=("wait",)) for _ in range(3)]
    assert [each.stdout.readline() for each in racing] == ["ready\n"] * 3
    for each in racing:
        each.stdin.write("\n")
        each.stdin.flush()
    counts = [finished(each) for each in racing]
    assert all(given for given, _ in counts)
    assert not set(kinds(one)) - {"overhead"}
    for each in racing:
        each.communicate("\n", timeout=60)
        assert each.returncode == 0


def test_a_process_killed_at_work_leaves_nothing(sandbox: Make, tmp_path: Path) -> None:
    one = sandbox(1 * GIB)
    for _ in range(5):
        racing = start(one, tmp_path)
        while one.total() < 64 * MIB:
            assert racing.poll() is None
        racing.kill()
        racing.communicate()
    last = start(one, tmp_path)
    finished(last)
    assert one.total() == sum(kinds(one).values())
    assert not set(kinds(one)) - {"overhead"}
    last.communicate("\n", timeout=60)
