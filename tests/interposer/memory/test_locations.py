"""The CUDA interposer: locations of memory. Memory on a part of a device (CUDA 13.4) is the device's."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from support import GIB, MIB

from ..calls import (
    HOST,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    Program,
    Start,
    allocation_node,
    allocation_properties,
    buffer,
    kinds,
    location,
    pool_properties,
)

#: Two cards, each with two domains.
DOMAINS: dict[str, Any] = {"driver": "R615", "gpus": [{"model": "H200", "count": 2, "locality_domains": 2}]}
LOCALITY_DOMAIN, INVISIBLE = 6, 5  # CUmemLocationType
#: Domain 1 of device 1, and of device 0.
ON_1, ON_0 = 1 | 1 << 8, 1 << 8
SIZE = 64 * MIB
ALLOC_NODE = 10
NOT_SUPPORTED = 801
SOME_NEWER_TYPE = 7


def create(user: Program, size: int, kind: int, number: int) -> int:
    return user.code("cuMemCreate", OUT, size, buffer(allocation_properties(kind, number)), 0)


def any_node(node: bytes) -> bytes:
    """CUgraphNodeParams of an allocating node."""
    return struct.pack("<i12x", ALLOC_NODE) + node.ljust(29 * 8, b"\0") + bytes(8)


def test_mappable_memory_of_a_part_is_its_devices(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, topology=DOMAINS, way=any_way)
    assert create(user, SIZE, LOCALITY_DOMAIN, ON_1) == SUCCESS
    assert kinds(user.sandbox, 1)["vmm"] == SIZE
    assert "vmm" not in kinds(user.sandbox, 0)
    assert create(user, 2 * GIB, LOCALITY_DOMAIN, ON_1) == OUT_OF_MEMORY
    assert kinds(user.sandbox, 1)["vmm"] == SIZE
    handle = user.create(SIZE, LOCALITY_DOMAIN, ON_0)
    assert kinds(user.sandbox, 0)["vmm"] == SIZE
    user.do("cuMemRelease", handle)
    assert "vmm" not in kinds(user.sandbox, 0)


def test_a_pool_of_a_part_is_its_devices(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, topology=DOMAINS, way=any_way, device=1)
    pool = user.create_pool(LOCALITY_DOMAIN, ON_1)
    pointer = user.get("cuMemAllocFromPoolAsync", OUT, SIZE, pool, 0)
    assert kinds(user.sandbox, 1)["pool"] == SIZE
    assert user.code("cuMemAllocFromPoolAsync", OUT, 2 * GIB, pool, 0) == OUT_OF_MEMORY
    user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuMemPoolDestroy", pool)
    assert "pool" not in kinds(user.sandbox, 1)


@pytest.mark.parametrize("name", ["cuMemGetDefaultMemPool", "cuMemGetMemPool"])
def test_a_pool_that_is_found_by_its_part_is_its_devices(caller: Start, name: str) -> None:
    user = caller(1 * GIB, topology=DOMAINS, device=0)
    # The context is device 0's, the pool is not.
    pool = user.get(name, OUT, buffer(location(LOCALITY_DOMAIN, ON_1)), 1)
    assert user.code("cuMemAllocFromPoolAsync", OUT, SIZE, pool, 0) == SUCCESS
    assert kinds(user.sandbox, 1)["pool"] == SIZE
    assert "pool" not in kinds(user.sandbox, 0)
    assert user.code("cuMemAllocFromPoolAsync", OUT, 2 * GIB, pool, 0) == OUT_OF_MEMORY


@pytest.mark.parametrize("place", [(1, 0), (LOCALITY_DOMAIN, ON_0)])
@pytest.mark.parametrize("name", ["cuGraphAddMemAllocNode", "cuGraphAddNode_v2", "cuGraphAddNode_v3"])
def test_a_graphs_memory_on_a_part_is_its_devices(
    caller: Start, any_way: str, name: str, place: tuple[int, int]
) -> None:
    user = caller(1 * GIB, topology=DOMAINS, way=any_way)

    def add(graph: int, size: int) -> None:
        node = allocation_node(size, *place)
        if name == "cuGraphAddMemAllocNode":
            user.do(name, OUT, graph, None, 0, buffer(node))
        else:
            user.do(name, OUT, graph, None, None, 0, buffer(any_node(node)))

    graphs = [user.get("cuGraphCreate", OUT, 0) for _ in range(2)]
    add(graphs[0], SIZE)
    add(graphs[1], 8 * GIB)
    small, large = (user.get("cuGraphInstantiateWithFlags", OUT, graph, 0) for graph in graphs)
    assert user.code("cuGraphLaunch", large, 0) == OUT_OF_MEMORY
    user.do("cuGraphLaunch", small, 0)
    assert kinds(user.sandbox, 0)["graph"] == SIZE


def test_memory_of_a_part_can_be_bound_to_multicast_objects(caller: Start) -> None:
    cards = {"model": "H200", "count": 2, "locality_domains": 2, "multicast": True}
    user = caller(1 * GIB, topology={"driver": "R615", "gpus": [cards]})
    object_ = user.get("cuMulticastCreate", OUT, buffer(struct.pack("<I4xQQQ", 2, SIZE, 0, 0)))
    for device in (0, 1):
        user.do("cuMulticastAddDevice", object_, device)
    handle = user.create(SIZE, LOCALITY_DOMAIN, ON_1)
    user.do("cuMulticastBindMem", object_, 0, handle, 0, SIZE, 0)
    user.do("cuMemRelease", handle)
    assert kinds(user.sandbox, 1)["vmm"] == SIZE
    user.do("cuMulticastUnbind", object_, 1, 0, SIZE)
    assert "vmm" not in kinds(user.sandbox, 1)


@pytest.mark.parametrize("kind", [SOME_NEWER_TYPE, INVISIBLE])
def test_an_unknown_kind_of_location_is_refused(caller: Start, kind: int) -> None:
    user = caller(1 * GIB, topology=DOMAINS)
    assert create(user, SIZE, kind, 0) == NOT_SUPPORTED
    assert user.code("cuMemPoolCreate", OUT, buffer(pool_properties(kind, 0))) == NOT_SUPPORTED
    for name in ("cuMemGetDefaultMemPool", "cuMemGetMemPool"):
        assert user.code(name, OUT, buffer(location(kind, 0)), 1) == NOT_SUPPORTED, name
    graph, node = user.get("cuGraphCreate", OUT, 0), allocation_node(SIZE, kind, 0)
    assert user.code("cuGraphAddMemAllocNode", OUT, graph, None, 0, buffer(node)) == NOT_SUPPORTED
    params = buffer(any_node(node))
    assert user.code("cuGraphAddNode", OUT, graph, None, 0, params) == NOT_SUPPORTED
    for name in ("cuGraphAddNode_v2", "cuGraphAddNode_v3"):
        assert user.code(name, OUT, graph, None, None, 0, params) == NOT_SUPPORTED, name
    assert create(user, SIZE, HOST, 0) == SUCCESS
    assert "vmm" not in kinds(user.sandbox)
