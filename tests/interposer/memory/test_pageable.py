"""The CUDA interposer: memory of malloc on a card that can use it (HMM, ATS). Hints do not move it there."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from support import GIB, MIB

from ..calls import DEVICE, HOST, INVALID_VALUE, OUT, SUCCESS, Program, Start, buffer, location, value
from ..sandboxes import Make
from .storm_sandbox import Card

SIZE = 512 * MIB
LAST_PREFETCH, PREFERRED = 4, 2  # CUmem_range_attribute
SET_PREFERRED_LOCATION = 3  # CUmem_advise
PAGEABLE_MEMORY_ACCESS = 88
PER_THREAD = 2  # CU_STREAM_PER_THREAD


def card(pageable: bool, driver: str = "R615") -> dict[str, Any]:
    return {"driver": driver, "gpus": [{"model": "T4", "pageable": pageable}]}


def prefetches(user: Program, pointer: int) -> list[int]:
    """The result of each way to prefetch it to device 0."""
    place = location(DEVICE, 0)
    return [
        user.code("cuMemPrefetchAsync", pointer, SIZE, 0, 0),
        user.code("cuMemPrefetchAsync_v2", pointer, SIZE, value(place.hex()), 0, 0),
        user.code("cuMemAdvise", pointer, SIZE, SET_PREFERRED_LOCATION, 0),
        user.code("cuMemAdvise_v2", pointer, SIZE, SET_PREFERRED_LOCATION, value(place.hex())),
    ]


def test_memory_of_malloc_stays_with_the_host(caller: Start, any_way: str) -> None:
    user = caller(GIB, topology=card(True), way=any_way)
    pointer = user.malloc(SIZE)
    before = Card(user.sandbox).used()
    assert prefetches(user, pointer) == [SUCCESS] * 4
    assert Card(user.sandbox).used() == before
    assert user.get("cuDeviceGetAttribute", {"out": 4}, PAGEABLE_MEMORY_ACCESS, 0) == 1


@pytest.mark.parametrize("name", ["cuMemPrefetchBatchAsync", "cuMemDiscardAndPrefetchBatchAsync"])
def test_a_batch_with_memory_of_malloc_is_left_undone(caller: Start, name: str) -> None:
    user = caller(GIB, topology=card(True))
    managed, pointer = user.get("cuMemAllocManaged", OUT, 4 * MIB, 1), user.malloc(SIZE)

    def batch(*places: bytes) -> int:
        pointers, sizes = struct.pack("<QQ", managed, pointer), struct.pack("<QQ", 4 * MIB, SIZE)
        firsts = struct.pack("<QQ", 0, 1)[: 8 * len(places)]
        where = buffer(b"".join(places)), buffer(firsts), len(places)
        return user.code(name, buffer(pointers), buffer(sizes), 2, *where, 0, PER_THREAD)

    assert batch(location(DEVICE, 0)) == SUCCESS
    assert batch(location(HOST, 0), location(DEVICE, 0)) == SUCCESS
    # The driver has to move it to the host: the simulated one has no such function.
    assert batch(location(DEVICE, 0), location(HOST, 0)) != SUCCESS


def test_managed_memory_is_moved(sandbox: Make, caller: Start) -> None:
    user = caller(sandbox(GIB, topology=card(True)))
    managed = user.get("cuMemAllocManaged", OUT, SIZE, 1)
    assert prefetches(user, managed) == [SUCCESS] * 4
    for attribute in (LAST_PREFETCH, PREFERRED):
        assert user.get("cuMemRangeGetAttribute", {"out": 4}, 4, attribute, managed, SIZE) == 0


def test_the_driver_answers_for_the_host_and_for_other_cards(sandbox: Make, caller: Start) -> None:
    user = caller(sandbox(GIB, topology=card(False)))
    assert prefetches(user, user.malloc(SIZE)) == [INVALID_VALUE] * 4


def test_an_older_driver_moves_managed_memory_too(sandbox: Make, caller: Start) -> None:
    user = caller(sandbox(GIB, topology=card(True, "R470")))
    managed = user.get("cuMemAllocManaged", OUT, SIZE, 1)
    assert prefetches(user, managed) == [SUCCESS] * 4
    assert user.get("cuMemRangeGetAttribute", {"out": 4}, 4, LAST_PREFETCH, managed, SIZE) == 0
