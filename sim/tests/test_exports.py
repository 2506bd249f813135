"""Each branch of the simulated driver exports exactly the names of that branch's real libraries."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from support.exports import LIBRARIES, exported, listed
from support.simulation import NVML_NOT_SUPPORTED, Up, libraries
from xpu_simulator.topology import DRIVERS

#: CUresult.
NOT_SUPPORTED = 801


@pytest.mark.parametrize("library", LIBRARIES)
def test_there_is_a_list_for_each_branch(library: str) -> None:
    assert list(listed(library)) == list(DRIVERS)


@pytest.mark.parametrize("branch", DRIVERS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_branch_exports_exactly_the_names_of_its_list(native: Path, library: str, branch: str) -> None:
    found, wanted = exported(native / f"{library}-{branch}.so"), listed(library)[branch]
    assert len(wanted) > 250
    assert (sorted(found - wanted), sorted(wanted - found)) == ([], [])


def test_a_name_is_listed_once() -> None:
    for library in LIBRARIES:
        counts = [len(names) for names in listed(library).values()]
        lines = (Path(__file__).parents[2] / f"sim/exports/{library}.txt").read_text().splitlines()
        names = [line.split()[0] for line in lines if line and line[0].isalpha()]
        assert len(names) == len(set(names))
        assert counts == sorted(counts)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        # dlsym finds them like this in Debian's libraries.
        ("cuGetProcAddress_v2", "R535"),
        ("cuStreamBeginCaptureToGraph", "R550"),
        ("cuCtxCreate_v4", "R570"),
        ("cuCtxSynchronize_v2", "R580"),
        ("cuCtxGetDevice_v2", "R580"),
        ("nvmlDeviceGetMemoryInfo_v2", "R535"),
        ("nvmlDeviceSetMemoryLimits_v1", "R615"),
    ],
)
def test_a_program_finds_a_function_from_its_first_branch_on(native: Path, name: str, first: str) -> None:
    library = "libcuda" if name.startswith("cu") else "libnvidia-ml"
    branches = list(DRIVERS)
    having = [branch for branch in branches if hasattr(_loaded(native, library, branch), name)]
    assert having == branches[branches.index(first) :]


def test_a_function_that_is_not_simulated_is_found_and_returns_not_supported(native: Path) -> None:
    assert _loaded(native, "libcuda", "R580").cuTexRefGetFlags(None, None) == NOT_SUPPORTED
    assert _loaded(native, "libnvidia-ml", "R580").nvmlDeviceGetPdi(None, None) == NVML_NOT_SUPPORTED


def test_the_driver_root_has_the_branchs_own_libraries(up: Up, native: Path) -> None:
    folder = libraries(up("1xT4-R535").root)
    for library in LIBRARIES:
        assert exported(folder / f"{library}.so.1") == listed(library)["R535"]


def _loaded(native: Path, library: str, branch: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(native / f"{library}-{branch}.so"))
