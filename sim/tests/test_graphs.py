"""Streams, capture, graphs and modules of the simulated libcuda, by the driver API."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from support import REPOSITORY, exports
from support.simulation import SUCCESS, Up, assert_check, build_sanitized, libraries

#: All versions in which some function got a variant.
VERSIONS = (2000, 3000, 3020, 4000, 7000, 8000, 10000, 10010, 11000, 11030, 11040, 12000, 12020, 12030, 13040)
#: CUdriverProcAddressQueryResult.
FOUND, UNKNOWN, TOO_OLD = range(3)
CHECKS = ("fork", "broken-captures", "nodes", "memory", "libraries")


@pytest.mark.parametrize("check", CHECKS)
def test_a_program_of_the_driver_api_gets_the_right_results_and_no_memory_error(
    up: Up, tmp_path: Path, check: str
) -> None:
    kind = "address,undefined"
    state = up("1xT4", native=str(build_sanitized(kind)))
    assert_check(state, Path(__file__).with_name("graphs.c"), tmp_path, check, kind)


class Cuda:
    """A libcuda that no program has initialised."""

    def __init__(self, library: Path) -> None:
        self.functions = ctypes.CDLL(str(library))

    def address(self, symbol: str) -> int | None:
        return ctypes.cast(getattr(self.functions, symbol), ctypes.c_void_p).value

    def find(self, name: str, version: int, flags: int) -> tuple[int | None, int]:
        """The address and the status by cuGetProcAddress."""
        function, status = ctypes.c_void_p(), ctypes.c_int()
        asked = (name.encode(), ctypes.byref(function), version, ctypes.c_uint64(flags))
        assert self.functions.cuGetProcAddress_v2(*asked, ctypes.byref(status)) == SUCCESS
        return function.value, status.value


def test_each_function_is_found_by_name_or_by_name_and_default_stream(native: Path) -> None:
    """The simulated functions are those that cuGetProcAddress knows. Each name gives the newest variant."""
    cuda = Cuda(native / "libcuda-R615.so")
    headers = "".join(path.read_text() for path in (REPOSITORY / "native/headers/cuda").glob("*.h"))
    declared = set(re.findall(r"CUDA_API CUresult (cu\w+)\(", headers))
    exported = declared & exports.exported(native / "libcuda-R615.so")
    assert len(exported) > 400
    given = set()
    for symbol in exported:
        name = symbol.removesuffix("_ptsz").removesuffix("_ptds")
        name = name[:-3] if name[-3:-1] == "_v" else name
        for version in VERSIONS:
            for flags in (1, 2):
                function, status = cuda.find(name, version, flags)
                assert (status == FOUND) == bool(function)
                given.add(function)
    assert {name for name in exported if cuda.address(name) not in given} == set()


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
        ("cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz"),
        ("cuMemAllocAsync", 13000, 1, "cuMemAllocAsync"),
        ("cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoD", 7000, 0, "cuMemcpyHtoD_v2"),
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuCtxCreate", 12000, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 11000, 0, "cuCtxCreate_v2"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGraphLaunch", 10000, 2, "cuGraphLaunch_ptsz"),
        ("cuGraphInstantiate", 10000, 0, "cuGraphInstantiate"),
        ("cuGraphInstantiate", 11000, 2, "cuGraphInstantiate_v2"),
        ("cuMemcpyHtoD", 4000, 2, TOO_OLD),
        ("cuLaunchKernel", 2000, 0, TOO_OLD),
        ("cuMemAlloc_v2", 13000, 0, UNKNOWN),
        ("cuNoSuchThing", 13000, 0, UNKNOWN),
    ],
)
def test_the_variant_is_that_of_the_version_and_the_default_stream(
    native: Path, name: str, version: int, flags: int, symbol: str | int
) -> None:
    """The answers are those of NVIDIA's driver 535."""
    cuda = Cuda(native / "libcuda-R615.so")
    wanted = (cuda.address(symbol), FOUND) if isinstance(symbol, str) else (None, symbol)
    assert cuda.find(name, version, flags) == wanted


def test_an_older_driver_does_not_hand_out_newer_functions(up: Up) -> None:
    cuda = Cuda(libraries(up("1xT4-R470").root) / "libcuda.so.1")
    version, function = ctypes.c_int(), ctypes.c_void_p()
    assert (cuda.functions.cuDriverGetVersion(ctypes.byref(version)), version.value) == (SUCCESS, 11040)
    cuda.functions.cuGetProcAddress(b"cuCtxCreate", ctypes.byref(function), 13000, ctypes.c_uint64(0))
    assert function.value == cuda.address("cuCtxCreate_v3")


def test_an_unknown_private_table_is_refused(native: Path) -> None:
    table = ctypes.c_void_p(1)
    cuda = Cuda(native / "libcuda-R615.so").functions
    assert cuda.cuGetExportTable(ctypes.byref(table), bytes(16)) == 1  # CUDA_ERROR_INVALID_VALUE
    assert not table.value
