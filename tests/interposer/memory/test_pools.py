"""The CUDA interposer: stream-ordered memory. The account holds the pools' reserved memory, used or not."""

from __future__ import annotations

import pytest

from support import GIB, MIB

from ..calls import (
    DEVICE,
    HOST,
    INVALID_VALUE,
    OUT,
    OUT_OF_MEMORY,
    RELEASE_THRESHOLD,
    RESERVED,
    SUCCESS,
    USED,
    Program,
    Start,
    buffer,
    kinds,
    location,
    u64,
)
from ..sandboxes import Make

#: The driver takes memory for a pool in steps of this size.
STEP = 32 * MIB
ALL = (1 << 64) - 1


def alloc(user: Program, size: int, pool: int | None = None) -> int:
    if pool is None:
        return user.get("cuMemAllocAsync", OUT, size, 0)
    return user.get("cuMemAllocFromPoolAsync", OUT, size, pool, 0)


def refused(user: Program, size: int, pool: int | None = None) -> bool:
    if pool is None:
        code = user.code("cuMemAllocAsync", OUT, size, 0)
    else:
        code = user.code("cuMemAllocFromPoolAsync", OUT, size, pool, 0)
    assert code in (SUCCESS, OUT_OF_MEMORY)
    return code == OUT_OF_MEMORY


def default_pool(user: Program, device: int = 0) -> int:
    return user.get("cuDeviceGetDefaultMemPool", OUT, device)


def attribute(user: Program, pool: int, which: int) -> int:
    return user.get("cuMemPoolGetAttribute", pool, which, OUT)


