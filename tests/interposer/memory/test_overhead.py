"""The CUDA interposer: memory that the driver takes beyond a program's request, where its report does not
show it, or where small allocations and pieces of pools add up."""

from __future__ import annotations

from support import GIB, MIB

from ..calls import OUT, OUT_OF_MEMORY, RELEASE_THRESHOLD, SUCCESS, Start, kinds, u64
from ..sandboxes import Make
from .storm_sandbox import CONTEXT, TOPOLOGY, Card

MALLOC_HEAP_SIZE = 2  # CUlimit
GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL


def test_a_contexts_memory_comes_back_while_there_is_managed_memory(caller: Start) -> None:
    user = caller(1 * GIB, topology=TOPOLOGY)
    user.get("cuMemAllocManaged", OUT, 256 * MIB, GLOBAL)
    for _ in range(3):
        user.do("cuCtxDestroy_v2", user.get("cuCtxCreate_v2", OUT, 0, 0))
        assert kinds(user.sandbox) == {"overhead": CONTEXT, "managed": 256 * MIB}


def test_a_smaller_heap_comes_back_while_there_is_managed_memory(caller: Start) -> None:
    user = caller(1 * GIB, topology=TOPOLOGY)
    user.get("cuMemAllocManaged", OUT, 256 * MIB, GLOBAL)
    for _ in range(3):
        user.do("cuCtxSetLimit", MALLOC_HEAP_SIZE, 72 * MIB)
        assert kinds(user.sandbox)["overhead"] == CONTEXT + 64 * MIB
        user.do("cuCtxSetLimit", MALLOC_HEAP_SIZE, 8 * MIB)
        assert kinds(user.sandbox)["overhead"] == CONTEXT


def test_small_allocations_that_share_no_step_do_not_pass_the_limit(caller: Start) -> None:
    user = caller(CONTEXT + 200 * MIB, topology=TOPOLOGY)
    while user.code("cuMemAlloc_v2", OUT, MIB + 512) == SUCCESS:
        pass
    assert Card(user.sandbox).used() <= CONTEXT + 216 * MIB


def test_small_allocations_that_leave_half_empty_steps_keep_their_charge(
    sandbox: Make, caller: Start
) -> None:
    limit = 2 * CONTEXT + 100 * MIB
    one = sandbox(limit, topology=TOPOLOGY)
    user, other = caller(one), caller(one)
    pointers = [user.get("cuMemAlloc_v2", OUT, MIB - 512) for _ in range(80)]
    for pointer in pointers[::2]:
        user.do("cuMemFree_v2", pointer)
    assert Card(one).used() == 2 * CONTEXT + 80 * MIB
    assert other.code("cuMemAlloc_v2", OUT, 30 * MIB) == OUT_OF_MEMORY
    assert other.code("cuMemAlloc_v2", OUT, 10 * MIB) == SUCCESS
    assert Card(one).used() <= limit


def test_a_pool_with_its_free_memory_in_pieces_may_grow(caller: Start) -> None:
    user = caller(CONTEXT + 160 * MIB, topology=TOPOLOGY)
    pool = user.get("cuDeviceGetDefaultMemPool", OUT, 0)
    user.do("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, u64((1 << 64) - 1))
    pointers = [user.get("cuMemAllocAsync", OUT, 32 * MIB, None) for _ in range(4)]
    for pointer in pointers:
        user.do("cuMemFreeAsync", pointer, None)
    # 128 MiB are unused, in four pieces of 32 MiB.
    user.get("cuMemAllocAsync", OUT, 96 * MIB, None)
    assert Card(user.sandbox).used() <= CONTEXT + 160 * MIB
