"""The ways to take device memory. Each shows in the reported usage of device and process, and comes back."""

from __future__ import annotations

import pytest

from support import GIB, MIB
from support.simulation import OUT_OF_MEMORY, SUCCESS, Process, Start, Up, used

T4 = 15360 * MIB
INVALID, INVALID_HANDLE, NOT_SUPPORTED = 1, 400, 801
#: CUmemPool_attribute.
THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH = 4, 5, 6, 7, 8
#: CUlimit.
STACK, PRINTF, HEAP = 0, 1, 2
HOST, HOST_NUMA = 2, 3
SPARSE, DEFERRED = 0x40, 0x80


def reported(observer: Process, pid: int) -> int:
    """Bytes of one process by NVML; 0 if it is not listed."""
    listed = observer.nvml("nvmlDeviceGetComputeRunningProcesses")
    return sum(entry["usedGpuMemory"] for entry in listed if entry["pid"] == pid)


def both(worker: Process) -> int:
    """The device's reported usage. It must equal that of the only process."""
    total = used(worker)
    assert reported(worker, worker.pid()) == total
    return total


def test_small_allocations_share_pieces_of_2_mib_that_go_with_the_last_of_them(one: Process) -> None:
    pointers = [one.alloc(512 * 1024)[1] for _ in range(4)]
    assert both(one) == 2 * MIB
    pointers.append(one.alloc(1)[1])
    assert both(one) == 4 * MIB
    assert len(set(pointers)) == 5
    assert all(pointer % 512 == 0 for pointer in pointers)
    for pointer in pointers[:3]:
        assert one.free(pointer) == SUCCESS
    assert both(one) == 4 * MIB
    pointers[:3] = [one.alloc(1536 * 1024)[1] for _ in range(2)]
    assert both(one) == 4 * MIB, "where three were, one of their size together fits again"
    assert [one.free(pointer) for pointer in pointers] == [SUCCESS] * 4
    assert both(one) == 0


def test_larger_allocations_are_rounded_up_to_2_mib(one: Process) -> None:
    _, pointer = one.alloc(3 * MIB)
    assert both(one) == 4 * MIB
    assert one.range_of(pointer + 5) == [SUCCESS, pointer, 3 * MIB]
    assert one.free(pointer + 512) == INVALID, "only the start of an allocation frees it"
    assert one.free(pointer) == SUCCESS
    assert both(one) == 0


def test_a_hundred_thousand_allocations_fit_and_are_all_given_back(one: Process) -> None:
    assert one.alloc_many(4096, 100_000) == [SUCCESS, 100_000]
    assert both(one) == 0


def test_the_functions_with_32_bit_addresses_count(one: Process) -> None:
    result, pointer = one.alloc_v1(4 * MIB)
    assert (result, 0 < pointer < 1 << 32) == (SUCCESS, True)
    assert both(one) == 4 * MIB
    assert one.free_v1(pointer) == SUCCESS
    assert both(one) == 0


def test_managed_memory_counts_at_any_preferred_place(one: Process) -> None:
    result, pointer = one.alloc_managed(4 * MIB)
    assert (result, one.attribute(8, pointer)) == (SUCCESS, [SUCCESS, 1])
    assert one.advise(pointer, 4 * MIB) == [SUCCESS] * 4 + [0, -1]
    assert both(one) == 4 * MIB, "brought to the host, it may come back at any time"
    assert one.advise(one.alloc(100)[1], 100)[:2] == [INVALID, INVALID], "that is not managed"
    assert one.free(pointer) == SUCCESS


def test_host_memory_takes_none_of_the_devices(one: Process) -> None:
    result, pointer = one.host_alloc(64 * MIB)
    assert result == SUCCESS
    assert one.attribute(2, pointer) == [SUCCESS, 1], "it is the host's"
    assert one.register(4096) == [SUCCESS, 712, SUCCESS, 713]
    assert both(one) == 0
    assert one.free(pointer) == INVALID
    assert one.host_free(pointer) == SUCCESS


def test_a_pointers_attributes_have_its_range_its_device_and_its_kind(one: Process) -> None:
    _, pointer = one.alloc(1000)
    assert one.attribute(2, pointer + 10) == [SUCCESS, 2]
    assert one.attribute(9, pointer) == [SUCCESS, 0]
    assert one.attribute(11, pointer + 10) == [SUCCESS, pointer]
    assert one.attribute(12, pointer + 10) == [SUCCESS, 1000]
    assert one.attribute(2, 4096)[0] == INVALID
    assert one.range_of(4096)[0] == 500


