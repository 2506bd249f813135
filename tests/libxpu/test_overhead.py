"""The CUDA wrapper: what the driver has beyond what was asked for, where its figure leaves it open, or where
small allocations and pieces of pools add up."""

from __future__ import annotations

from collections.abc import Callable

from .calls import (
    OUT,
    OUT_OF_MEMORY,
    RELEASE_THRESHOLD,
    SUCCESS,
    Start,
    kinds,
    program,  # noqa: F401  (fixture)
    u64,
)
from .conftest import GIB, MIB, Cell
from .storm_cell import CONTEXT, TOPOLOGY, Card

Make = Callable[..., Cell]

MALLOC_HEAP_SIZE = 2  # CUlimit
GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL


def test_what_a_context_took_comes_back_while_there_is_managed_memory(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(1 * GIB, topology=TOPOLOGY)
    user = program(one)
    user.get("cuMemAllocManaged", OUT, 256 * MIB, GLOBAL)
    for _ in range(3):
        user.do("cuCtxDestroy_v2", user.get("cuCtxCreate_v2", OUT, 0, 0))
        assert kinds(one) == {"overhead": CONTEXT, "managed": 256 * MIB}


def test_a_smaller_heap_comes_back_while_there_is_managed_memory(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(1 * GIB, topology=TOPOLOGY)
    user = program(one)
    user.get("cuMemAllocManaged", OUT, 256 * MIB, GLOBAL)
    for _ in range(3):
        user.do("cuCtxSetLimit", MALLOC_HEAP_SIZE, 72 * MIB)
        assert kinds(one)["overhead"] == CONTEXT + 64 * MIB
        user.do("cuCtxSetLimit", MALLOC_HEAP_SIZE, 8 * MIB)
        assert kinds(one)["overhead"] == CONTEXT


def test_small_allocations_that_share_no_step_do_not_pass_the_limit(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(CONTEXT + 200 * MIB, topology=TOPOLOGY)
    user = program(one)
    while user.code("cuMemAlloc_v2", OUT, MIB + 512) == SUCCESS:
        pass
    assert Card(one).used() <= CONTEXT + 216 * MIB


def test_what_small_ones_leave_in_half_empty_steps_is_not_given_to_others(cell: Make, program: Start) -> None:  # noqa: F811
    limit = 2 * CONTEXT + 100 * MIB
    one = cell(limit, topology=TOPOLOGY)
    user, other = program(one), program(one)
    pointers = [user.get("cuMemAlloc_v2", OUT, MIB - 512) for _ in range(80)]
    for pointer in pointers[::2]:
        user.do("cuMemFree_v2", pointer)
    assert Card(one).used() == 2 * CONTEXT + 80 * MIB
    assert other.code("cuMemAlloc_v2", OUT, 30 * MIB) == OUT_OF_MEMORY
    assert other.code("cuMemAlloc_v2", OUT, 10 * MIB) == SUCCESS
    assert Card(one).used() <= limit


def test_room_that_a_pool_has_in_pieces_is_no_reason_to_refuse(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(CONTEXT + 160 * MIB, topology=TOPOLOGY)
    user = program(one)
    pool = user.get("cuDeviceGetDefaultMemPool", OUT, 0)
    user.do("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, u64((1 << 64) - 1))
    pointers = [user.get("cuMemAllocAsync", OUT, 32 * MIB, None) for _ in range(4)]
    for pointer in pointers:
        user.do("cuMemFreeAsync", pointer, None)
    # 128 MiB that nobody uses, in four pieces: of those that are in one piece, there are 32.
    user.get("cuMemAllocAsync", OUT, 96 * MIB, None)
    assert Card(one).used() <= CONTEXT + 160 * MIB
