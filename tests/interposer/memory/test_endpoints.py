"""The CUDA interposer: logical endpoints (CUDA 13.3). Bound memory is charged, even without its handle."""

from __future__ import annotations

import struct
from typing import Any

from support import GIB, MIB

from ..calls import SUCCESS, Program, Start, buffer, kinds, unowned
from ..sandboxes import Make

SIZE = 64 * MIB
UNICAST, MULTICAST = 1, 2  # CUlogicalEndpointType
FABRIC = 1  # CUlogicalEndpointIpcHandleType
CARDS: dict[str, Any] = {"driver": "R615", "gpus": [{"model": "H200", "count": 2, "multicast": True}]}


def endpoint(user: Program, kind: int = UNICAST, number: int = 0) -> int:
    """An endpoint of SIZE bytes that can be exported: of one device, or for that many devices."""
    id_ = user.get("cuLogicalEndpointIdReserve", {"out": 4}, 1)
    user.do("cuLogicalEndpointCreate", id_, buffer(struct.pack("<iiQII", kind, number, SIZE, FABRIC, 0)))
    if kind == MULTICAST:
        for device in range(number):
            user.do("cuLogicalEndpointAddDevice", id_, device)
    return id_


def test_bound_memory_is_charged_until_it_is_unbound(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, topology=CARDS, way=any_way)
    id_ = endpoint(user, MULTICAST, 2)
    for device in (0, 1):
        handle = user.create(SIZE, number=device)
        user.do("cuLogicalEndpointBindMem", id_, device, 0, handle, 0, SIZE, 0)
        user.do("cuMemRelease", handle)
        assert kinds(user.sandbox, device)["vmm"] == SIZE
    # Memory that the driver does not unbind stays charged.
    assert user.code("cuLogicalEndpointUnbind", id_, 0, 0, 2 * SIZE) != SUCCESS
    assert kinds(user.sandbox)["vmm"] == SIZE
    user.do("cuLogicalEndpointUnbind", id_, 0, 0, SIZE)
    assert "vmm" not in kinds(user.sandbox)
    assert kinds(user.sandbox, 1)["vmm"] == SIZE
    user.do("cuLogicalEndpointDestroy", id_)
    assert "vmm" not in kinds(user.sandbox, 1)
    assert user.sandbox.total() == sum(kinds(user.sandbox).values())


def test_memory_bound_by_its_address_is_charged_until_it_is_unbound(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, topology=CARDS, way=any_way)
    id_ = endpoint(user)
    place = user.mapped(user.create(SIZE), SIZE)
    user.do("cuLogicalEndpointBindAddr", id_, 0, 0, place, SIZE, 0)
    user.do("cuMemUnmap", place, SIZE)
    assert kinds(user.sandbox)["vmm"] == SIZE
    user.do("cuLogicalEndpointUnbind", id_, 0, 0, SIZE)
    assert "vmm" not in kinds(user.sandbox)


def test_a_binding_that_the_driver_refuses_holds_nothing(caller: Start) -> None:
    user = caller(1 * GIB, topology=CARDS)
    id_ = endpoint(user)
    handle = user.create(SIZE)
    assert user.code("cuLogicalEndpointBindMem", id_, 0, SIZE, handle, 0, SIZE, 0) != SUCCESS
    user.do("cuMemRelease", handle)
    assert "vmm" not in kinds(user.sandbox)


def test_memory_that_an_import_may_reach_outlives_its_maker_in_the_account(
    sandbox: Make, caller: Start
) -> None:
    one = sandbox(1 * GIB, topology=CARDS)
    maker, other = caller(one), caller(one)
    id_ = endpoint(maker)
    handle = maker.create(SIZE)
    maker.do("cuLogicalEndpointBindMem", id_, 0, 0, handle, 0, SIZE, 0)
    shared = maker.bytes("cuLogicalEndpointExport", {"out": 64}, id_, FABRIC)
    opened = other.get("cuLogicalEndpointIdReserve", {"out": 4}, 1)
    other.do("cuLogicalEndpointImport", opened, {"in": shared}, FABRIC)
    maker.kill()
    other.free_memory()
    assert unowned(one) == SIZE
    other.do("cuLogicalEndpointDestroy", opened)
    other.free_memory()
    assert unowned(one) == 0
