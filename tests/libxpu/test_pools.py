"""The CUDA wrapper: stream-ordered memory. The account holds what pools have reserved, used or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .calls import (
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
    pool_properties,
    program,  # noqa: F401  (fixture)
    u64,
    way,  # noqa: F401  (fixture)
)
from .conftest import GIB, MIB, Cell

Make = Callable[..., Cell]

#: In which the driver takes memory for a pool.
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


def test_a_pool_is_charged_by_what_it_has_reserved_and_given_back_at_a_synchronisation(
    cell: Make,
    program: Start,  # noqa: F811
    way: str,  # noqa: F811
) -> None:
    one = cell(1 * GIB)
    user = program(one, way)
    pointer = alloc(user, 100 * MIB)
    pool = default_pool(user)
    reserved = attribute(user, pool, RESERVED)
    assert kinds(one)["pool"] == reserved >= 100 * MIB
    user.do("cuMemFreeAsync", pointer, 0)
    assert attribute(user, pool, USED) == 0
    user.do("cuStreamSynchronize", 0)
    assert "pool" not in kinds(one)
    assert one.total() == sum(kinds(one).values())


def test_the_limit_is_exact_and_a_refused_program_goes_on(
    cell: Make,
    program: Start,  # noqa: F811
    way: str,  # noqa: F811
) -> None:
    one = cell(1 * GIB)
    user = program(one, way)
    free = user.free_memory() // STEP * STEP
    first = alloc(user, free - STEP)
    assert refused(user, STEP + 1)
    second = alloc(user, STEP)
    assert refused(user, STEP)
    assert kinds(one)["pool"] == free
    # What is freed is in the pool, and can be had again, though nothing is left of the limit.
    user.do("cuMemFreeAsync", second, 0)
    assert alloc(user, STEP) == second
    for pointer in (first, second):
        user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuCtxSynchronize")
    assert "pool" not in kinds(one)
    assert alloc(user, free)


def test_a_pool_that_keeps_its_memory_pays_for_it_until_it_is_trimmed(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(1 * GIB)
    user = program(one)
    pool = default_pool(user)
    user.do("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, u64(ALL))
    user.do("cuMemFreeAsync", alloc(user, 128 * MIB), 0)
    user.do("cuStreamSynchronize", 0)
    assert kinds(one)["pool"] == 128 * MIB
    user.do("cuMemPoolTrimTo", pool, 64 * MIB)
    assert kinds(one)["pool"] == attribute(user, pool, RESERVED)
    user.do("cuMemPoolTrimTo", pool, 0)
    assert "pool" not in kinds(one)


def test_what_a_pool_keeps_unused_gives_way_to_other_memory(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(1 * GIB)
    user = program(one)
    free = user.free_memory() // STEP * STEP
    user.do("cuMemPoolSetAttribute", default_pool(user), RELEASE_THRESHOLD, u64(ALL))
    user.do("cuMemFreeAsync", alloc(user, free), 0)
    user.do("cuStreamSynchronize", 0)
    assert kinds(one)["pool"] == free
    pointer = user.get("cuMemAlloc_v2", OUT, free)
    assert kinds(one) == {**kinds(one), "linear": free}
    assert "pool" not in kinds(one)
    # And the other way round: another pool's unused memory gives way to this one's.
    user.do("cuMemFree_v2", pointer)
    other = user.get("cuMemPoolCreate", OUT, buffer(pool_properties()))
    user.do("cuMemPoolSetAttribute", other, RELEASE_THRESHOLD, u64(ALL))
    user.do("cuMemFreeAsync", alloc(user, free, other), 0)
    assert alloc(user, free)


def test_memory_of_a_pool_may_be_freed_as_other_memory_is(cell: Make, program: Start, way: str) -> None:  # noqa: F811
    one = cell(1 * GIB)
    user = program(one, way)
    user.do("cuMemFree_v2", alloc(user, 64 * MIB))
    user.do("cuCtxSynchronize")
    assert "pool" not in kinds(one)
    # Neither does a second free change anything.
    assert user.code("cuMemFree_v2", 0x10000) == INVALID_VALUE
    assert user.code("cuMemFreeAsync", 0x10000, 0) == INVALID_VALUE
    assert one.total() == sum(kinds(one).values())


def test_other_memory_may_be_freed_as_that_of_a_pool(cell: Make, program: Start, way: str) -> None:  # noqa: F811
    one = cell(1 * GIB)
    user = program(one, way)
    pointer = user.get("cuMemAlloc_v2", OUT, 64 * MIB)
    assert kinds(one)["linear"] == 64 * MIB
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuCtxSynchronize")
    assert "linear" not in kinds(one)


def test_a_pool_of_ones_own(cell: Make, program: Start, way: str) -> None:  # noqa: F811
    one = cell(1 * GIB)
    user = program(one, way)
    pool = user.get("cuMemPoolCreate", OUT, buffer(pool_properties()))
    pointer = alloc(user, 10 * MIB, pool)
    assert kinds(one)["pool"] == attribute(user, pool, RESERVED)
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuMemPoolDestroy", pool)
    assert "pool" not in kinds(one)


def test_a_destroyed_pool_is_charged_until_its_last_allocation_is_freed(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(1 * GIB)
    user = program(one)
    for free in ("cuMemFree_v2", "cuMemFreeAsync"):
        pool = user.get("cuMemPoolCreate", OUT, buffer(pool_properties()))
        pointers = [alloc(user, 40 * MIB, pool), alloc(user, 40 * MIB, pool)]
        user.do("cuMemPoolDestroy", pool)
        user.do(free, pointers[0], 0)
        assert kinds(one)["pool"] >= 40 * MIB
        user.do(free, pointers[1], 0)
        assert "pool" not in kinds(one)


def test_pools_are_made_and_destroyed_without_end(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(256 * MIB)
    user = program(one)
    for _ in range(50):
        pool = user.get("cuMemPoolCreate", OUT, buffer(pool_properties()))
        pointer = alloc(user, 100 * MIB, pool)
        user.do("cuMemFreeAsync", pointer, 0)
        user.do("cuMemPoolDestroy", pool)
    assert "pool" not in kinds(one)


def test_a_devices_pool_can_be_another_one(cell: Make, program: Start, way: str) -> None:  # noqa: F811
    one = cell(1 * GIB)
    user = program(one, way)
    pool = user.get("cuMemPoolCreate", OUT, buffer(pool_properties()))
    user.do("cuDeviceSetMemPool", 0, pool)
    assert user.get("cuDeviceGetMemPool", OUT, 0) == pool
    pointer = alloc(user, 64 * MIB)
    assert attribute(user, pool, USED) == 64 * MIB
    assert kinds(one)["pool"] == attribute(user, pool, RESERVED)
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuMemPoolDestroy", pool)
    assert "pool" not in kinds(one)


def test_a_pool_in_host_memory_is_not_counted(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(256 * MIB)
    user = program(one)
    before = one.total()
    pool = user.get("cuMemPoolCreate", OUT, buffer(pool_properties(HOST)))
    pointer = alloc(user, 512 * MIB, pool)
    assert one.total() == before
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuMemPoolDestroy", pool)
    assert one.total() == before


def test_pools_by_location(cell: Make, program: Start, way: str) -> None:  # noqa: F811
    one = cell(256 * MIB)
    user = program(one, way)
    here = user.get("cuMemGetDefaultMemPool", OUT, buffer(location(DEVICE)), 1)
    assert here == default_pool(user)
    host = user.get("cuMemGetDefaultMemPool", OUT, buffer(location(HOST)), 1)
    before = one.total()
    assert alloc(user, 512 * MIB, host)
    assert one.total() == before
    own = user.get("cuMemPoolCreate", OUT, buffer(pool_properties()))
    user.do("cuMemSetMemPool", buffer(location(DEVICE)), 1, own)
    assert user.get("cuMemGetMemPool", OUT, buffer(location(DEVICE)), 1) == own
    alloc(user, 10 * MIB)
    assert kinds(one)["pool"] == attribute(user, own, RESERVED)
    assert refused(user, 512 * MIB)


@pytest.mark.parametrize("size", [0, ALL, ALL - 511, 1 << 63, 64 * GIB])
def test_a_failed_allocation_is_not_charged(cell: Make, program: Start, size: int) -> None:  # noqa: F811
    one = cell(None)
    user = program(one)
    before = one.total()
    assert user.code("cuMemAllocAsync", OUT, size, 0) in (INVALID_VALUE, OUT_OF_MEMORY)
    assert user.code("cuMemAllocFromPoolAsync", OUT, size, 0xDEAD0, 0) != SUCCESS
    assert one.total() == before


def test_threads_that_race_at_the_limit_are_refused_only_where_nothing_fits(
    cell: Make,
    program: Start,  # noqa: F811
) -> None:
    one = cell(1 * GIB)
    user = program(one)
    free = user.free_memory() // STEP * STEP
    filling = alloc(user, free - 4 * STEP)
    # Four at a time fit, and no more than four threads ask: so none may be refused.
    assert user.race(4, 200, STEP) == [800, 0, 0]
    assert one.total() <= 1 * GIB
    given, refused_, failed = user.race(8, 100, STEP)
    assert failed == 0
    assert given + refused_ == 800
    user.do("cuMemFreeAsync", filling, 0)
    user.do("cuCtxSynchronize")
    assert "pool" not in kinds(one)


def test_two_processes_share_the_limit_and_see_what_the_other_gives_back(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(1 * GIB)
    users = [program(one), program(one)]
    free = users[0].free_memory() // STEP * STEP
    pointer = alloc(users[0], free)
    assert refused(users[1], STEP)
    users[0].do("cuMemFreeAsync", pointer, 0)
    # The driver has not given it back yet: nobody has synchronised.
    assert refused(users[1], STEP)
    users[0].do("cuStreamSynchronize", 0)
    assert alloc(users[1], free)


def test_what_draws_on_a_pool_with_room_takes_nothing_from_others_meanwhile(
    cell: Make,
    program: Start,  # noqa: F811
) -> None:
    one = cell(1 * GIB)
    user, other = program(one), program(one)
    user.do("cuMemPoolSetAttribute", default_pool(user), RELEASE_THRESHOLD, u64(ALL))
    user.do("cuMemFreeAsync", alloc(user, 512 * MIB), 0)
    free = other.free_memory()
    user.send("race", 8, 20000, 16 * MIB)
    for _ in range(100):
        other.do("cuMemFree_v2", other.get("cuMemAlloc_v2", OUT, free))
    assert user.result() == [160000, 0, 0]


def test_a_killed_process_gives_back_its_pools(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(1 * GIB)
    users = [program(one), program(one)]
    free = users[0].free_memory() // STEP * STEP
    alloc(users[0], free)
    users[0].kill()
    assert alloc(users[1], free)


def test_a_forked_child_has_nothing_of_its_parents_pools(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(1 * GIB)
    user = program(one)
    pointer = alloc(user, 64 * MIB)
    assert user.fork("cuMemFreeAsync", pointer, 0)[0] != SUCCESS
    assert user.fork("cuMemAllocAsync", OUT, MIB, 0)[0] != SUCCESS
    assert kinds(one)["pool"] == 64 * MIB
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuCtxSynchronize")
    assert "pool" not in kinds(one)


def test_room_in_pieces_is_no_room_at_the_limit(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(None)
    user = program(one)
    # Two steps, of each of which a part is used: what is left of them is enough together only.
    pointers = [alloc(user, 20 * MIB), alloc(user, 20 * MIB)]
    assert kinds(one)["pool"] == 2 * STEP
    one.set_limit(one.total())
    assert refused(user, 24 * MIB)
    assert kinds(one)["pool"] == 2 * STEP
    assert attribute(user, default_pool(user), USED) == 40 * MIB
    pointers.append(alloc(user, 12 * MIB))
    assert kinds(one)["pool"] == 2 * STEP
    for pointer in pointers:
        user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuStreamSynchronize", 0)
    assert "pool" not in kinds(one)


def test_a_limit_that_is_lowered_refuses_and_what_is_there_stays(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(1 * GIB)
    user = program(one)
    pointer = alloc(user, 512 * MIB)
    one.set_limit(256 * MIB)
    assert refused(user, STEP)
    assert kinds(one)["pool"] == 512 * MIB
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuStreamSynchronize", 0)
    alloc(user, STEP)


def test_each_device_has_its_own_pools(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(1 * GIB, 256 * MIB, topology="2xT4-R580")
    user = program(one)
    assert alloc(user, 512 * MIB)
    # From the other device's pool, on a stream of this one.
    there = default_pool(user, 1)
    pointer = alloc(user, 128 * MIB, there)
    assert refused(user, 256 * MIB, there)
    assert (kinds(one)["pool"], kinds(one, 1)["pool"]) == (512 * MIB, 128 * MIB)
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuMemPoolTrimTo", there, 0)
    assert "pool" not in kinds(one, 1)
    assert kinds(one)["pool"] == 512 * MIB


def test_what_is_freed_behind_work_comes_back_when_that_is_done(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(1 * GIB)
    user, other = program(one), program(one)
    busy, idle = user.get("cuStreamCreate", OUT, 1), user.get("cuStreamCreate", OUT, 1)
    module = user.get("cuModuleLoadData", OUT, buffer(b"an image"))
    kernel = user.get("cuModuleGetFunction", OUT, module, buffer(b"busy_500ms\0"))
    pointer = user.get("cuMemAllocAsync", OUT, 512 * MIB, busy)
    user.do("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, busy, None, None)
    user.do("cuMemFreeAsync", pointer, busy)
    user.do("cuStreamSynchronize", idle)
    assert kinds(one)["pool"] == 512 * MIB
    user.do("cuStreamSynchronize", busy)
    assert "pool" not in kinds(one)
    assert alloc(other, 768 * MIB)


def test_a_pool_that_is_told_to_keep_less_gives_it_back(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(1 * GIB)
    user = program(one)
    pool = default_pool(user)
    user.do("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, u64(ALL))
    user.do("cuMemFreeAsync", alloc(user, 512 * MIB), 0)
    user.do("cuStreamSynchronize", 0)
    user.do("cuStreamSynchronize", 0)
    assert kinds(one)["pool"] == 512 * MIB
    user.do("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, u64(0))
    user.do("cuStreamSynchronize", 0)
    assert "pool" not in kinds(one)
