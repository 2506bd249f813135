"""The CUDA interposer twice in one process (dlmopen): one instance's memory is not charged to the other."""

from __future__ import annotations

from pathlib import Path

from support import GIB, MIB

from ..calls import CONTEXT, HEAVY, OUT, OUT_OF_MEMORY, SUCCESS, Program, Start


def start_other(user: Program) -> None:
    """The other instance has a context of device 0, too."""
    user.do("other:cuInit", 0)
    user.do("other:cuCtxSetCurrent", user.get("other:cuDevicePrimaryCtxRetain", OUT, 0))


def look(user: Program) -> None:
    """Each asks the driver what the process has."""
    for place in ("symbol", "other"):
        user.do(f"{place}:cuMemGetInfo_v2", OUT, OUT)


def test_two_instances_are_charged_for_their_own_memory_alone(caller: Start) -> None:
    user = caller(4 * GIB, topology=HEAVY)
    pointer = user.alloc(100 * MIB)[1]
    start_other(user)
    user.do("other:cuMemAlloc_v2", OUT, 200 * MIB)
    for _ in range(2):
        look(user)
    assert user.sandbox.total() == 2 * CONTEXT + 300 * MIB
    assert user.free(pointer) == SUCCESS
    look(user)
    assert user.sandbox.total() == 2 * CONTEXT + 200 * MIB


def test_an_instance_is_refused_memory_that_the_other_has_taken(caller: Start) -> None:
    user = caller(GIB, topology=HEAVY)
    start_other(user)
    assert user.alloc(300 * MIB)[0] == SUCCESS
    assert user.code("other:cuMemAlloc_v2", OUT, 200 * MIB) == OUT_OF_MEMORY
    assert user.code("other:cuMemAlloc_v2", OUT, 100 * MIB) == SUCCESS
    assert user.sandbox.total() == 2 * CONTEXT + 400 * MIB


def test_an_instance_trusts_the_driver_where_the_other_has_a_context(caller: Start, tmp_path: Path) -> None:
    """The driver lists this process before the instance has a context. The pid is not another process's."""
    log = tmp_path / "log"
    cards = {"driver": "R580", "gpus": [{**HEAVY["gpus"][0], "count": 2}]}
    user = caller(4 * GIB, topology=cards, XPU_LOG=f"debug:{log}")
    # The context on device 1 makes the second instance ask the driver about device 0 too.
    user.do("other:cuInit", 0)
    user.do("other:cuDevicePrimaryCtxRetain", OUT, 1)
    start_other(user)
    assert user.sandbox.total() == 2 * CONTEXT
    assert log.read_text().count("a context took 300 MiB") == 3, log.read_text()
    assert "reported usage: not used" not in log.read_text()