def test_a_pool_keeps_freed_memory_until_a_synchronisation(one: Process) -> None:
    pool = one.default_pool()
    _, first = one.alloc_async(5 * MIB)
    _, second = one.alloc_async(MIB)
    assert [one.pool_get(pool, at) for at in (RESERVED, USED)] == [32 * MIB, 6 * MIB]
    assert both(one) == 32 * MIB
    assert one.free_async(first) == SUCCESS
    assert one.free(second) == SUCCESS, "plain cuMemFree frees it too"
    assert [one.pool_get(pool, at) for at in (RESERVED, USED)] == [32 * MIB, 0]
    assert both(one) == 32 * MIB
    assert one.synchronize() == SUCCESS
    assert [one.pool_get(pool, at) for at in (RESERVED, RESERVED_HIGH, USED_HIGH)] == [0, 32 * MIB, 6 * MIB]
    assert both(one) == 0
    assert one.pool_set(pool, RESERVED_HIGH, 0) == one.pool_set(pool, USED_HIGH, 0) == SUCCESS
    assert [one.pool_get(pool, at) for at in (RESERVED_HIGH, USED_HIGH)] == [0, 0]
    assert one.pool_set(pool, RESERVED_HIGH, 5) == one.pool_set(pool, USED, 0) == INVALID


def test_a_free_happens_after_the_work_before_it(one: Process) -> None:
    _, pointer = one.alloc_async(GIB)
    one.launch("busy_300ms")
    assert one.free_async(pointer) == SUCCESS
    assert one.pool_trim(one.default_pool(), 0) == SUCCESS
    assert both(one) == GIB, "a kernel may still use it"
    assert one.synchronize() == SUCCESS
    assert both(one) == 0


def test_the_release_threshold_stays_over_synchronisations_and_trim_does_not(one: Process) -> None:
    pool = one.default_pool()
    assert one.pool_set(pool, THRESHOLD, 64 * MIB) == SUCCESS
    pointers = [one.alloc_async(32 * MIB)[1] for _ in range(4)]
    assert both(one) == 128 * MIB
    for pointer in pointers:
        assert one.free_async(pointer) == SUCCESS
    one.synchronize()
    assert both(one) == one.pool_get(pool, RESERVED) == 64 * MIB
    assert one.pool_trim(pool, 32 * MIB) == SUCCESS
    assert both(one) == 32 * MIB
    assert one.pool_trim(pool, 0) == SUCCESS
    assert both(one) == 0


def test_pools_give_up_unused_memory_before_anything_is_refused(one: Process) -> None:
    pool = one.default_pool()
    one.pool_set(pool, THRESHOLD, T4)
    _, pointer = one.alloc_async(8 * GIB)
    _, used_still = one.alloc_async(GIB)
    one.free_async(pointer)
    one.synchronize()
    assert both(one) == 9 * GIB
    assert one.alloc(10 * GIB)[0] == SUCCESS
    assert both(one) == 11 * GIB
    assert one.alloc(5 * GIB)[0] == OUT_OF_MEMORY, "what is in use stays"
    assert one.free(used_still) == SUCCESS
    assert one.create_memory(5 * GIB)[0] == SUCCESS


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_a_pool_of_ones_own_lives_until_its_last_allocation_is_freed(one: Process, suffix: str) -> None:
    _, pool = one.pool()
    result, pointer = one.alloc_async(MIB, pool, suffix)
    assert result == SUCCESS
    assert one.attribute(17, pointer) == [SUCCESS, pool]
    assert one.pool_destroy(pool) == SUCCESS
    assert one.alloc_async(MIB, pool)[0] == INVALID
    assert both(one) == 32 * MIB
    assert one.free_async(pointer, suffix) == SUCCESS
    assert both(one) == 0
    assert one.pool_destroy(pool) == INVALID
    assert one.pool_destroy(one.default_pool()) == INVALID


def test_a_device_can_be_given_another_pool_until_that_is_destroyed(one: Process) -> None:
    _, pool = one.pool()
    assert one.device_pool() == one.default_pool() != pool
    assert one.set_device_pool(pool) == SUCCESS
    assert one.device_pool() == pool
    _, pointer = one.alloc_async(MIB)
    assert one.pool_get(pool, USED) == MIB
    one.free(pointer)
    assert one.pool_destroy(pool) == SUCCESS
    assert one.device_pool() == one.default_pool()
    assert one.location_pool(1) == [SUCCESS, one.default_pool()]


def test_a_pool_of_host_memory_takes_none_of_the_devices(one: Process) -> None:
    for _, pool in (one.pool(0, HOST), one.pool(0, HOST_NUMA), one.location_pool(HOST)):
        result, _ = one.alloc_async(64 * MIB, pool)
        assert result == SUCCESS
        assert one.pool_get(pool, RESERVED) == 64 * MIB
    assert both(one) == 0


