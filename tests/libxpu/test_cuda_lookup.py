"""The CUDA wrapper: which functions it has, and how programs come by them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import GIB, Cell
from .cuda_cell import (
    NOT_FOUND,
    OUT_OF_MEMORY,
    SUCCESS,
    Start,
    exported,
    program,  # noqa: F401  (fixture)
)

Make = Callable[..., Cell]

#: Every function that the wrapper sees, with all the variants that drivers up to CUDA 13.1 export of it.
SEEN = set(
    """
cuInit cuGetProcAddress cuGetProcAddress_v2
cuDeviceTotalMem cuDeviceTotalMem_v2 cuMemGetInfo cuMemGetInfo_v2
cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy cuCtxDestroy_v2 cuCtxSetLimit
cuCtxAttach cuCtxDetach
cuCtxSynchronize cuCtxSynchronize_v2 cuEventSynchronize cuStreamSynchronize cuStreamSynchronize_ptsz
cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2
cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary cuModuleUnload
cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload
cuMemAlloc cuMemAlloc_v2 cuMemAllocPitch cuMemAllocPitch_v2 cuMemAllocManaged cuMemFree cuMemFree_v2
cuArrayCreate cuArrayCreate_v2 cuArray3DCreate cuArray3DCreate_v2 cuArrayDestroy
cuMipmappedArrayCreate cuMipmappedArrayDestroy
cuMemAllocAsync cuMemAllocAsync_ptsz cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz
cuMemFreeAsync cuMemFreeAsync_ptsz cuMemPoolCreate cuMemPoolDestroy cuMemPoolTrimTo
cuMemPoolExportToShareableHandle cuMemPoolImportFromShareableHandle cuMemPoolImportPointer
cuMemGetDefaultMemPool cuMemGetMemPool cuMemPoolSetAttribute
cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemRetainAllocationHandle
cuMemExportToShareableHandle cuMemImportFromShareableHandle cuMemMapArrayAsync cuMemMapArrayAsync_ptsz
cuIpcGetMemHandle cuIpcOpenMemHandle cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle
cuImportExternalMemory cuDestroyExternalMemory
cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray
cuMulticastCreate cuMulticastBindMem cuMulticastBindMem_v2 cuMulticastBindAddr cuMulticastBindAddr_v2
cuMulticastUnbind
cuGraphAddMemAllocNode cuGraphAddNode cuGraphAddNode_v2 cuGraphInstantiate cuGraphInstantiate_v2
cuGraphInstantiateWithFlags cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz
cuGraphExecUpdate cuGraphExecUpdate_v2 cuGraphExecDestroy
cuGraphLaunch cuGraphLaunch_ptsz cuGraphUpload cuGraphUpload_ptsz cuDeviceGraphMemTrim
""".split()  # noqa: SIM905
)

#: Of these, what a driver of R470 (CUDA 11.4) does not have. There the wrapper's function is found by dlsym
#: all the same and says NOT_FOUND: each entry is a decision, taken since memory depends on the function.
NEWER_THAN_R470 = {
    "cuCtxCreate_v4",
    "cuCtxSynchronize_v2",
    "cuGetProcAddress_v2",  # works on older drivers too
    "cuGraphAddNode",
    "cuGraphAddNode_v2",
    "cuGraphExecUpdate_v2",
    "cuGraphInstantiateWithParams",
    "cuGraphInstantiateWithParams_ptsz",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cuLibraryUnload",
    "cuMemGetDefaultMemPool",
    "cuMemGetMemPool",
    "cuMulticastBindAddr",
    "cuMulticastBindAddr_v2",
    "cuMulticastBindMem",
    "cuMulticastBindMem_v2",
    "cuMulticastCreate",
    "cuMulticastUnbind",
}

VERSIONS = [2000, 3020, 4000, 7000, 10000, 11020, 11040, 12000, 12050, 13000]


def base(name: str) -> str:
    """The name without version and stream flag."""
    return re.sub(r"(_v\d+)?(_pt[sd]z|_ptds)?$", "", name)


def test_the_wrapper_has_every_variant_of_what_it_sees_and_no_other(wrappers: Path) -> None:
    assert exported(wrappers / "libcuda.so.1") == SEEN


@pytest.mark.parametrize("topology", ["1xT4-R470", "1xT4-R535", "1xT4-R580"])
def test_what_is_handed_out_by_name_is_the_wrappers_exactly_where_it_has_that_variant(
    cell: Make,
    program: Start,  # noqa: F811
    wrappers: Path,
    topology: str,
) -> None:
    one = cell(1 * GIB, topology=topology)
    (real,) = Path(one.driver_root).glob("usr/lib/*-linux-gnu/libcuda.so.1")
    names, wrapped = exported(real), exported(wrappers / "libcuda.so.1")
    user = program(one, WRAPPED=" ".join(wrapped), EXPORTED=" ".join(names))
    asked = sorted({base(name) for name in names | wrapped} | {"cuNoSuchThing"})
    assert user.handed_out(asked, VERSIONS, [0, 1, 2]) == []


def test_the_newer_look_up_works_where_the_driver_has_only_the_older(
    cell: Make,
    program: Start,  # noqa: F811
) -> None:
    one = cell(1 * GIB, topology="1xT4-R470")
    user = program(one, "lookup")
    assert user.start() == SUCCESS
    assert user.alloc(1 * GIB)[0] == SUCCESS
    assert user.alloc(1)[0] == OUT_OF_MEMORY


def test_what_the_driver_lacks_says_so(cell: Make, program: Start) -> None:  # noqa: F811
    one = cell(1 * GIB, topology="1xT4-R470")
    user = program(one)
    user.start()
    for name in sorted(NEWER_THAN_R470 - {"cuGetProcAddress_v2"}):
        assert user.bare(name) == NOT_FOUND, name
    assert one.total() == 0
