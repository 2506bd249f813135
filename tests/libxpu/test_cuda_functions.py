"""Which of CUDA's functions the wrapper has, and what was decided about all others."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from .conftest import REPOSITORY
from .cuda_cell import exported

TABLE = REPOSITORY / "native/libxpu/cuda/functions.txt"
PARTS = {"wrapped", "figure", "graphics", "host", "unseen", "none"}
#: cuda.h of a toolkit, and what lies beside it.
HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")


def name_of(symbol: str) -> str:
    """The function of which a symbol is a variant."""
    return re.sub(r"_v\d+$", "", re.sub(r"_pt(sz|ds)$", "", symbol))


def decided() -> dict[str, list[str]]:
    """The table: what was decided → names."""
    parts = re.split(r"(?m)^\[(\w+)\]$", re.sub(r"(?m)^#.*", "", TABLE.read_text()))
    return {name: body.split() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def every_name() -> set[str]:
    return {name for names in decided().values() for name in names}


def known_symbols() -> set[str]:
    """What cuGetProcAddress of a real driver knows, by the list in native/sim."""
    listed = (REPOSITORY / "native/sim/cuda/functions.h").read_text()
    found = re.findall(r"\b(ONE|PTSZ|PTDS)\((cu\w+), \d+, (\w*)\)", listed)
    assert len(found) > 500
    symbols = {name + suffix for _, name, suffix in found}
    return symbols | {f"{name}{suffix}_{kind.lower()}" for kind, name, suffix in found if kind != "ONE"}


def headers() -> set[str]:
    """The functions of an installed toolkit's headers; empty: there is none."""
    compiler = shutil.which("nvcc")
    folders = [Path("/usr/local/cuda/include"), *sorted(Path("/usr/local").glob("cuda-*/include"))]
    if compiler:
        folders.append(Path(compiler).resolve().parents[1] / "include")
    source = "".join(
        (folder / name).read_text() for folder in folders for name in HEADERS if (folder / name).exists()
    )
    return {name_of(symbol) for symbol in re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)", source)}


def test_each_function_is_decided_about_once() -> None:
    table = decided()
    assert set(table) == PARTS
    assert sum(map(len, table.values())) == len(every_name())


def test_the_wrapper_has_what_the_table_says_and_nothing_else(wrappers: Path) -> None:
    assert {name_of(symbol) for symbol in exported(wrappers / "libcuda.so.1")} == set(decided()["wrapped"])


def test_what_is_wrapped_is_so_in_all_of_its_variants(wrappers: Path) -> None:
    wrapped = set(decided()["wrapped"])
    variants = {symbol for symbol in known_symbols() if name_of(symbol) in wrapped}
    assert variants - exported(wrappers / "libcuda.so.1") == set()


def test_no_function_that_a_driver_gives_out_lacks_a_decision(native: Path) -> None:
    known = known_symbols() | exported(native / "libcuda.so")
    assert {name_of(symbol) for symbol in known} - every_name() == set()


def test_no_function_of_the_headers_lacks_a_decision() -> None:
    known = headers()
    if not known:
        pytest.skip("no CUDA toolkit is installed here, whose cuda.h could be compared")
    assert len(known) > 300
    assert known - every_name() == set()
