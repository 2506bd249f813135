"""A storm: thousands of random operations of all kinds, in threads of several processes of one sandbox. Some
of the processes are killed. The driver's report is compared with the account all the time, and at the end.

XPU_STORM_SECONDS=600 runs other seeds until that many seconds have passed. XPU_STORM_SEED=7 begins with that
seed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support import MIB

from ..sandboxes import Make, build
from .storm_sandbox import CONTEXT, TOPOLOGY, Storm

SEED = int(os.environ.get("XPU_STORM_SEED", "1"))
SECONDS = float(os.environ.get("XPU_STORM_SECONDS", "0"))


def storms(make: Callable[[int], Storm], run: Callable[[Storm], None]) -> None:
    """Runs one storm, or one after another with other seeds if the developer asks for that."""
    deadline = time.monotonic() + SECONDS
    seed = SEED
    while True:
        storm = make(seed)
        run(storm)
        print(
            f"seed {seed}: {storm.operations} operations, {storm.given} given, {storm.refused} refused, "
            f"{storm.processes} processes, {storm.killed} killed, "
            f"at most {storm.lasting >> 20} MiB (for moments {storm.most >> 20}) of {storm.limit >> 20}"
        )
        seed += 1
        if time.monotonic() >= deadline:
            return


def test_one_process_is_never_refused_memory_that_fits(sandbox: Make, tmp_path: Path) -> None:
    limit = CONTEXT + 300 * MIB
    one = sandbox(limit, topology=TOPOLOGY)
    storms(lambda seed: Storm(one, tmp_path, limit, seed), lambda storm: storm.run(1, 1, 2000, "alone"))


def test_threads_of_processes_that_are_killed_and_fork_leave_the_account_exact(
    sandbox: Make, tmp_path: Path
) -> None:
    limit = 6 * CONTEXT + 400 * MIB
    one = sandbox(limit, topology=TOPOLOGY)
    storms(
        lambda seed: Storm(one, tmp_path, limit, seed), lambda storm: storm.run(3, 3, 500, "fork", kills=4)
    )


@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sandbox: Make, tmp_path: Path, kind: str) -> None:
    limit = 4 * CONTEXT + 300 * MIB
    one = sandbox(limit, topology=TOPOLOGY, libraries=build(kind))
    environ = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "die_after_fork=0 halt_on_error=1"}
    storms(
        lambda seed: Storm(one, tmp_path, limit, seed, kind),
        lambda storm: storm.run(2, 3, 200, "fork", kills=1, **environ),
    )
