"""The CUDA interposer: arrays and mipmapped arrays, charged by their layout."""

from __future__ import annotations

import pytest

from support import GIB, MIB

from ..calls import OUT_OF_MEMORY, SUCCESS, Start, kinds
from .storm_sandbox import CONTEXT, TOPOLOGY, Card

FLOAT, BYTE, HALF, BC1 = 0x20, 0x01, 0x10, 0x91
LAYERED, CUBEMAP, SPARSE = 1, 4, 0x40


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((1024, 1024, 0, FLOAT, 4, 0), 16 * MIB),
        ((1 << 16, 0, 0, FLOAT, 4, 0), 1 * MIB),
        ((256, 256, 256, HALF, 2, 0), 64 * MIB),
        ((1024, 1024, 6, BYTE, 4, CUBEMAP), 24 * MIB),
        ((1024, 1024, 10, BYTE, 4, LAYERED), 40 * MIB),
        ((4096, 4096, 0, BC1, 4, 0), 8 * MIB),
        # At least 64 bytes a row and 8 rows, whatever is in them.
        ((1, 1 << 16, 0, BYTE, 1, 0), 4 * MIB),
        ((1, 1, 1 << 12, BYTE, 1, LAYERED), 2 * MIB),
    ],
)
def test_arrays_are_charged_by_their_layout(
    caller: Start, way: str, shape: tuple[int, ...], size: int
) -> None:
    user = caller(size, way=way)
    result, array = user.array(*shape)
    assert result == SUCCESS
    assert user.sandbox.total() == size
    assert user.array(*shape)[0] == OUT_OF_MEMORY
    assert user.array_destroy(array) == SUCCESS
    assert user.sandbox.total() == 0


def test_narrow_arrays_do_not_pass_the_limit(caller: Start) -> None:
    user = caller(CONTEXT + 64 * MIB, topology=TOPOLOGY)
    assert user.array(1, 131072, 16, BYTE, 1, LAYERED)[0] == OUT_OF_MEMORY  # 2 MiB of elements, in 128 MiB
    while user.array(1, 131072, 0, BYTE, 1, 0)[0] == SUCCESS:
        assert Card(user.sandbox).used() <= CONTEXT + 64 * MIB
    assert Card(user.sandbox).used() == CONTEXT + 64 * MIB


@pytest.mark.parametrize("name", ["cuArrayCreate", "cuArrayCreate_v2"])
def test_flat_arrays_are_charged_in_both_versions(caller: Start, name: str) -> None:
    user = caller(4 * MIB)
    result, array = user.flat_array(name, 1024, 1024, FLOAT, 1)
    assert result == SUCCESS
    assert kinds(user.sandbox) == {"array": 4 * MIB}
    assert user.flat_array(name, 1, 1, FLOAT, 1)[0] == OUT_OF_MEMORY
    assert user.array_destroy(array) == SUCCESS
    for shape in (
        (1024, 1024, 0, FLOAT, 1, 0),
        (256, 256, 16, FLOAT, 1, 0),
        (256, 256, 16, FLOAT, 1, LAYERED),
    ):
        result, array = user.array_v1(*shape)
        assert result == SUCCESS
        assert user.sandbox.total() == 4 * MIB
        assert user.array_v1(1, 1, 1, FLOAT, 1, 0)[0] == OUT_OF_MEMORY
        assert user.array_destroy(array) == SUCCESS
        assert user.sandbox.total() == 0
    result, _ = user.array_v1(256, 256, 16, FLOAT, 1, SPARSE)
    assert (result, user.sandbox.total()) == (SUCCESS, 0)


def test_a_mipmap_is_charged_with_all_its_levels(caller: Start, way: str) -> None:
    user = caller(1 * GIB, way=way)
    result, mipmap = user.mipmap(3, 1024, 1024, 0, FLOAT, 1, 0)
    assert result == SUCCESS
    assert kinds(user.sandbox) == {"array": 6 * MIB}
    user.sandbox.set_limit(6 * MIB)
    assert user.mipmap(1, 1024, 1024, 0, FLOAT, 1, 0)[0] == OUT_OF_MEMORY
    assert user.mipmap_destroy(mipmap) == SUCCESS
    assert user.info() == [SUCCESS, 6 * MIB, 6 * MIB]
    assert user.sandbox.total() == 0


def test_a_sparse_array_takes_nothing_by_itself(caller: Start, way: str) -> None:
    user = caller(MIB, way=way)
    result, array = user.array(4096, 4096, 0, FLOAT, 4, SPARSE)
    assert result == SUCCESS
    assert user.sandbox.total() == 0
    assert user.array_destroy(array) == SUCCESS
