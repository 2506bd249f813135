"""Functions that the interposers export and an older driver lacks do what their older variants do.

dlsym finds the interposer's function on every driver, and programs then assume that the driver has it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from support import GIB, MIB
from support.exports import exported, listed

from ..calls import (
    DEVICE,
    HOST,
    INVALID_VALUE,
    NOT_SUPPORTED,
    OUT,
    Program,
    Start,
    allocation_node,
    buffer,
    kinds,
    location,
    value,
)
from ..nvml_sandbox import nvml
from ..sandboxes import Make

BRANCHES = ("R470", "R535", "R550", "R570", "R580", "R590", "R610")
#: Two cards that a switch connects.
CARDS: list[dict[str, Any]] = [{"model": "H200", "count": 2, "multicast": True}]
#: CUresult.
NOT_READY, UPDATE_FAILURE = 600, 910
EMPTY_NODE, TOPOLOGY_CHANGED = 5, 2
UPLOAD = 2
PINNED, MANAGED = 1, 2
NOTHING = buffer(bytes(256))


def launch(user: Program, milliseconds: int) -> None:
    """Lets a kernel run on the null stream of the current context."""
    user.launch(user.kernel(f"busy_{milliseconds}ms"))
    assert user.code("cuStreamQuery", None) == NOT_READY


def empty(user: Program, nodes: int = 1) -> int:
    """A graph with nodes that do nothing."""
    graph = user.get("cuGraphCreate", OUT, 0)
    for _ in range(nodes):
        user.do("cuGraphAddEmptyNode", OUT, graph, None, 0)
    return graph


def flags(user: Program) -> int:
    return user.get("cuCtxGetFlags", {"out": 4})


def context(user: Program, name: str) -> None:
    older = user.get("cuCtxCreate_v2", OUT, 4, 0)
    wanted = flags(user)
    user.do("cuCtxDestroy_v2", older)
    for params in (None, buffer(bytes(24))):
        newer = user.get(name, OUT, params, 4, 0)
        assert user.get("cuCtxGetCurrent", OUT) == newer
        assert flags(user) == wanted
        user.do("cuCtxDestroy_v2", newer)
    graphics = {"in": struct.pack("<QiiQ", 0, 0, 0, 1).hex()}
    assert user.code(name, OUT, graphics, 0, 0) == NOT_SUPPORTED


def synchronize(user: Program, name: str) -> None:
    first = user.get("cuCtxGetCurrent", OUT)
    # The context is NULL, an invalid one, or missing, as Numba calls it. Each means the current one.
    for arguments in ([None], [0xDEAD0], []):
        launch(user, 20)
        user.do(name, *arguments)
        user.do("cuStreamQuery", None)
    launch(user, 100)
    second = user.get("cuCtxCreate_v2", OUT, 0, 0)
    user.do(name, first)
    assert user.get("cuCtxGetCurrent", OUT) == second
    user.do("cuCtxDestroy_v2", second)
    user.do("cuCtxSetCurrent", first)
    user.do("cuStreamQuery", None)


def look_up(user: Program, name: str) -> None:
    for wanted in (b"cuMemAlloc\0", b"cuCtxCreate\0"):
        older = user.call("cuGetProcAddress", buffer(wanted), OUT, 11040, 0)
        newer = user.call(name, buffer(wanted), OUT, 11040, 0, {"out": 4})
        assert newer == [*older, "00000000"]
        assert int(older[2], 16)


def add_node(user: Program, name: str) -> None:
    graph = user.get("cuGraphCreate", OUT, 0)
    node = buffer(struct.pack("<i252x", EMPTY_NODE))
    first = user.get(name, OUT, graph, None, None, 0, node)
    on_first = buffer(struct.pack("<Q", first))
    user.do(name, OUT, graph, on_first, buffer(bytes(8)), 1, node)
    assert user.get("cuGraphGetNodes", graph, None, OUT) == 2
    if _lacks_edges(user):
        kind_of_edge = buffer(bytes([0, 0, 1, 0, 0, 0, 0, 0]))
        assert user.code(name, OUT, graph, on_first, kind_of_edge, 1, node) == NOT_SUPPORTED


def _lacks_edges(user: Program) -> bool:
    """Whether the driver is older than CUDA 12.3."""
    return user.get("cuDriverGetVersion", {"out": 4}) < 12030


def update(user: Program, name: str) -> None:
    executable = user.get("cuGraphInstantiateWithFlags", OUT, empty(user), 0)
    assert user.call(name, executable, empty(user), {"out": 24}) == [0, bytes(24).hex()]
    older, _, result = user.call("cuGraphExecUpdate", executable, empty(user, 2), OUT, {"out": 4})
    newer, info = user.call(name, executable, empty(user, 2), {"out": 24})
    assert newer == older == UPDATE_FAILURE
    assert info[:8] == result == struct.pack("<i", TOPOLOGY_CHANGED).hex()
    assert user.code(name, executable, empty(user), None) == INVALID_VALUE


def instantiate(user: Program, name: str) -> None:
    graph = user.get("cuGraphCreate", OUT, 0)
    node = buffer(allocation_node(8 * MIB))
    user.do("cuGraphAddMemAllocNode", OUT, graph, None, 0, node)
    result, executable, params = user.call(name, OUT, graph, buffer(struct.pack("<QQQq", UPLOAD, 0, 7, 7)))
    assert (result, params) == (0, struct.pack("<QQQi", UPLOAD, 0, 0, 0).hex() + params[-8:])
    assert kinds(user.sandbox)["graph"] >= 8 * MIB, "it is uploaded"
    user.do("cuGraphLaunch", int.from_bytes(bytes.fromhex(executable), "little"), None)
    assert user.code(name, OUT, graph, None) == INVALID_VALUE


def pool(user: Program, name: str) -> None:
    wanted = user.get(name.replace("cuMem", "cuDevice", 1), OUT, 0)
    assert user.get(name, OUT, buffer(location()), PINNED) == wanted
    assert user.code(name, OUT, buffer(location(HOST)), PINNED) == NOT_SUPPORTED
    assert user.code(name, OUT, buffer(location()), MANAGED) == NOT_SUPPORTED


SIZE = 64 * MIB
GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL
SET_PREFERRED_LOCATION = 3


def managed(user: Program) -> int:
    return user.get("cuMemAllocManaged", OUT, 4 * MIB, GLOBAL)


def prefetch(user: Program, name: str) -> None:
    for kind in (DEVICE, HOST):
        user.do(name, managed(user), 4 * MIB, value(location(kind).hex()), 0, 0)


def advise(user: Program, name: str) -> None:
    for kind in (DEVICE, HOST):
        place = value(location(kind).hex())
        user.do(name, managed(user), 4 * MIB, SET_PREFERRED_LOCATION, place)


def bind_memory(user: Program, name: str) -> None:
    multicast, memory = user.multicast(SIZE), user.create(SIZE)
    assert user.code(name, multicast, 1, 0, memory, 0, SIZE, 0) == INVALID_VALUE
    user.do(name, multicast, 0, 0, memory, 0, SIZE, 0)
    user.do("cuMemRelease", memory)
    assert kinds(user.sandbox)["vmm"] == SIZE
    user.do("cuMulticastUnbind", multicast, 0, 0, SIZE)
    assert "vmm" not in kinds(user.sandbox)


def bind_address(user: Program, name: str) -> None:
    multicast = user.multicast(SIZE)
    place = user.mapped(user.create(SIZE), SIZE)
    assert user.code(name, multicast, 1, 0, place, SIZE, 0) == INVALID_VALUE
    user.do(name, multicast, 0, 0, place, SIZE, 0)
    user.do("cuMemUnmap", place, SIZE)
    assert kinds(user.sandbox)["vmm"] == SIZE
    user.do("cuMulticastUnbind", multicast, 0, 0, SIZE)
    assert "vmm" not in kinds(user.sandbox)


#: CUlaunchConfig: one thread, no shared memory, the null stream, no attributes.
LAUNCH = buffer(struct.pack("<7I4xQQI4x", *[1] * 6, 0, 0, 0, 0))


def launch_by_config(user: Program, name: str) -> None:
    user.do(name, LAUNCH, user.kernel("busy_20ms"), None, None)
    assert user.code(name.replace("cuLaunchKernelEx", "cuStreamQuery"), None) == NOT_READY


#: An older function's effect, and the functions that have it.
SERVED: dict[str, tuple[str, Callable[[Program, str], None]]] = {
    "cuCtxCreate_v4": ("cuCtxCreate_v3", context),
    "cuCtxSynchronize_v2": ("cuCtxSynchronize", synchronize),
    "cuGetProcAddress_v2": ("cuGetProcAddress", look_up),
    "cuGraphAddNode_v2": ("cuGraphAddNode", add_node),
    "cuGraphAddNode_v3": ("cuGraphAddNode", add_node),
    "cuGraphExecUpdate_v2": ("cuGraphExecUpdate", update),
    "cuGraphInstantiateWithParams": ("cuGraphInstantiateWithFlags", instantiate),
    "cuGraphInstantiateWithParams_ptsz": (
        "cuGraphInstantiateWithFlags",
        instantiate,
    ),
    "cuLaunchKernelEx": ("cuLaunchKernel", launch_by_config),
    "cuLaunchKernelEx_ptsz": ("cuLaunchKernel_ptsz", launch_by_config),
    "cuMemAdvise_v2": ("cuMemAdvise", advise),
    "cuMemGetDefaultMemPool": ("cuDeviceGetDefaultMemPool", pool),
    "cuMemGetMemPool": ("cuDeviceGetMemPool", pool),
    "cuMemPrefetchAsync_v2": ("cuMemPrefetchAsync", prefetch),
    "cuMemPrefetchAsync_v2_ptsz": (
        "cuMemPrefetchAsync_ptsz",
        prefetch,
    ),
    "cuMulticastBindAddr_v2": ("cuMulticastBindAddr", bind_address),
    "cuMulticastBindMem_v2": ("cuMulticastBindMem", bind_memory),
}
#: Functions without an older variant: the driver's own error for an unsupported call.
ALONE = {
    "cuGraphAddNode",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cuLibraryUnload",
    "cuLogicalEndpointBindAddr",
    "cuLogicalEndpointBindMem",
    "cuLogicalEndpointDestroy",
    "cuLogicalEndpointImport",
    "cuLogicalEndpointUnbind",
    "cuMemDiscardAndPrefetchBatchAsync",
    "cuMemDiscardAndPrefetchBatchAsync_ptsz",
    "cuMemPrefetchBatchAsync",
    "cuMemPrefetchBatchAsync_ptsz",
    "cuMulticastBindAddr",
    "cuMulticastBindMem",
    "cuMulticastCreate",
    "cuMulticastUnbind",
    "cuStreamBeginCaptureToGraph",
    "cuStreamBeginCaptureToGraph_ptsz",
}


def lacking(interposers: Path, library: str, branch: str) -> set[str]:
    """The functions that the interposer exports and a driver branch lacks."""
    return exported(interposers / f"{library}.so.1") - listed(library)[branch]


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_function_that_libcuda_lacks_is_done_by_its_older_variant(
    sandbox: Make, caller: Start, interposers: Path, branch: str
) -> None:
    one = sandbox(4 * GIB, topology={"driver": branch, "gpus": CARDS})
    names = lacking(interposers, "libcuda", branch)
    assert names
    assert names <= SERVED.keys() | ALONE, "a function that is new in the interposer wants a decision here"
    served = {name for name in names if name in SERVED and SERVED[name][0] in listed("libcuda")[branch]}
    for name in sorted(served):
        user = caller(one)
        SERVED[name][1](user, name)
        user.kill()
    user = caller(one)
    for name in sorted(names - served):
        assert user.code(name, NOTHING, NOTHING, *[None] * 6) == NOT_SUPPORTED, name


#: Numba up to 0.61 looks functions up like this, and calls what it finds.
NEWEST_FIRST = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
def find(name):
    return getattr(library, name + "_v2", None) or getattr(library, name)
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
said = [find("cuInit")(0), find("cuDevicePrimaryCtxRetain")(ctypes.byref(context), 0)]
said += [find("cuCtxPushCurrent")(context), find("cuMemAlloc")(ctypes.byref(pointer), ctypes.c_size_t(4096))]
said += [find("cuCtxSynchronize")(), find("cuMemFree")(pointer), find("cuCtxSynchronize")()]
print(said)
"""