def test_a_pool_is_bounded_by_its_own_limit_and_by_the_device(one: Process) -> None:
    _, pool = one.pool(0, 1, 64 * MIB)
    assert one.alloc_async(65 * MIB, pool)[0] == OUT_OF_MEMORY
    assert one.alloc_async(64 * MIB, pool)[0] == SUCCESS
    assert one.alloc_async(1, pool)[0] == OUT_OF_MEMORY
    assert one.alloc_async(T4)[0] == OUT_OF_MEMORY
    assert both(one) == 64 * MIB, "nothing is kept of what failed"
    one.alloc(T4 - 68 * MIB)
    assert one.alloc_async(3 * MIB)[0] == SUCCESS, "less than a step is left"
    assert both(one) == T4


def test_memory_lives_while_there_is_a_handle_or_a_mapping(one: Process) -> None:
    size = 2 * one.granularity()
    assert size == 4 * MIB
    result, handle = one.create_memory(size)
    assert (result, both(one)) == (SUCCESS, size)
    pointer = one.place(handle, size)
    assert one.write(pointer, "weights") == SUCCESS
    assert one.release(handle) == SUCCESS
    assert one.release(handle) == INVALID
    assert both(one) == size
    result, again = one.retain(pointer + 5)
    assert (result, again) == (SUCCESS, handle)
    assert one.unmap(pointer, size) == SUCCESS
    assert one.read(pointer, 7)[0] == INVALID
    assert both(one) == size
    second = one.place(again, size)
    assert one.read(second, 7) == [SUCCESS, "weights"]
    assert one.address_free(second, size) == INVALID, "something is mapped there"
    assert one.unmap(second, size) == one.release(again) == SUCCESS
    assert both(one) == 0
    assert one.address_free(second, size) == one.address_free(pointer, size) == SUCCESS


def test_memory_of_the_host_can_be_mapped_and_takes_none_of_the_devices(one: Process) -> None:
    for location in (HOST, HOST_NUMA):
        result, handle = one.create_memory(64 * MIB, 0, location)
        assert result == SUCCESS
        assert one.write(one.place(handle, 64 * MIB), "x") == SUCCESS
    assert both(one) == 0


def test_invalid_mappings_are_refused(one: Process) -> None:
    assert one.create_memory(2 * MIB + 512)[0] == one.create_memory(0)[0] == INVALID
    assert one.create_memory(T4 + 2 * MIB)[0] == OUT_OF_MEMORY
    assert one.create_memory(2 * MIB, 8)[0] == NOT_SUPPORTED, "there is no fabric"
    _, handle = one.create_memory(2 * MIB)
    _, space = one.reserve(8 * MIB)
    assert one.map(space, 4 * MIB, handle) == INVALID, "more than there is"
    assert one.map(space + 512, 2 * MIB, handle) == INVALID
    assert one.map(space + 8 * MIB, 2 * MIB, handle) == INVALID
    assert one.map(space + 2 * MIB, 2 * MIB, handle) == SUCCESS
    assert one.map(space + 2 * MIB, 2 * MIB, handle) == INVALID, "taken"
    assert one.write(space + 2 * MIB, "x") == INVALID, "nobody has access yet"
    assert one.unmap(space, 4 * MIB) == INVALID
    assert one.map(space, 2 * MIB, handle) == SUCCESS, "the same memory twice"
    assert both(one) == 2 * MIB
    assert one.allow(space, 4 * MIB) == SUCCESS
    assert one.write(space + 2 * MIB - 2, "over") == SUCCESS
    assert one.read(space, 2) == [SUCCESS, "er"]
    assert one.free(space) == INVALID
    assert one.export_memory(handle)[0] == INVALID, "it was not made for that"


def test_a_device_full_of_mapped_memory_refuses_other_memory(one: Process) -> None:
    _, handle = one.create_memory(T4)
    assert one.alloc(1)[0] == OUT_OF_MEMORY
    assert one.alloc_async(1)[0] == OUT_OF_MEMORY
    assert one.array(1, 1)[0] == OUT_OF_MEMORY
    assert one.release(handle) == SUCCESS
    assert one.alloc(1)[0] == SUCCESS


def test_arrays_count_with_the_rows_that_their_layout_adds(one: Process) -> None:
    result, large = one.array(1000, 1000)
    assert (result, both(one)) == (SUCCESS, 4 * MIB)
    _, small = one.flat_array(10, 10)
    _, volume = one.array(64, 64, 64)
    assert both(one) == 6 * MIB, "the small ones share a piece"
    assert one.array_facts(volume) == [SUCCESS, 64, 64, 64]
    assert one.array_write(small, "texels") == SUCCESS
    assert one.array_read(small, 6) == [SUCCESS, "texels"]
    assert one.array_destroy(large) == one.array_destroy(small) == one.array_destroy(volume) == SUCCESS
    assert one.array_destroy(large) == INVALID_HANDLE
    assert both(one) == 0


