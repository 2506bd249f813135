"""The CUDA wrapper: memory of other APIs, imported. It is charged by its size."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from .calls import (
    OUT,
    OUT_OF_MEMORY,
    POSIX_FD,
    SUCCESS,
    Program,
    Start,
    allocation_properties,
    buffer,
    kinds,
    program,  # noqa: F401  (fixture)
    way,  # noqa: F401  (fixture)
)
from .conftest import GIB, MIB, Cell

Make = Callable[..., Cell]

OPAQUE_FD = 1


def description(fd: int, size: int) -> dict[str, str]:
    """CUDA_EXTERNAL_MEMORY_HANDLE_DESC."""
    return buffer(struct.pack("<i4xi12xQI64x4x", OPAQUE_FD, fd, size, 0))


def exported(user: Program, size: int) -> int:
    """A descriptor as Vulkan hands it out, of memory that is not in this cell's account."""
    handle = user.get("cuMemCreate", OUT, size, buffer(allocation_properties(handles=POSIX_FD)), 0)
    return user.get("cuMemExportToShareableHandle", {"out": 4}, handle, POSIX_FD, 0)


def test_an_import_is_charged_up_to_the_limit(cell: Make, program: Start, way: str) -> None:  # noqa: F811
    outside, one = cell(None), cell(1 * GIB - 512)
    owner, user = program(outside), program(one, way)
    fd = exported(owner, 512 * MIB)
    before = one.total()
    first = user.get("cuImportExternalMemory", OUT, description(user.take_fd(owner.popen.pid, fd), 512 * MIB))
    assert kinds(one)["external"] == 512 * MIB
    again = description(user.take_fd(owner.popen.pid, fd), 512 * MIB)
    assert user.code("cuImportExternalMemory", OUT, again) == OUT_OF_MEMORY
    assert one.total() == before + 512 * MIB
    user.do("cuDestroyExternalMemory", first)
    assert "external" not in kinds(one)
    # The refused one is the program's still.
    user.get("cuImportExternalMemory", OUT, again)
    assert kinds(one)["external"] == 512 * MIB


@pytest.mark.parametrize("size", [0, 512 * MIB, (1 << 64) - 1])
def test_a_failed_import_is_not_charged(cell: Make, program: Start, size: int) -> None:  # noqa: F811
    one = cell(None)
    user = program(one)
    before = one.total()
    assert user.code("cuImportExternalMemory", OUT, description(999, size)) != SUCCESS
    assert user.code("cuImportExternalMemory", OUT, None) != SUCCESS
    assert one.total() == before


def test_a_killed_process_gives_back_its_imports(cell: Make, program: Start) -> None:  # noqa: F811
    outside, one = cell(None), cell(1 * GIB)
    owner, user, other = program(outside), program(one), program(one)
    fd = user.take_fd(owner.popen.pid, exported(owner, 512 * MIB))
    user.get("cuImportExternalMemory", OUT, description(fd, 512 * MIB))
    free = other.free_memory()
    user.kill()
    assert other.free_memory() >= free + 512 * MIB
