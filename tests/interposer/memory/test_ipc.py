"""The CUDA interposer: memory of one process that others open, and events that they share. The maker is
charged for the memory. After the maker's end it stays in the account while any process has it open. Events
take no memory."""

from __future__ import annotations

import time

import pytest

from support import GIB, MIB

from ..calls import (
    OUT,
    OUT_OF_MEMORY,
    POSIX_FD,
    SUCCESS,
    Start,
    kinds,
    unowned,
    value,
)
from ..sandboxes import Make

HANDLE = {"out": 64}
LAZY = 1
#: CU_EVENT_DISABLE_TIMING and CU_EVENT_INTERPROCESS.
SHARED_EVENT = 2 | 4


@pytest.mark.parametrize("name", ["cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"])
def test_a_process_that_opens_memory_is_not_charged(
    sandbox: Make, caller: Start, any_way: str, name: str
) -> None:
    one = sandbox(1 * GIB)
    maker, guest = caller(one, way=any_way), caller(one, way=any_way)
    pointer = maker.get("cuMemAlloc_v2", OUT, 256 * MIB)
    handle = maker.bytes("cuIpcGetMemHandle", HANDLE, pointer)
    before = one.total()
    there = guest.get(name, OUT, value(handle), LAZY)
    assert one.total() == before
    # Opened again, it has the same address and needs one close more.
    assert guest.get(name, OUT, value(handle), LAZY) == there
    guest.do("cuIpcCloseMemHandle", there)
    maker.kill()
    guest.free_memory()
    assert unowned(one) == 256 * MIB
    guest.do("cuIpcCloseMemHandle", there)
    guest.free_memory()
    assert unowned(one) == 0


def test_memory_that_is_freed_while_it_is_open_stays_until_the_last_close(
    sandbox: Make, caller: Start
) -> None:
    one = sandbox(1 * GIB)
    maker, *guests = [caller(one) for _ in range(3)]
    pointer = maker.get("cuMemAlloc_v2", OUT, 256 * MIB)
    handle = maker.bytes("cuIpcGetMemHandle", HANDLE, pointer)
    there = [guest.get("cuIpcOpenMemHandle_v2", OUT, value(handle), LAZY) for guest in guests]
    maker.do("cuMemFree_v2", pointer)
    assert unowned(one) == 256 * MIB
    free = maker.free_memory()
    assert maker.code("cuMemAlloc_v2", OUT, free + 1) == OUT_OF_MEMORY
    guests[0].do("cuIpcCloseMemHandle", there[0])
    assert maker.free_memory() == free
    guests[1].do("cuIpcCloseMemHandle", there[1])
    assert maker.free_memory() == free + 256 * MIB
    assert unowned(one) == 0


def test_a_killed_guest_has_closed_all(sandbox: Make, caller: Start) -> None:
    one = sandbox(1 * GIB)
    maker, guest = caller(one), caller(one)
    pointer = maker.get("cuMemAlloc_v2", OUT, 256 * MIB)
    handle = maker.bytes("cuIpcGetMemHandle", HANDLE, pointer)
    guest.get("cuIpcOpenMemHandle_v2", OUT, value(handle), LAZY)
    maker.do("cuMemFree_v2", pointer)
    guest.kill()
    maker.free_memory()
    assert set(kinds(one)) <= {"overhead"}


def test_memory_that_no_process_has_opened_comes_back_at_once(sandbox: Make, caller: Start) -> None:
    one = sandbox(1 * GIB)
    maker, other = caller(one), caller(one)
    pointers = [maker.get("cuMemAlloc_v2", OUT, 128 * MIB) for _ in range(2)]
    for pointer in pointers:
        maker.bytes("cuIpcGetMemHandle", HANDLE, pointer)
    maker.do("cuMemFree_v2", pointers[0])
    assert kinds(one)["linear"] == 128 * MIB
    assert unowned(one) == 0
    maker.kill()
    other.free_memory()
    assert set(kinds(one)) <= {"overhead"}


