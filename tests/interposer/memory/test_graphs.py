"""The CUDA interposer: memory that graphs allocate. The account holds what the driver reserves for it."""

from __future__ import annotations

import struct

import pytest

from support import GIB, MIB

from ..calls import (
    OUT,
    OUT_OF_MEMORY,
    RELEASE_THRESHOLD,
    SUCCESS,
    Program,
    Start,
    allocation_node,
    buffer,
    kinds,
)
from ..sandboxes import Make

PAGE = 2 * MIB
AUTO_FREE, UPLOAD = 1, 2
ALLOC_NODE = 10
RESERVED = 2  # CUgraphMem_attribute
GLOBAL, RELAXED = 0, 2  # CUstreamCaptureMode


def new_graph(user: Program) -> int:
    return user.get("cuGraphCreate", OUT, 0)


def add_alloc(user: Program, graph: int, size: int, device: int = 0) -> tuple[int, int]:
    """An allocating node, and the address of its memory."""
    params = buffer(allocation_node(size, number=device))
    result, node, after = user.call("cuGraphAddMemAllocNode", OUT, graph, None, 0, params)
    assert result == SUCCESS
    return int.from_bytes(bytes.fromhex(node), "little"), struct.unpack("<Q", bytes.fromhex(after)[-8:])[0]


def add_free(user: Program, graph: int, pointer: int, after: int) -> int:
    return user.get("cuGraphAddMemFreeNode", OUT, graph, buffer(struct.pack("<Q", after)), 1, pointer)


def alloc_and_free(user: Program, size: int) -> int:
    """A graph that allocates and frees."""
    graph = new_graph(user)
    node, pointer = add_alloc(user, graph, size)
    add_free(user, graph, pointer, node)
    return graph


def executable(user: Program, graph: int, flags: int = 0) -> int:
    return user.get("cuGraphInstantiateWithFlags", OUT, graph, flags)


def reserved(user: Program) -> int:
    return user.get("cuDeviceGetGraphMemAttribute", 0, RESERVED, OUT)


def test_a_graph_takes_memory_when_it_runs_and_keeps_it_until_it_is_trimmed(
    caller: Start, any_way: str
) -> None:
    user = caller(1 * GIB, way=any_way)
    graph = alloc_and_free(user, 64 * MIB)
    exec_ = executable(user, graph)
    assert "graph" not in kinds(user.sandbox)
    for _ in range(3):
        user.do("cuGraphLaunch", exec_, 0)
        assert kinds(user.sandbox)["graph"] == reserved(user) == 64 * MIB
    user.do("cuCtxSynchronize")
    user.do("cuGraphExecDestroy", exec_)
    user.do("cuGraphDestroy", graph)
    assert kinds(user.sandbox)["graph"] == reserved(user)
    user.do("cuDeviceGraphMemTrim", 0)
    assert "graph" not in kinds(user.sandbox)
    assert user.sandbox.total() == sum(kinds(user.sandbox).values())