def test_a_mipmapped_array_counts_with_all_its_levels(one: Process) -> None:
    result, mipmap = one.mipmap(1024, 1024, 11)
    assert (result, both(one)) == (SUCCESS, 6 * MIB)
    result, level = one.mipmap_level(mipmap, 3)
    assert one.array_facts(level) == [SUCCESS, 128, 128, 0]
    assert one.array_destroy(level) == INVALID_HANDLE, "it is a part of the whole"
    assert one.mipmap_level(mipmap, 11)[0] == INVALID
    assert one.mipmap_destroy(mipmap) == SUCCESS
    assert both(one) == 0


@pytest.mark.parametrize("flags", [SPARSE, DEFERRED])
def test_an_array_without_memory_counts_by_its_mapped_memory(one: Process, flags: int) -> None:
    result, array = one.array(1024, 1024, 0, 1, flags)
    assert (result, both(one)) == (SUCCESS, 0)
    assert one.array_needs(array) == [SUCCESS, 4 * MIB]
    _, handle = one.create_memory(2 * MIB)
    assert one.map_array(array, handle) == SUCCESS
    assert one.release(handle) == SUCCESS
    assert both(one) == 2 * MIB, "it is mapped"
    assert one.map_array(array, 0, 2) == SUCCESS
    assert both(one) == 0
    _, handle = one.create_memory(2 * MIB)
    assert one.map_array(array, handle) == one.release(handle) == SUCCESS
    assert one.array_destroy(array) == SUCCESS
    assert both(one) == 0
    _, ordinary = one.array(16, 16)
    assert one.array_needs(ordinary)[0] == INVALID


def test_a_contexts_memory_ends_with_it_and_a_devices_memory_stays(up: Up, process: Start) -> None:
    one = process(up("1xT4").root)
    one.init()
    one.create()
    one.create()
    assert one.alloc(100)[0] == one.array(1000, 1000)[0] == one.mipmap(1024, 1024, 11)[0] == SUCCESS
    assert one.set_limit(HEAP, 10 * MIB) == SUCCESS
    assert both(one) == (2 + 4 + 6 + 2) * MIB
    _, handle = one.create_memory(8 * MIB)
    assert one.destroy(1) == SUCCESS
    assert both(one) == 8 * MIB
    assert one.release(handle) == SUCCESS
    assert both(one) == 0


def test_work_that_ends_with_its_context_holds_no_pools_memory(up: Up, process: Start) -> None:
    one = process(up("1xT4").root)
    one.init()
    one.start()
    one.create()
    _, pointer = one.alloc_async(GIB)
    one.launch("busy_3600s")
    assert one.free_async(pointer) == SUCCESS
    assert one.pool_trim(one.default_pool(), 0) == SUCCESS
    assert both(one) == GIB
    assert one.destroy(0) == SUCCESS
    assert one.synchronize() == SUCCESS
    assert both(one) == 0


def test_a_larger_heap_stack_or_print_buffer_takes_memory(one: Process) -> None:
    assert one.get_limit(HEAP) == [SUCCESS, 8 * MIB]
    assert one.set_limit(HEAP, 136 * MIB) == SUCCESS
    assert one.get_limit(HEAP) == [SUCCESS, 136 * MIB]
    assert both(one) == 128 * MIB
    assert one.set_limit(PRINTF, 5 * MIB) == SUCCESS
    assert both(one) == 132 * MIB
    assert one.set_limit(HEAP, 20 * GIB) == OUT_OF_MEMORY
    assert one.get_limit(HEAP) == [SUCCESS, 136 * MIB]
    assert one.set_limit(HEAP, MIB) == one.set_limit(PRINTF, MIB) == SUCCESS
    assert both(one) == 0
    assert one.set_limit(STACK, 2048) == SUCCESS
    assert both(one) == 40 * 1024 * 1024, "a KiB more for each of 1024 threads on 40 multiprocessors"
    assert one.set_limit(99, 1) == 215


def test_a_forked_child_has_none_of_the_memory_and_the_parent_has_all(one: Process) -> None:
    _, small = one.alloc(100)
    _, pooled = one.alloc_async(100)
    _, handle = one.create_memory(2 * MIB)
    pointer = one.place(handle, 2 * MIB)
    one.write(small, "kept")
    started, *freed = one.in_child(["start"], ["free", small], ["free", pooled], ["release", handle])
    assert (started, freed) == (SUCCESS, [INVALID] * 3)
    assert both(one) == (2 + 32 + 2) * MIB
    assert one.read(small, 4) == [SUCCESS, "kept"]
    assert one.free(small) == one.free(pooled) == one.unmap(pointer, 2 * MIB) == SUCCESS
    assert one.release(handle) == one.synchronize() == SUCCESS
    assert both(one) == 0
