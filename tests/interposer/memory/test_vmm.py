"""The CUDA interposer: mappable memory (cuMemCreate) is charged once, while it has a handle or a mapping."""

from __future__ import annotations

import struct

import pytest

from support import GIB, MIB

from ..calls import (
    DEVICE,
    HOST,
    OUT,
    OUT_OF_MEMORY,
    POSIX_FD,
    SUCCESS,
    Program,
    Start,
    allocation_properties,
    buffer,
    kinds,
    location,
    unowned,
)
from ..sandboxes import Make

PAGE = 2 * MIB
SPARSE = 0x40  # CUDA_ARRAY3D_SPARSE


def code(user: Program, size: int, **properties: int) -> int:
    return user.code("cuMemCreate", OUT, size, buffer(allocation_properties(**properties)), 0)


def reserve(user: Program, size: int) -> int:
    return user.get("cuMemAddressReserve", OUT, size, 0, 0, 0)


def test_the_limit_is_exact_and_released_memory_comes_back(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    free = user.free_memory() // PAGE * PAGE
    first, second = user.create(free - PAGE), user.create(PAGE)
    assert kinds(user.sandbox)["vmm"] == free
    assert code(user, PAGE) == OUT_OF_MEMORY
    assert user.free_memory() < PAGE
    user.do("cuMemRelease", second)
    assert kinds(user.sandbox)["vmm"] == free - PAGE
    third = user.create(PAGE)
    for handle in (first, third):
        user.do("cuMemRelease", handle)
    assert "vmm" not in kinds(user.sandbox)
    assert user.sandbox.total() == sum(kinds(user.sandbox).values())


def test_memory_lives_while_it_has_a_handle_or_is_mapped(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    place = reserve(user, 128 * MIB)
    handle = user.create(64 * MIB)
    user.do("cuMemMap", place, 64 * MIB, 0, handle, 0)
    user.do("cuMemRelease", handle)
    assert kinds(user.sandbox)["vmm"] == 64 * MIB
    # A second handle, by its address: the mapping is not the last use any more.
    again = user.get("cuMemRetainAllocationHandle", OUT, place)
    user.do("cuMemUnmap", place, 64 * MIB)
    assert kinds(user.sandbox)["vmm"] == 64 * MIB
    user.do("cuMemMap", place + 64 * MIB, 64 * MIB, 0, again, 0)
    user.do("cuMemRelease", again)
    assert kinds(user.sandbox)["vmm"] == 64 * MIB
    user.do("cuMemUnmap", place + 64 * MIB, 64 * MIB)
    assert "vmm" not in kinds(user.sandbox)


def test_a_handle_mapped_twice_is_charged_once(caller: Start) -> None:
    user = caller(1 * GIB)
    place = reserve(user, 64 * MIB)
    handle = user.create(32 * MIB)
    for at in (place, place + 32 * MIB):
        user.do("cuMemMap", at, 32 * MIB, 0, handle, 0)
    user.do("cuMemRelease", handle)
    assert kinds(user.sandbox)["vmm"] == 32 * MIB
    user.do("cuMemUnmap", place, 32 * MIB)
    assert kinds(user.sandbox)["vmm"] == 32 * MIB
    user.do("cuMemUnmap", place + 32 * MIB, 32 * MIB)
    assert "vmm" not in kinds(user.sandbox)


def test_several_mappings_are_unmapped_at_once(caller: Start) -> None:
    user = caller(1 * GIB)
    place = reserve(user, 8 * PAGE)
    for at in range(place, place + 8 * PAGE, PAGE):
        handle = user.create(PAGE)
        user.do("cuMemMap", at, PAGE, 0, handle, 0)
        user.do("cuMemRelease", handle)
    assert kinds(user.sandbox)["vmm"] == 8 * PAGE
    # A call that the driver refuses changes nothing.
    assert user.code("cuMemUnmap", place, 9 * PAGE) != SUCCESS
    assert user.code("cuMemUnmap", place + MIB, PAGE) != SUCCESS
    assert kinds(user.sandbox)["vmm"] == 8 * PAGE
    user.do("cuMemUnmap", place, 8 * PAGE)
    assert "vmm" not in kinds(user.sandbox)


def test_memory_of_the_host_is_not_counted(caller: Start) -> None:
    user = caller(256 * MIB)
    before = user.sandbox.total()
    place = reserve(user, 512 * MIB)
    handle = user.create(512 * MIB, kind=HOST)
    user.do("cuMemMap", place, 512 * MIB, 0, handle, 0)
    user.do("cuMemRelease", handle)
    assert user.sandbox.total() == before
    user.do("cuMemUnmap", place, 512 * MIB)
    assert user.sandbox.total() == before


@pytest.mark.parametrize("size", [0, 1, PAGE + 1, (1 << 64) - PAGE, 64 * GIB])
def test_a_failed_call_is_not_charged(caller: Start, size: int) -> None:
    user = caller(None)
    before = user.sandbox.total()
    assert code(user, size) != SUCCESS
    assert code(user, PAGE, number=7) != SUCCESS
    assert user.code("cuMemCreate", OUT, PAGE, None, 0) != SUCCESS
    assert user.sandbox.total() == before
    handle = user.create(PAGE)
    assert user.code("cuMemMap", 0x1000, PAGE, 0, handle, 0) != SUCCESS
    user.do("cuMemRelease", handle)
    assert user.sandbox.total() == before


def test_an_unknown_handle_changes_nothing(caller: Start) -> None:
    user = caller(1 * GIB)
    user.create(PAGE)
    before = user.sandbox.total()
    assert user.code("cuMemUnmap", 0x200000, PAGE) != SUCCESS
    assert user.code("cuMemRetainAllocationHandle", OUT, 0x200000) != SUCCESS
    assert user.sandbox.total() == before


def test_expandable_segments_are_charged_by_their_mapped_pages(caller: Start) -> None:
    """PyTorch maps pages into one large reservation, and unmaps them, at either end."""
    user = caller(512 * MIB)
    place, step = reserve(user, 8 * GIB), 20 * MIB
    access = buffer(location(DEVICE) + struct.pack("<i", 3))
    fit = user.free_memory() // step
    for at in range(place, place + fit * step, step):
        handle = user.create(step)
        user.do("cuMemMap", at, step, 0, handle, 0)
        user.do("cuMemSetAccess", at, step, access, 1)
        user.do("cuMemRelease", handle)
    assert kinds(user.sandbox)["vmm"] == fit * step
    assert code(user, step) == OUT_OF_MEMORY
    user.do("cuMemUnmap", place, 10 * step)
    assert kinds(user.sandbox)["vmm"] == (fit - 10) * step
    user.do("cuMemMap", place, step, 0, user.create(step), 0)
    user.do("cuMemUnmap", place + 10 * step, (fit - 10) * step)
    assert kinds(user.sandbox)["vmm"] == step


def test_an_import_is_charged_to_its_maker(sandbox: Make, caller: Start, any_way: str) -> None:
    one = sandbox(1 * GIB)
    maker, guest = caller(one, way=any_way), caller(one, way=any_way)
    handle = maker.create(64 * MIB, handles=POSIX_FD)
    fd = maker.get("cuMemExportToShareableHandle", {"out": 4}, handle, POSIX_FD, 0)
    before = one.total()
    mine = guest.take_fd(maker.popen.pid, fd)
    there = guest.get("cuMemImportFromShareableHandle", OUT, mine, POSIX_FD)
    place = reserve(guest, 64 * MIB)
    guest.do("cuMemMap", place, 64 * MIB, 0, there, 0)
    guest.do("cuMemRelease", there)
    assert one.total() == before
    # The maker releases it while the guest has it mapped.
    maker.do("cuMemRelease", handle)
    maker.close_fd(fd)
    assert unowned(one) == 64 * MIB
    guest.do("cuMemUnmap", place, 64 * MIB)
    maker.free_memory()
    assert unowned(one) == 0
    assert "vmm" not in kinds(one)


def test_the_end_of_its_maker_does_not_give_back_open_memory(sandbox: Make, caller: Start) -> None:
    one = sandbox(1 * GIB)
    maker, guest = caller(one), caller(one)
    free = guest.free_memory() // PAGE * PAGE
    handle = maker.create(512 * MIB, handles=POSIX_FD)
    fd = maker.get("cuMemExportToShareableHandle", {"out": 4}, handle, POSIX_FD, 0)
    there = guest.get("cuMemImportFromShareableHandle", OUT, guest.take_fd(maker.popen.pid, fd), POSIX_FD)
    maker.kill()
    assert code(guest, free) == OUT_OF_MEMORY
    guest.do("cuMemRelease", there)
    guest.create(free)


def test_two_processes_share_the_limit_and_a_killed_one_gives_back(sandbox: Make, caller: Start) -> None:
    one = sandbox(1 * GIB)
    users = [caller(one), caller(one)]
    free = users[0].free_memory() // PAGE * PAGE
    users[0].create(free)
    assert code(users[1], PAGE) == OUT_OF_MEMORY
    users[0].kill()
    users[1].create(free)


def sparse_array(user: Program, side: int) -> int:
    """A sparse array of bytes, `side` by `side`. It takes no memory by itself."""
    shape = struct.pack("<QQQIII4x", side, side, 0, 1, 1, SPARSE)
    return user.get("cuArray3DCreate_v2", OUT, buffer(shape))


def region(array: int, handle: int, side: int, row: int = 0) -> dict[str, str]:
    """CUarrayMapInfo. Handle 0 unmaps."""
    level = struct.pack("<8I", 0, 0, 0, row, 0, side, side, 1)
    return buffer(
        struct.pack("<i4xQi4x", 0, array, 0)
        + level
        + struct.pack("<iiQQIIII", 1 if handle else 2, 0, handle, 0, 1, 0, 0, 0)
    )


def test_tiles_of_sparse_arrays_hold_their_memory(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    array = sparse_array(user, 1024)
    side = user.get("cuArrayGetSparseProperties", {"out": 64}, array) & 0xFFFFFFFF
    assert user.sandbox.total() == sum(kinds(user.sandbox).values()) - kinds(user.sandbox).get("array", 0)
    first, second = user.create(PAGE, tiles=1), user.create(PAGE, tiles=1)
    user.do("cuMemMapArrayAsync", region(array, first, side), 1, 0)
    user.do("cuMemRelease", first)
    assert kinds(user.sandbox)["vmm"] == 2 * PAGE
    # A mapping to other memory ends the first mapping.
    user.do("cuMemMapArrayAsync", region(array, second, side), 1, 0)
    assert kinds(user.sandbox)["vmm"] == PAGE
    user.do("cuMemRelease", second)
    assert kinds(user.sandbox)["vmm"] == PAGE
    assert user.code("cuMemMapArrayAsync", region(array, 0xDEAD, side), 1, 0) != SUCCESS
    user.do("cuMemMapArrayAsync", region(array, 0, side), 1, 0)
    assert "vmm" not in kinds(user.sandbox)
    # The end of the array does the same.
    third = user.create(PAGE, tiles=1)
    user.do("cuMemMapArrayAsync", region(array, third, side), 1, 0)
    user.do("cuMemRelease", third)
    assert kinds(user.sandbox)["vmm"] == PAGE
    user.do("cuArrayDestroy", array)
    assert "vmm" not in kinds(user.sandbox)


def test_each_device_has_its_own_limit(caller: Start) -> None:
    user = caller(1 * GIB, 256 * MIB, topology="2xT4-R580")
    user.create(512 * MIB)
    # The context is the first device's, the memory is the second's.
    handle = user.create(256 * MIB, number=1)
    assert code(user, PAGE, number=1) == OUT_OF_MEMORY
    assert (kinds(user.sandbox)["vmm"], kinds(user.sandbox, 1)["vmm"]) == (512 * MIB, 256 * MIB)
    user.do("cuMemRelease", handle)
    assert "vmm" not in kinds(user.sandbox, 1)
