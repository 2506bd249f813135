"""The CUDA interposer: imported memory of other APIs is charged while it has a handle or a mapping."""

from __future__ import annotations

import struct

import pytest

from support import GIB, MIB

from ..calls import (
    OUT,
    OUT_OF_MEMORY,
    POSIX_FD,
    SUCCESS,
    Program,
    Start,
    buffer,
    kinds,
)
from ..sandboxes import Make

OPAQUE_FD = 1


def description(fd: int, size: int) -> dict[str, str]:
    """CUDA_EXTERNAL_MEMORY_HANDLE_DESC."""
    return buffer(struct.pack("<i4xi12xQI64x4x", OPAQUE_FD, fd, size, 0))


def exported(user: Program, size: int) -> int:
    """A descriptor as Vulkan exports it, of memory that is not in this sandbox's account."""
    handle = user.create(size, handles=POSIX_FD)
    return user.get("cuMemExportToShareableHandle", {"out": 4}, handle, POSIX_FD, 0)


def imported(user: Program, owner: Program, size: int) -> int:
    """The handle of memory of that size, which the owner has made for this program."""
    fd = user.take_fd(owner.popen.pid, exported(owner, size))
    return user.get("cuImportExternalMemory", OUT, description(fd, size))


def part(offset: int, size: int) -> dict[str, str]:
    """CUDA_EXTERNAL_MEMORY_BUFFER_DESC."""
    return buffer(struct.pack("<QQI64x4x", offset, size, 0))


def picture(side: int) -> dict[str, str]:
    """CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC: one level of bytes."""
    shape = struct.pack("<QQQIII4x", side, side, 0, 1, 1, 0)
    return buffer(struct.pack("<Q", 0) + shape + struct.pack("<I64x4x", 1))


def test_an_import_is_charged_up_to_the_limit(sandbox: Make, caller: Start, any_way: str) -> None:
    outside, one = sandbox(None), sandbox(1 * GIB - 512)
    owner, user = caller(outside), caller(one, way=any_way)
    fd = exported(owner, 512 * MIB)
    before = one.total()
    first = user.get("cuImportExternalMemory", OUT, description(user.take_fd(owner.popen.pid, fd), 512 * MIB))
    assert kinds(one)["external"] == 512 * MIB
    again = description(user.take_fd(owner.popen.pid, fd), 512 * MIB)
    assert user.code("cuImportExternalMemory", OUT, again) == OUT_OF_MEMORY
    assert one.total() == before + 512 * MIB
    user.do("cuDestroyExternalMemory", first)
    assert "external" not in kinds(one)
    # The program still has the refused descriptor.
    user.get("cuImportExternalMemory", OUT, again)
    assert kinds(one)["external"] == 512 * MIB


@pytest.mark.parametrize("size", [0, 512 * MIB, (1 << 64) - 1])
def test_a_failed_import_is_not_charged(caller: Start, size: int) -> None:
    user = caller(None)
    before = user.sandbox.total()
    assert user.code("cuImportExternalMemory", OUT, description(999, size)) != SUCCESS
    assert user.code("cuImportExternalMemory", OUT, None) != SUCCESS
    assert user.sandbox.total() == before


def test_a_mapping_holds_the_memory_after_its_handle(sandbox: Make, caller: Start, any_way: str) -> None:
    outside, one = sandbox(None), sandbox(1 * GIB)
    owner, user = caller(outside), caller(one, way=any_way)
    memory = imported(user, owner, 512 * MIB)
    buffers = [user.get("cuExternalMemoryGetMappedBuffer", OUT, memory, part(0, MIB)) for _ in range(2)]
    mipmap = user.get("cuExternalMemoryGetMappedMipmappedArray", OUT, memory, picture(1024))
    assert kinds(one)["external"] == 512 * MIB
    user.do("cuDestroyExternalMemory", memory)
    assert kinds(one)["external"] == 512 * MIB
    user.do("cuMemFree_v2", buffers[0])
    user.do("cuMipmappedArrayDestroy", mipmap)
    assert kinds(one)["external"] == 512 * MIB
    free = user.free_memory()
    assert user.code("cuMemAlloc_v2", OUT, free + 1) == OUT_OF_MEMORY
    user.do("cuMemFree_v2", buffers[1])
    assert "external" not in kinds(one)
    user.get("cuMemAlloc_v2", OUT, free + 512 * MIB)


def test_a_mapping_changes_nothing_while_there_is_the_handle(sandbox: Make, caller: Start) -> None:
    outside, one = sandbox(None), sandbox(1 * GIB)
    owner, user = caller(outside), caller(one)
    memory = imported(user, owner, 512 * MIB)
    user.do("cuMemFree_v2", user.get("cuExternalMemoryGetMappedBuffer", OUT, memory, part(0, MIB)))
    # A mapping that the driver refuses changes nothing, and neither does an unknown handle.
    beyond = part(512 * MIB, MIB)
    assert user.code("cuExternalMemoryGetMappedBuffer", OUT, memory, beyond) != SUCCESS
    assert user.code("cuExternalMemoryGetMappedMipmappedArray", OUT, memory, picture(1 << 16)) != SUCCESS
    assert kinds(one)["external"] == 512 * MIB
    user.do("cuDestroyExternalMemory", memory)
    assert "external" not in kinds(one)
    assert user.code("cuExternalMemoryGetMappedBuffer", OUT, None, part(0, MIB)) != SUCCESS
    assert one.total() == sum(kinds(one).values())


def test_a_handle_of_the_same_value_is_another_import(sandbox: Make, caller: Start) -> None:
    outside, one = sandbox(None), sandbox(1 * GIB)
    owner, user = caller(outside), caller(one)
    buffers = []
    for _ in range(8):  # The driver reuses the values of destroyed handles.
        memory = imported(user, owner, 64 * MIB)
        buffers.append(user.get("cuExternalMemoryGetMappedBuffer", OUT, memory, part(0, MIB)))
        user.do("cuDestroyExternalMemory", memory)
        assert kinds(one)["external"] == len(buffers) * 64 * MIB
    for pointer in buffers:
        assert kinds(one)["external"] == len(buffers) * 64 * MIB
        user.do("cuMemFree_v2", pointer)
        buffers = buffers[1:]
    assert "external" not in kinds(one)


def test_the_end_of_its_context_ends_a_mapping(sandbox: Make, caller: Start) -> None:
    outside, one = sandbox(None), sandbox(1 * GIB)
    owner, user = caller(outside), caller(one)
    memory = imported(user, owner, 512 * MIB)
    context = user.get("cuCtxCreate_v2", OUT, 0, 0)
    user.get("cuExternalMemoryGetMappedBuffer", OUT, memory, part(0, MIB))
    user.do("cuDestroyExternalMemory", memory)
    assert kinds(one)["external"] == 512 * MIB
    user.do("cuCtxDestroy_v2", context)
    assert "external" not in kinds(one)


def test_a_killed_process_gives_back_its_imports(sandbox: Make, caller: Start) -> None:
    outside, one = sandbox(None), sandbox(1 * GIB)
    owner, user, other = caller(outside), caller(one), caller(one)
    fd = user.take_fd(owner.popen.pid, exported(owner, 512 * MIB))
    user.get("cuImportExternalMemory", OUT, description(fd, 512 * MIB))
    free = other.free_memory()
    user.kill()
    assert other.free_memory() >= free + 512 * MIB