def test_a_failed_call_changes_nothing(sandbox: Make, caller: Start) -> None:
    one = sandbox(1 * GIB)
    maker, guest = caller(one), caller(one)
    pointer = maker.get("cuMemAlloc_v2", OUT, 128 * MIB)
    handle = maker.bytes("cuIpcGetMemHandle", HANDLE, pointer)
    assert maker.code("cuIpcGetMemHandle", HANDLE, 0x10000) != SUCCESS
    assert guest.code("cuIpcOpenMemHandle_v2", OUT, value("ab" * 64), LAZY) != SUCCESS
    assert guest.code("cuIpcCloseMemHandle", 0x10000) != SUCCESS
    assert guest.code("cuIpcOpenMemHandle_v2", OUT, value(handle), 99) != SUCCESS
    # So nothing is open, and the memory ends with its maker.
    maker.do("cuMemFree_v2", pointer)
    assert unowned(one) == 0
    assert "linear" not in kinds(one)


@pytest.mark.parametrize("end", ["cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2"])
def test_the_end_of_a_context_closes_its_open_memory(sandbox: Make, caller: Start, end: str) -> None:
    one = sandbox(1 * GIB)
    maker, guest = caller(one), caller(one)
    pointer = maker.get("cuMemAlloc_v2", OUT, 256 * MIB)
    handle = maker.bytes("cuIpcGetMemHandle", HANDLE, pointer)
    guest.get("cuIpcOpenMemHandle_v2", OUT, value(handle), LAZY)
    maker.do("cuMemFree_v2", pointer)
    assert unowned(one) == 256 * MIB
    guest.do(end, 0)
    maker.free_memory()
    assert unowned(one) == 0


def test_a_wait_for_another_processs_event_works_and_takes_no_memory(
    sandbox: Make, caller: Start, any_way: str
) -> None:
    one = sandbox(1 * GIB)
    maker, guest = caller(one, way=any_way), caller(one, way=any_way)
    kernel = maker.kernel("busy_300ms")
    before = one.total()
    event = maker.get("cuEventCreate", OUT, SHARED_EVENT)
    there = guest.get("cuIpcOpenEventHandle", OUT, value(maker.bytes("cuIpcGetEventHandle", HANDLE, event)))
    begun = time.monotonic()
    maker.launch(kernel)
    maker.do("cuEventRecord", event, 0)
    guest.do("cuEventSynchronize", there)
    assert time.monotonic() - begun > 0.3
    maker.do("cuEventQuery", event)
    guest.do("cuEventDestroy_v2", there)
    guest.free_memory()
    assert one.total() == before


def test_an_imported_pool_is_charged_to_its_maker(sandbox: Make, caller: Start) -> None:
    one = sandbox(1 * GIB)
    maker, guest = caller(one), caller(one)
    pool = maker.create_pool(handles=POSIX_FD)
    pointer = maker.get("cuMemAllocFromPoolAsync", OUT, 64 * MIB, pool, 0)
    fd = maker.get("cuMemPoolExportToShareableHandle", {"out": 4}, pool, POSIX_FD, 0)
    data = maker.bytes("cuMemPoolExportPointer", {"out": 64}, pointer)
    before = one.total()
    mine = guest.take_fd(maker.popen.pid, fd)
    imported = guest.get("cuMemPoolImportFromShareableHandle", OUT, mine, POSIX_FD, 0)
    there = guest.get("cuMemPoolImportPointer", OUT, imported, {"in": data})
    assert one.total() == before
    maker.kill()
    # The guest still has it open, so it stays in the account.
    assert guest.free_memory() <= 1 * GIB - 64 * MIB
    guest.do("cuMemFreeAsync", there, 0)
    guest.do("cuMemPoolDestroy", imported)
    assert guest.free_memory() > 1 * GIB - 64 * MIB - (before - 64 * MIB)
