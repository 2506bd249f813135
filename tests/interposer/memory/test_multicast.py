"""The CUDA interposer: multicast objects. Memory that is bound to one is charged, also without its handle."""

from __future__ import annotations

from typing import Any

from support import GIB, MIB

from ..calls import OUT, SUCCESS, Start, buffer, kinds

PAGE = 2 * MIB
SIZE = 64 * MIB
#: Cards that a switch connects.
SWITCHED: dict[str, Any] = {"driver": "R580", "gpus": [{"model": "H200", "count": 2, "multicast": True}]}


def test_bound_memory_is_charged_until_it_is_unbound(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, topology=SWITCHED, way=any_way)
    object_ = user.multicast(SIZE)
    assert "vmm" not in kinds(user.sandbox)
    for device in (0, 1):
        handle = user.create(SIZE, number=device)
        user.do("cuMulticastBindMem", object_, 0, handle, 0, SIZE, 0)
        user.do("cuMemRelease", handle)
        assert kinds(user.sandbox, device)["vmm"] == SIZE
    user.do("cuMulticastUnbind", object_, 0, 0, SIZE)
    assert "vmm" not in kinds(user.sandbox)
    assert kinds(user.sandbox, 1)["vmm"] == SIZE
    user.do("cuMulticastUnbind", object_, 1, 0, SIZE)
    assert "vmm" not in kinds(user.sandbox, 1)
    user.do("cuMemRelease", object_)
    assert user.sandbox.total() == sum(kinds(user.sandbox).values())


def test_memory_bound_by_its_address_is_charged_until_it_is_unbound(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, topology=SWITCHED, way=any_way)
    object_ = user.multicast(SIZE)
    place = user.mapped(user.create(SIZE), SIZE)
    user.do("cuMulticastBindAddr", object_, 0, place, SIZE, 0)
    user.do("cuMemUnmap", place, SIZE)
    assert kinds(user.sandbox)["vmm"] == SIZE
    user.do("cuMulticastUnbind", object_, 0, 0, SIZE)
    assert "vmm" not in kinds(user.sandbox)


def test_the_end_of_an_object_is_the_end_of_its_bindings(caller: Start) -> None:
    user = caller(1 * GIB, topology=SWITCHED)
    object_ = user.multicast(SIZE)
    handle = user.create(SIZE)
    user.do("cuMulticastBindMem", object_, 0, handle, 0, SIZE, 0)
    user.do("cuMemRelease", handle)
    # Like memory, it lives while it is mapped.
    place = user.mapped(object_, SIZE)
    assert kinds(user.sandbox)["vmm"] == SIZE
    user.do("cuMemUnmap", place, SIZE)
    assert "vmm" not in kinds(user.sandbox)


def test_parts_of_an_object_are_bound_and_unbound_by_themselves(caller: Start) -> None:
    user = caller(1 * GIB, topology=SWITCHED)
    object_ = user.multicast(SIZE)
    handles = [user.create(PAGE) for _ in range(2)]
    for at, handle in enumerate(handles):
        user.do("cuMulticastBindMem", object_, at * PAGE, handle, 0, PAGE, 0)
        user.do("cuMemRelease", handle)
    # The same memory is bound at two places. It lives until both are unbound.
    both = user.create(PAGE)
    for at in (2, 3):
        user.do("cuMulticastBindMem", object_, at * PAGE, both, 0, PAGE, 0)
    user.do("cuMemRelease", both)
    for at, left in enumerate((2, 1, 1, 0)):
        user.do("cuMulticastUnbind", object_, 0, at * PAGE, PAGE)
        assert kinds(user.sandbox).get("vmm", 0) == left * PAGE


def test_a_failed_call_changes_nothing(caller: Start) -> None:
    user = caller(1 * GIB, topology=SWITCHED)
    object_ = user.multicast(SIZE)
    handle, other = user.create(SIZE), user.create(SIZE)
    user.do("cuMulticastBindMem", object_, 0, handle, 0, SIZE, 0)
    assert user.code("cuMulticastBindMem", object_, 0, other, 0, SIZE, 0) != SUCCESS
    assert user.code("cuMulticastBindMem", object_, SIZE, other, 0, PAGE, 0) != SUCCESS
    assert user.code("cuMulticastBindMem", 0xDEAD, 0, other, 0, SIZE, 0) != SUCCESS
    assert user.code("cuMulticastBindAddr", object_, 0, 0x200000, PAGE, 0) != SUCCESS
    assert user.code("cuMulticastUnbind", object_, 1, 0, SIZE) != SUCCESS
    assert user.code("cuMulticastCreate", OUT, buffer(bytes(32))) != SUCCESS
    for each in (handle, other):
        user.do("cuMemRelease", each)
    assert kinds(user.sandbox)["vmm"] == SIZE
    user.do("cuMulticastUnbind", object_, 0, 0, SIZE)
    assert "vmm" not in kinds(user.sandbox)


def test_a_forked_child_has_no_bindings(caller: Start) -> None:
    user = caller(1 * GIB, topology=SWITCHED)
    object_ = user.multicast(SIZE)
    handle = user.create(SIZE)
    user.do("cuMulticastBindMem", object_, 0, handle, 0, SIZE, 0)
    user.do("cuMemRelease", handle)
    assert user.fork(["cuMulticastUnbind", object_, 0, 0, SIZE])[0][0] != SUCCESS
    assert kinds(user.sandbox)["vmm"] == SIZE
    user.do("cuMulticastUnbind", object_, 0, 0, SIZE)
    assert "vmm" not in kinds(user.sandbox)
