"""The CUDA interposer: what the driver has beyond what was asked for, where its report leaves it open, or
where small allocations and pieces of pools add up."""

from __future__ import annotations

from collections.abc import Callable

from support import GIB, MIB

from ..calls import OUT, OUT_OF_MEMORY, RELEASE_THRESHOLD, SUCCESS, Start, kinds, u64
from ..sandboxes import Sandbox
from .storm_sandbox import CONTEXT, TOPOLOGY, Card

Make = Callable[..., Sandbox]

MALLOC_HEAP_SIZE = 2  # CUlimit
GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL


def test_what_a_context_took_comes_back_while_there_is_managed_memory(caller: Start) -> None:
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


def test_what_small_ones_leave_in_half_empty_steps_is_kept(sandbox: Make, caller: Start) -> None:
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


def test_room_that_a_pool_has_in_pieces_is_no_reason_to_refuse(caller: Start) -> None:
    user = caller(CONTEXT + 160 * MIB, topology=TOPOLOGY)
    pool = user.get("cuDeviceGetDefaultMemPool", OUT, 0)
    user.do("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, u64((1 << 64) - 1))
    pointers = [user.get("cuMemAllocAsync", OUT, 32 * MIB, None) for _ in range(4)]
    for pointer in pointers:
        user.do("cuMemFreeAsync", pointer, None)
    # 128 MiB that nobody uses, in four pieces: of those that are in one piece, there are 32.
    user.get("cuMemAllocAsync", OUT, 96 * MIB, None)
    assert Card(user.sandbox).used() <= CONTEXT + 160 * MIB