@pytest.mark.parametrize("branch", ["R470", "R535", "R550", "R570"])
def test_a_program_that_takes_the_newest_name_that_it_finds_synchronizes(sandbox: Make, branch: str) -> None:
    done = sandbox(GIB, topology=f"1xT4-{branch}").python(NEWEST_FIRST)
    assert done.stdout == f"{[0] * 7}\n", done.stderr


#: The same for NVML. NVIDIA's binding reports functions without an older variant as not found.
NVML_SERVED = {
    "nvmlDeviceGetAccountingStats_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetMemoryInfo_v2",
}
NVML_ALONE = {
    "nvmlDeviceGetConfComputeMemSizeInfo",
    "nvmlDeviceGetConfComputeProtectedMemoryUsage",
    "nvmlDeviceGetDynamicPstatesInfo",
    "nvmlDeviceGetJpgUtilization",
    "nvmlDeviceGetOfaUtilization",
    "nvmlDeviceGetProcessesUtilizationInfo",
    "nvmlDeviceGetRunningProcessDetailList",
}
NVML_SCRIPT = """
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
library, mine = ctypes.CDLL("libnvidia-ml.so.1"), os.getpid()
older, newer = ask(nvmlDeviceGetMemoryInfo, card), ask(nvmlDeviceGetMemoryInfo, card, nvmlMemory_v2)
said = {"memory": [newer[key] == older[key] for key in ("total", "used", "free")]}
wrong = c_nvmlMemory_v2_t()
wrong.version = 7
said["version"] = library.nvmlDeviceGetMemoryInfo_v2(card, ctypes.byref(wrong))
stats = c_nvmlAccountingStats_v2_t()
stats.pid = mine
said["result"] = library.nvmlDeviceGetAccountingStats_v2(card, ctypes.byref(stats))
older = ask(nvmlDeviceGetAccountingStats, card, mine)
said["stats"] = [stats.pid == mine, stats.maxMemoryUsage == older["maxMemoryUsage"], stats.isRunning]
for kind, struct in (("Compute", c_nvmlProcessInfo_v3_t), ("Graphics", c_nvmlProcessInfo_v3_t),
                     ("MPSCompute", c_nvmlProcessInfo_v3_t)):
    count, room = ctypes.c_uint(4), (struct * 4)()
    name = f"nvmlDeviceGet{kind}RunningProcesses_v3"
    said[kind] = [getattr(library, name)(card, ctypes.byref(count), room), count.value]
zeros = ctypes.create_string_buffer(1024)
said["alone"] = {name: getattr(library, name)(card, zeros) for name in sys.argv[2:]}
"""


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_function_that_nvml_lacks_is_done_by_its_older_variant(
    sandbox: Make, interposers: Path, branch: str
) -> None:
    names = lacking(interposers, "libnvidia-ml", branch)
    assert names <= NVML_SERVED | NVML_ALONE, "a function that is new in the interposer wants a decision here"
    script = NVML_SCRIPT.replace("sys.argv[2:]", repr(sorted(names & NVML_ALONE)))
    said = nvml(sandbox(4 * GIB, topology=f"1xT4-{branch}"), script)
    assert said["memory"] == [True] * 3
    assert said["version"] == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    assert (said["result"], said["stats"]) == (0, [True, True, 1])
    assert (said["Compute"], said["Graphics"], said["MPSCompute"]) == ([0, 1], [0, 0], [0, 0])
    assert set(said["alone"].values()) <= {pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
