"""Streams, capture, graphs and modules of the simulated libcuda, by the driver API."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from support import REPOSITORY, exports
from support.simulation import assert_check, build_sanitized
from xpu_simulator.simulator import SimState

Up = Callable[..., SimState]
#: All versions in which some function got a variant.
VERSIONS = (2000, 3000, 3020, 4000, 7000, 8000, 10000, 10010, 11000, 11030, 11040, 12000, 12020, 12030, 13040)
CHECKS = ("fork", "broken-captures", "nodes", "memory", "libraries")


def libraries(state: SimState) -> Path:
    """The folder of libcuda."""
    return next(Path(state.root).glob("usr/lib/*-linux-gnu"))


@pytest.mark.parametrize("check", CHECKS)
def test_a_program_of_the_driver_api_gets_the_right_results_and_no_memory_error(
    up: Up, tmp_path: Path, check: str
) -> None:
    kind = "address,undefined"
    state = up("1xT4", native=str(build_sanitized(kind)))
    assert_check(state, Path(__file__).with_name("graphs.c"), tmp_path, check, kind)


def test_each_function_is_found_by_name_or_by_name_and_default_stream(up: Up) -> None:
    """The simulated functions are those that cuGetProcAddress knows. Each name gives the newest variant."""
    library = libraries(up("1xT4")) / "libcuda.so.1"
    cuda = ctypes.CDLL(str(library))
    headers = "".join(path.read_text() for path in (REPOSITORY / "native/headers/cuda").glob("*.h"))
    exported = set(re.findall(r"CUDA_API CUresult (cu\w+)\(", headers)) & exports.exported(library)
    assert len(exported) > 400
    given = set()
    for symbol in exported:
        name = symbol.removesuffix("_ptsz").removesuffix("_ptds")
        name = name[:-3] if name[-3:-1] == "_v" else name
        for version in VERSIONS:
            for flags in (1, 2):
                function, status = ctypes.c_void_p(), ctypes.c_int()
                asked = (name.encode(), ctypes.byref(function), version, ctypes.c_uint64(flags))
                assert cuda.cuGetProcAddress_v2(*asked, ctypes.byref(status)) == 0
                assert (status.value == 0) == bool(function.value)
                given.add(function.value)
    addresses = {name: ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value for name in exported}
    assert {name for name, address in addresses.items() if address not in given} == set()


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
        ("cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz"),
        ("cuMemAllocAsync", 13000, 1, "cuMemAllocAsync"),
        ("cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoD", 7000, 0, "cuMemcpyHtoD_v2"),
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuGraphLaunch", 10000, 2, "cuGraphLaunch_ptsz"),
        ("cuGraphInstantiate", 10000, 0, "cuGraphInstantiate"),
        ("cuGraphInstantiate", 11000, 2, "cuGraphInstantiate_v2"),
        ("cuMemcpyHtoD", 4000, 2, None),
        ("cuMemAlloc_v2", 13000, 0, None),
    ],
)
def test_the_variant_is_that_of_the_version_and_the_default_stream(
    up: Up, name: str, version: int, flags: int, symbol: str | None
) -> None:
    """The answers are those of NVIDIA's driver 535."""
    cuda = ctypes.CDLL(str(libraries(up("1xT4")) / "libcuda.so.1"))
    function, status = ctypes.c_void_p(), ctypes.c_int()
    asked = (name.encode(), ctypes.byref(function), version, ctypes.c_uint64(flags))
    assert cuda.cuGetProcAddress_v2(*asked, ctypes.byref(status)) == 0
    wanted = ctypes.cast(getattr(cuda, symbol), ctypes.c_void_p).value if symbol else None
    assert function.value == wanted


def test_an_unknown_private_table_is_refused(up: Up) -> None:
    cuda = ctypes.CDLL(str(libraries(up("1xT4")) / "libcuda.so.1"))
    table = ctypes.c_void_p(1)
    assert cuda.cuGetExportTable(ctypes.byref(table), bytes(16)) == 1  # CUDA_ERROR_INVALID_VALUE
    assert not table.value