def test_a_pool_is_charged_by_its_reservation_until_a_synchronisation(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    pointer = alloc(user, 100 * MIB)
    pool = default_pool(user)
    reserved = attribute(user, pool, RESERVED)
    assert kinds(user.sandbox)["pool"] == reserved >= 100 * MIB
    user.do("cuMemFreeAsync", pointer, 0)
    assert attribute(user, pool, USED) == 0
    user.do("cuStreamSynchronize", 0)
    assert "pool" not in kinds(user.sandbox)
    assert user.sandbox.total() == sum(kinds(user.sandbox).values())


def test_the_limit_is_exact_and_a_refused_program_goes_on(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    free = user.free_memory() // STEP * STEP
    first = alloc(user, free - STEP)
    assert refused(user, STEP + 1)
    second = alloc(user, STEP)
    assert refused(user, STEP)
    assert kinds(user.sandbox)["pool"] == free
    # Freed memory stays in the pool and can be allocated again, although the limit is reached.
    user.do("cuMemFreeAsync", second, 0)
    assert alloc(user, STEP) == second
    for pointer in (first, second):
        user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuCtxSynchronize")
    assert "pool" not in kinds(user.sandbox)
    assert alloc(user, free)


def test_a_pool_that_keeps_its_memory_pays_for_it_until_it_is_trimmed(caller: Start) -> None:
    user = caller(1 * GIB)
    pool = default_pool(user)
    user.do("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, u64(ALL))
    user.do("cuMemFreeAsync", alloc(user, 128 * MIB), 0)
    user.do("cuStreamSynchronize", 0)
    assert kinds(user.sandbox)["pool"] == 128 * MIB
    user.do("cuMemPoolTrimTo", pool, 64 * MIB)
    assert kinds(user.sandbox)["pool"] == attribute(user, pool, RESERVED)
    user.do("cuMemPoolTrimTo", pool, 0)
    assert "pool" not in kinds(user.sandbox)


def test_a_pools_unused_memory_gives_way_to_other_memory(caller: Start) -> None:
    user = caller(1 * GIB)
    free = user.free_memory() // STEP * STEP
    user.do("cuMemPoolSetAttribute", default_pool(user), RELEASE_THRESHOLD, u64(ALL))
    user.do("cuMemFreeAsync", alloc(user, free), 0)
    user.do("cuStreamSynchronize", 0)
    assert kinds(user.sandbox)["pool"] == free
    pointer = user.get("cuMemAlloc_v2", OUT, free)
    assert kinds(user.sandbox) == {**kinds(user.sandbox), "linear": free}
    assert "pool" not in kinds(user.sandbox)
    # The same the other way round: another pool's unused memory gives way to this pool's.
    user.do("cuMemFree_v2", pointer)
    other = user.create_pool()
    user.do("cuMemPoolSetAttribute", other, RELEASE_THRESHOLD, u64(ALL))
    user.do("cuMemFreeAsync", alloc(user, free, other), 0)
    assert alloc(user, free)


def test_memory_of_a_pool_may_be_freed_as_other_memory_is(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    user.do("cuMemFree_v2", alloc(user, 64 * MIB))
    user.do("cuCtxSynchronize")
    assert "pool" not in kinds(user.sandbox)
    # A second free changes nothing either.
    assert user.code("cuMemFree_v2", 0x10000) == INVALID_VALUE
    assert user.code("cuMemFreeAsync", 0x10000, 0) == INVALID_VALUE
    assert user.sandbox.total() == sum(kinds(user.sandbox).values())


def test_other_memory_may_be_freed_as_that_of_a_pool(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    pointer = user.get("cuMemAlloc_v2", OUT, 64 * MIB)
    assert kinds(user.sandbox)["linear"] == 64 * MIB
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuCtxSynchronize")
    assert "linear" not in kinds(user.sandbox)


def test_a_programs_own_pool_is_charged(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    pool = user.create_pool()
    pointer = alloc(user, 10 * MIB, pool)
    assert kinds(user.sandbox)["pool"] == attribute(user, pool, RESERVED)
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuMemPoolDestroy", pool)
    assert "pool" not in kinds(user.sandbox)


def test_a_destroyed_pool_is_charged_until_its_last_pointer_is_freed(caller: Start) -> None:
    user = caller(1 * GIB)
    for free in ("cuMemFree_v2", "cuMemFreeAsync"):
        pool = user.create_pool()
        pointers = [alloc(user, 40 * MIB, pool), alloc(user, 40 * MIB, pool)]
        user.do("cuMemPoolDestroy", pool)
        user.do(free, pointers[0], 0)
        assert kinds(user.sandbox)["pool"] >= 40 * MIB
        user.do(free, pointers[1], 0)
        assert "pool" not in kinds(user.sandbox)


def test_pools_are_made_and_destroyed_without_end(caller: Start) -> None:
    user = caller(256 * MIB)
    for _ in range(50):
        pool = user.create_pool()
        pointer = alloc(user, 100 * MIB, pool)
        user.do("cuMemFreeAsync", pointer, 0)
        user.do("cuMemPoolDestroy", pool)
    assert "pool" not in kinds(user.sandbox)


def test_a_devices_pool_can_be_another_one(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    pool = user.create_pool()
    user.do("cuDeviceSetMemPool", 0, pool)
    assert user.get("cuDeviceGetMemPool", OUT, 0) == pool
    pointer = alloc(user, 64 * MIB)
    assert attribute(user, pool, USED) == 64 * MIB
    assert kinds(user.sandbox)["pool"] == attribute(user, pool, RESERVED)
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuMemPoolDestroy", pool)
    assert "pool" not in kinds(user.sandbox)


def test_a_pool_in_host_memory_is_not_counted(caller: Start) -> None:
    user = caller(256 * MIB)
    before = user.sandbox.total()
    pool = user.create_pool(HOST)
    pointer = alloc(user, 512 * MIB, pool)
    assert user.sandbox.total() == before
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuMemPoolDestroy", pool)
    assert user.sandbox.total() == before


def test_a_devices_pools_are_charged_by_location(caller: Start, any_way: str) -> None:
    user = caller(256 * MIB, way=any_way)
    here = user.get("cuMemGetDefaultMemPool", OUT, buffer(location(DEVICE)), 1)
    assert here == default_pool(user)
    host = user.get("cuMemGetDefaultMemPool", OUT, buffer(location(HOST)), 1)
    before = user.sandbox.total()
    assert alloc(user, 512 * MIB, host)
    assert user.sandbox.total() == before
    own = user.create_pool()
    user.do("cuMemSetMemPool", buffer(location(DEVICE)), 1, own)
    assert user.get("cuMemGetMemPool", OUT, buffer(location(DEVICE)), 1) == own
    alloc(user, 10 * MIB)
    assert kinds(user.sandbox)["pool"] == attribute(user, own, RESERVED)
    assert refused(user, 512 * MIB)


@pytest.mark.parametrize("size", [0, ALL, ALL - 511, 1 << 63, 64 * GIB])
def test_a_failed_allocation_is_not_charged(caller: Start, size: int) -> None:
    user = caller(None)
    before = user.sandbox.total()
    assert user.code("cuMemAllocAsync", OUT, size, 0) in (INVALID_VALUE, OUT_OF_MEMORY)
    assert user.code("cuMemAllocFromPoolAsync", OUT, size, 0xDEAD0, 0) != SUCCESS
    assert user.sandbox.total() == before


def test_threads_that_race_at_the_limit_are_refused_only_where_nothing_fits(caller: Start) -> None:
    user = caller(1 * GIB)
    free = user.free_memory() // STEP * STEP
    filling = alloc(user, free - 4 * STEP)
    # Four allocations fit at a time, and only four threads ask. So none may be refused.
    assert user.race(4, 200, STEP) == [800, 0, 0]
    assert user.sandbox.total() <= 1 * GIB
    given, refused_, failed = user.race(8, 100, STEP)
    assert failed == 0
    assert given + refused_ == 800
    user.do("cuMemFreeAsync", filling, 0)
    user.do("cuCtxSynchronize")
    assert "pool" not in kinds(user.sandbox)


def test_two_processes_share_the_limit_and_see_returned_memory(sandbox: Make, caller: Start) -> None:
    one = sandbox(1 * GIB)
    users = [caller(one), caller(one)]
    free = users[0].free_memory() // STEP * STEP
    pointer = alloc(users[0], free)
    assert refused(users[1], STEP)
    users[0].do("cuMemFreeAsync", pointer, 0)
    # The driver has not given it back yet: no process has synchronised.
    assert refused(users[1], STEP)
    users[0].do("cuStreamSynchronize", 0)
    assert alloc(users[1], free)


def test_an_allocation_that_a_pool_has_free_takes_nothing_from_others_meanwhile(
    sandbox: Make, caller: Start
) -> None:
    one = sandbox(1 * GIB)
    user, other = caller(one), caller(one)
    user.do("cuMemPoolSetAttribute", default_pool(user), RELEASE_THRESHOLD, u64(ALL))
    user.do("cuMemFreeAsync", alloc(user, 512 * MIB), 0)
    free = other.free_memory()
    user.send("race", 8, 20000, 16 * MIB)
    for _ in range(100):
        other.do("cuMemFree_v2", other.get("cuMemAlloc_v2", OUT, free))
    assert user.result() == [160000, 0, 0]


def test_a_killed_process_gives_back_its_pools(sandbox: Make, caller: Start) -> None:
    one = sandbox(1 * GIB)
    users = [caller(one), caller(one)]
    free = users[0].free_memory() // STEP * STEP
    alloc(users[0], free)
    users[0].kill()
    assert alloc(users[1], free)


def test_a_forked_child_has_nothing_of_its_parents_pools(caller: Start) -> None:
    user = caller(1 * GIB)
    pointer = alloc(user, 64 * MIB)
    for line in (["cuMemFreeAsync", pointer, 0], ["cuMemAllocAsync", OUT, MIB, 0]):
        assert user.fork(line)[0][0] != SUCCESS
    assert kinds(user.sandbox)["pool"] == 64 * MIB
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuCtxSynchronize")
    assert "pool" not in kinds(user.sandbox)


def test_free_memory_in_pieces_does_not_serve_a_large_allocation_at_the_limit(caller: Start) -> None:
    user = caller(None)
    # Two steps, each partly used. Only together are their rests large enough.
    pointers = [alloc(user, 20 * MIB), alloc(user, 20 * MIB)]
    assert kinds(user.sandbox)["pool"] == 2 * STEP
    user.sandbox.set_limit(user.sandbox.total())
    assert refused(user, 24 * MIB)
    assert kinds(user.sandbox)["pool"] == 2 * STEP
    assert attribute(user, default_pool(user), USED) == 40 * MIB
    pointers.append(alloc(user, 12 * MIB))
    assert kinds(user.sandbox)["pool"] == 2 * STEP
    for pointer in pointers:
        user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuStreamSynchronize", 0)
    assert "pool" not in kinds(user.sandbox)


def test_a_lowered_limit_refuses_and_frees_nothing(caller: Start) -> None:
    user = caller(1 * GIB)
    pointer = alloc(user, 512 * MIB)
    user.sandbox.set_limit(256 * MIB)
    assert refused(user, STEP)
    assert kinds(user.sandbox)["pool"] == 512 * MIB
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuStreamSynchronize", 0)
    alloc(user, STEP)


def test_each_device_has_its_own_pools(caller: Start) -> None:
    user = caller(1 * GIB, 256 * MIB, topology="2xT4-R580")
    assert alloc(user, 512 * MIB)
    # From the other device's pool, on a stream of this device.
    there = default_pool(user, 1)
    pointer = alloc(user, 128 * MIB, there)
    assert refused(user, 256 * MIB, there)
    assert (kinds(user.sandbox)["pool"], kinds(user.sandbox, 1)["pool"]) == (512 * MIB, 128 * MIB)
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuMemPoolTrimTo", there, 0)
    assert "pool" not in kinds(user.sandbox, 1)
    assert kinds(user.sandbox)["pool"] == 512 * MIB


def test_memory_that_is_freed_behind_work_comes_back_after_the_work(sandbox: Make, caller: Start) -> None:
    one = sandbox(1 * GIB)
    user, other = caller(one), caller(one)
    busy, idle = user.get("cuStreamCreate", OUT, 1), user.get("cuStreamCreate", OUT, 1)
    kernel = user.kernel("busy_500ms")
    pointer = user.get("cuMemAllocAsync", OUT, 512 * MIB, busy)
    user.launch(kernel, busy)
    user.do("cuMemFreeAsync", pointer, busy)
    user.do("cuStreamSynchronize", idle)
    assert kinds(one)["pool"] == 512 * MIB
    user.do("cuStreamSynchronize", busy)
    assert "pool" not in kinds(one)
    assert alloc(other, 768 * MIB)


def test_a_pool_with_a_lower_threshold_gives_memory_back(caller: Start) -> None:
    user = caller(1 * GIB)
    pool = default_pool(user)
    user.do("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, u64(ALL))
    user.do("cuMemFreeAsync", alloc(user, 512 * MIB), 0)
    user.do("cuStreamSynchronize", 0)
    user.do("cuStreamSynchronize", 0)
    assert kinds(user.sandbox)["pool"] == 512 * MIB
    user.do("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, u64(0))
    user.do("cuStreamSynchronize", 0)
    assert "pool" not in kinds(user.sandbox)
