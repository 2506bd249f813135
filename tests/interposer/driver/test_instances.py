"""The CUDA interposer twice in one process (dlmopen): one instance's memory is not charged to the other."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import GIB, MIB

from ..sandboxes import Sandbox, compile_c

Make = Callable[..., Sandbox]

#: A card whose contexts take 300 MiB.
HEAVY: dict[str, Any] = {"driver": "R580", "gpus": [{"model": "T4", "context_mib": 300}]}
CONTEXT = 300 * MIB


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("instances.c")
    return compile_c(source, tmp_path_factory.mktemp("instances") / "instances", "-ldl")


@pytest.fixture
def step(binary: Path, tmp_path: Path) -> Iterator[Callable[[Sandbox, str], int]]:
    """`step(sandbox, "0 alloc 5")` is the CUresult of a step of one program in the sandbox. Its log is
    `tmp_path / "log"`."""
    started: list[Any] = []

    def take(sandbox: Sandbox, what: str) -> int:
        if not started:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            started.append(sandbox.start([str(binary)], env={"XPU_LOG": f"debug:{tmp_path}/log"}, **pipes))
        started[0].stdin.write(f"{what}\n")
        started[0].stdin.flush()
        return int(started[0].stdout.readline())

    yield take
    for each in started:
        each.kill()
        each.communicate()


def test_two_instances_are_charged_for_their_own_memory_alone(
    sandbox: Make, step: Callable[[Sandbox, str], int]
) -> None:
    one = sandbox(4 * GIB, topology=HEAVY)
    for what in ("0 start", "0 alloc 100", "1 start", "1 alloc 200"):
        assert step(one, what) == 0
    for _ in range(2):  # each asks the driver what the process has
        assert step(one, "0 info") == 0
        assert step(one, "1 info") == 0
    assert one.total() == 2 * CONTEXT + 300 * MIB
    assert step(one, "0 free") == step(one, "0 info") == step(one, "1 info") == 0
    assert one.total() == 2 * CONTEXT + 200 * MIB


def test_an_instance_is_refused_memory_that_the_other_has_taken(
    sandbox: Make, step: Callable[[Sandbox, str], int]
) -> None:
    one = sandbox(GIB, topology=HEAVY)
    out_of_memory = 2
    for what in ("0 start", "1 start", "0 alloc 300"):
        assert step(one, what) == 0
    assert step(one, "1 alloc 200") == out_of_memory
    assert step(one, "1 alloc 100") == 0
    assert one.total() == 2 * CONTEXT + 400 * MIB


def test_an_instance_trusts_the_driver_where_the_other_has_a_context(
    sandbox: Make, step: Callable[[Sandbox, str], int], tmp_path: Path
) -> None:
    """The driver lists this process before the instance has a context. The pid is not another process's."""
    one = sandbox(
        4 * GIB, topology={"driver": "R580", "gpus": [{"model": "T4", "count": 2, "context_mib": 300}]}
    )
    # The context on device 1 makes the second instance ask the driver about device 0 too.
    for what in ("0 start", "1 start 1", "1 start 0"):
        assert step(one, what) == 0
    assert one.total() == 2 * CONTEXT
    log = (tmp_path / "log").read_text()
    assert log.count("a context took 300 MiB") == 3, log
    assert "reported usage: not used" not in log