def test_a_launch_that_does_not_fit_is_refused_and_the_program_goes_on(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    free = user.free_memory() // PAGE * PAGE
    exec_ = executable(user, alloc_and_free(user, free))
    taken = user.get("cuMemAlloc_v2", OUT, PAGE)
    before = user.sandbox.total()
    for name in ("cuGraphLaunch", "cuGraphUpload"):
        assert user.code(name, exec_, 0) == OUT_OF_MEMORY
        assert user.sandbox.total() == before
    user.do("cuMemFree_v2", taken)
    user.do("cuGraphLaunch", exec_, 0)
    assert kinds(user.sandbox)["graph"] == free
    # The graph has its memory and runs on, although the limit is reached.
    user.do("cuGraphLaunch", exec_, 0)
    assert user.sandbox.total() <= 1 * GIB
    # Memory that it keeps gives way to other allocations.
    user.do("cuCtxSynchronize")
    user.get("cuMemAlloc_v2", OUT, free)
    assert "graph" not in kinds(user.sandbox)
    assert user.code("cuGraphLaunch", exec_, 0) == OUT_OF_MEMORY


def test_graphs_one_after_the_other_share_reserved_memory(caller: Start) -> None:
    user = caller(1 * GIB)
    free = user.free_memory() // PAGE * PAGE
    execs = [executable(user, alloc_and_free(user, free)) for _ in range(3)]
    for exec_ in execs * 2:
        user.do("cuGraphLaunch", exec_, 0)
        user.do("cuCtxSynchronize")
        assert kinds(user.sandbox)["graph"] == free


def test_an_upload_takes_the_memory(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    exec_ = executable(user, alloc_and_free(user, 64 * MIB))
    user.do("cuGraphUpload", exec_, 0)
    assert kinds(user.sandbox)["graph"] == 64 * MIB


def test_an_upload_at_instantiation_is_counted_and_refused(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    free = user.free_memory() // PAGE * PAGE
    params = buffer(struct.pack("<QQQi4x", UPLOAD, 0, 0, 0))
    user.get("cuGraphInstantiateWithParams", OUT, alloc_and_free(user, 64 * MIB), params)
    assert kinds(user.sandbox)["graph"] == 64 * MIB
    large = alloc_and_free(user, free + PAGE)
    assert user.code("cuGraphInstantiateWithParams", OUT, large, params) == OUT_OF_MEMORY
    assert user.sandbox.total() == sum(kinds(user.sandbox).values())


@pytest.mark.parametrize(
    "name", ["cuGraphInstantiate", "cuGraphInstantiate_v2", "cuGraphInstantiateWithParams"]
)
def test_every_way_to_instantiate_is_held_to_the_limit(caller: Start, name: str) -> None:
    user = caller(1 * GIB)
    free = user.free_memory() // PAGE * PAGE
    more = [buffer(bytes(32))] if name.endswith("Params") else [None, None, 0]
    fits, not_ = (user.get(name, OUT, alloc_and_free(user, size), *more) for size in (free, free + PAGE))
    assert user.code("cuGraphLaunch", not_, 0) == OUT_OF_MEMORY
    user.do("cuGraphLaunch", fits, 0)
    assert kinds(user.sandbox)["graph"] == free


def test_nodes_of_the_generic_call_are_charged(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    free = user.free_memory() // PAGE * PAGE
    node = struct.pack("<i12x", ALLOC_NODE) + allocation_node(free + PAGE)
    params = buffer(node.ljust(256, b"\0"))
    for name, edges in (("cuGraphAddNode", []), ("cuGraphAddNode_v2", [None])):
        graph = new_graph(user)
        user.do(name, OUT, graph, None, *edges, 0, params)
        assert user.code("cuGraphLaunch", executable(user, graph), 0) == OUT_OF_MEMORY
        assert "graph" not in kinds(user.sandbox)


def test_memory_that_a_graph_leaves_allocated_is_freed_outside(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    for free in ("cuMemFree_v2", "cuMemFreeAsync"):
        graph = new_graph(user)
        pointer = add_alloc(user, graph, 64 * MIB)[1]
        exec_ = executable(user, graph)
        user.do("cuGraphLaunch", exec_, 0)
        user.do("cuDeviceGraphMemTrim", 0)
        assert kinds(user.sandbox)["graph"] == 64 * MIB
        user.do(free, pointer, 0)
        user.do("cuCtxSynchronize")
        assert kinds(user.sandbox).get("graph", 0) == reserved(user)
        user.do("cuDeviceGraphMemTrim", 0)
        assert "graph" not in kinds(user.sandbox)


def busy_graph(user: Program, size: int) -> int:
    """An executable graph that allocates, is busy for half a second, and frees."""
    kernel = user.kernel("busy_500ms")
    stream = user.get("cuStreamCreate", OUT, 1)
    user.do("cuStreamBeginCapture_v2", stream, RELAXED)
    pointer = user.get("cuMemAllocAsync", OUT, size, stream)
    user.launch(kernel, stream)
    user.do("cuMemFreeAsync", pointer, stream)
    return executable(user, user.get("cuStreamEndCapture", stream, OUT))


def test_graphs_that_run_at_once_need_memory_each(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    free = user.free_memory() // PAGE * PAGE
    streams = [user.get("cuStreamCreate", OUT, 1) for _ in range(2)]
    execs = [busy_graph(user, free) for _ in range(2)]
    # One after the other they share the memory.
    for exec_, stream in zip(execs, streams, strict=True):
        user.do("cuGraphLaunch", exec_, stream)
        user.do("cuCtxSynchronize")
    assert kinds(user.sandbox)["graph"] == free
    # Both at once would take more than the limit: an earlier launch's memory says nothing of this one's.
    user.do("cuGraphLaunch", execs[0], streams[0])
    assert user.code("cuGraphLaunch", execs[1], streams[1]) == OUT_OF_MEMORY
    assert user.sandbox.total() <= 1 * GIB
    # In the stream of the first it runs after it, and shares again.
    user.do("cuCtxSynchronize")
    user.do("cuGraphLaunch", execs[1], streams[0])
    user.do("cuGraphLaunch", execs[1], streams[0])
    assert kinds(user.sandbox)["graph"] == free


def test_a_graph_has_its_memory_in_the_stream_of_its_upload(caller: Start, any_way: str) -> None:
    """The stream may be the thread's own. Another graph with the same memory runs in it before or after."""
    user = caller(1 * GIB, way=any_way)
    params = buffer(struct.pack("<QQQi4x", UPLOAD, 0, 0, 0))
    exec_ = user.get("cuGraphInstantiateWithParams", OUT, alloc_and_free(user, 64 * MIB), params)
    user.do("cuGraphLaunch", busy_graph(user, 64 * MIB), 0)
    user.get("cuMemAlloc_v2", OUT, user.free_memory() // PAGE * PAGE)
    # Nothing is left, and the memory that the other runs in cannot be trimmed.
    user.do("cuGraphLaunch", exec_, 0)
    assert kinds(user.sandbox)["graph"] == 64 * MIB


def test_graphs_that_have_memory_each_run_at_once(caller: Start) -> None:
    user = caller(1 * GIB)
    half = user.free_memory() // 2 // PAGE * PAGE
    streams = [user.get("cuStreamCreate", OUT, 1) for _ in range(2)]
    execs = [busy_graph(user, half) for _ in range(2)]
    for _ in range(2):
        for exec_, stream in zip(execs, streams, strict=True):
            user.do("cuGraphLaunch", exec_, stream)
            assert user.sandbox.total() <= 1 * GIB
    assert kinds(user.sandbox)["graph"] == 2 * half
    assert user.code("cuMemAlloc_v2", OUT, half) == OUT_OF_MEMORY


def test_memory_that_a_graph_leaves_allocated_is_not_free_for_others(caller: Start) -> None:
    user = caller(1 * GIB)
    free = user.free_memory() // PAGE * PAGE
    frees = executable(user, alloc_and_free(user, free))
    graph = new_graph(user)
    pointer = add_alloc(user, graph, free)[1]
    leaves = executable(user, graph)
    for _ in range(2):
        user.do("cuGraphLaunch", frees, 0)
        user.do("cuGraphLaunch", leaves, 0)
        assert user.code("cuGraphLaunch", frees, 0) == OUT_OF_MEMORY
        assert user.sandbox.total() <= 1 * GIB
        user.do("cuMemFreeAsync", pointer, 0)
    user.do("cuGraphLaunch", frees, 0)
    assert kinds(user.sandbox)["graph"] == free


def test_a_launch_with_automatic_frees_takes_no_more_memory(caller: Start) -> None:
    user = caller(1 * GIB)
    free = user.free_memory() // PAGE * PAGE
    graph = new_graph(user)
    add_alloc(user, graph, free)
    exec_ = executable(user, graph, AUTO_FREE)
    for _ in range(3):
        user.do("cuGraphLaunch", exec_, 0)
        assert kinds(user.sandbox)["graph"] == free


def test_a_captured_allocation_is_charged_when_its_graph_runs(caller: Start, any_way: str) -> None:
    user = caller(1 * GIB, way=any_way)
    free = user.free_memory() // PAGE * PAGE
    stream = user.get("cuStreamCreate", OUT, 1)
    execs = []
    for size in (64 * MIB, free + PAGE):
        before = user.sandbox.total()
        user.do("cuStreamBeginCapture_v2", stream, RELAXED)
        pointer = user.get("cuMemAllocAsync", OUT, size, stream)
        user.do("cuMemFreeAsync", pointer, stream)
        graph = user.get("cuStreamEndCapture", stream, OUT)
        execs.append(executable(user, graph))
        assert user.sandbox.total() == before
    user.do("cuGraphLaunch", execs[0], stream)
    assert kinds(user.sandbox)["graph"] == 64 * MIB
    assert user.code("cuGraphLaunch", execs[1], stream) == OUT_OF_MEMORY
    # Outside the capture it is a pool's memory again.
    user.get("cuMemAllocAsync", OUT, 32 * MIB, stream)
    assert kinds(user.sandbox)["pool"] == 32 * MIB


def test_an_update_keeps_the_executables_memory(caller: Start) -> None:
    user = caller(1 * GIB)
    free = user.free_memory() // PAGE * PAGE
    plain = new_graph(user)
    user.get("cuGraphAddEmptyNode", OUT, plain, None, 0)
    exec_ = executable(user, plain)
    user.do("cuGraphLaunch", exec_, 0)
    with_memory = alloc_and_free(user, free + PAGE)
    assert user.code("cuGraphExecUpdate_v2", exec_, with_memory, {"out": 24}) != SUCCESS
    user.do("cuGraphLaunch", exec_, 0)
    assert "graph" not in kinds(user.sandbox)


def test_two_processes_share_the_limit_and_a_killed_one_gives_back(sandbox: Make, caller: Start) -> None:
    one = sandbox(1 * GIB)
    users = [caller(one), caller(one)]
    free = users[0].free_memory() // PAGE * PAGE
    execs = [executable(user, alloc_and_free(user, free)) for user in users]
    users[0].do("cuGraphLaunch", execs[0], 0)
    assert users[1].code("cuGraphLaunch", execs[1], 0) == OUT_OF_MEMORY
    users[0].kill()
    users[1].do("cuGraphLaunch", execs[1], 0)


def test_a_graph_without_memory_is_launched_as_before(caller: Start) -> None:
    user = caller(1 * GIB)
    graph = new_graph(user)
    user.get("cuGraphAddEmptyNode", OUT, graph, None, 0)
    exec_ = executable(user, graph)
    before = user.sandbox.total()
    user.do("cuGraphLaunch", exec_, 0)
    user.do("cuGraphUpload", exec_, 0)
    user.do("cuGraphExecDestroy", exec_)
    assert user.code("cuGraphLaunch", 0, 0) != SUCCESS
    assert user.sandbox.total() == before


def test_each_device_has_its_own_limit(caller: Start) -> None:
    user = caller(1 * GIB, 256 * MIB, topology="2xT4-R580")
    graph = new_graph(user)
    add_alloc(user, graph, 512 * MIB)
    add_alloc(user, graph, 128 * MIB, device=1)
    fits = executable(user, graph)
    user.do("cuGraphLaunch", fits, 0)
    assert (kinds(user.sandbox)["graph"], kinds(user.sandbox, 1)["graph"]) == (512 * MIB, 128 * MIB)
    graph = new_graph(user)
    add_alloc(user, graph, 128 * MIB)
    add_alloc(user, graph, 256 * MIB, device=1)
    before = user.sandbox.total(), user.sandbox.total(1)
    # The second device refuses. The first device's charge comes back.
    assert user.code("cuGraphLaunch", executable(user, graph), 0) == OUT_OF_MEMORY
    assert (user.sandbox.total(), user.sandbox.total(1)) == before


def test_a_refusal_during_a_capture_leaves_the_capture_whole(caller: Start) -> None:
    user = caller(256 * MIB)
    pool = user.get("cuDeviceGetDefaultMemPool", OUT, 0)
    user.do("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, buffer(b"\xff" * 8))
    other = user.get("cuStreamCreate", OUT, 1)
    user.do("cuMemFreeAsync", user.get("cuMemAllocAsync", OUT, 64 * MIB, other), other)
    user.do("cuStreamSynchronize", other)
    stream = user.get("cuStreamCreate", OUT, 1)
    user.do("cuStreamBeginCapture_v2", stream, GLOBAL)
    assert user.code("cuMemAllocAsync", OUT, 512 * MIB, other) == OUT_OF_MEMORY
    assert kinds(user.sandbox).get("pool", 0) == 0  # trimmed, before it was refused
    user.get("cuMemAllocAsync", OUT, 64 * MIB, stream)
    graph = user.get("cuStreamEndCapture", stream, OUT)
    user.do("cuGraphLaunch", executable(user, graph), stream)
    assert kinds(user.sandbox)["graph"] == 64 * MIB
