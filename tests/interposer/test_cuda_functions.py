"""Which of CUDA's functions the interposer has, and what was decided about all others."""

from __future__ import annotations

import re
from pathlib import Path

import headers
from headers import name_of
from support import REPOSITORY
from support.exports import listed

from .cuda_sandbox import exported

TABLE = headers.TABLES["nvidia-cuda-runtime"]
PARTS = {"interposed", "reported", "graphics", "host", "unseen", "none"}
#: The package that has cuda.h.
WHEEL = "nvidia-cuda-runtime"


def decided() -> dict[str, list[str]]:
    """The table: what was decided → names."""
    return headers.decided(TABLE)


def every_name() -> set[str]:
    return {name for names in decided().values() for name in names}


def known_symbols() -> set[str]:
    """What cuGetProcAddress of a real driver knows, by the list in sim/cuda."""
    listed = (REPOSITORY / "sim/cuda/functions.def").read_text()
    found = re.findall(r"\b(ONE|PTSZ|PTDS)\((cu\w+), \d+, (\w*)\)", listed)
    assert len(found) > 500
    symbols = {name + suffix for _, name, suffix in found}
    return symbols | {f"{name}{suffix}_{kind.lower()}" for kind, name, suffix in found if kind != "ONE"}


def test_each_function_is_decided_about_once() -> None:
    table = decided()
    assert set(table) == PARTS
    assert sum(map(len, table.values())) == len(every_name())


def test_the_interposer_has_what_the_table_says_and_nothing_else(interposers: Path) -> None:
    assert {name_of(symbol) for symbol in exported(interposers / "libcuda.so.1")} == set(
        decided()["interposed"]
    )


def test_what_is_interposed_is_so_in_all_of_its_variants(interposers: Path) -> None:
    interposed = set(decided()["interposed"])
    variants = {symbol for symbol in known_symbols() if name_of(symbol) in interposed}
    assert variants - exported(interposers / "libcuda.so.1") == set()


def test_no_function_that_a_driver_gives_out_or_exports_lacks_a_decision() -> None:
    known = known_symbols() | {name for name in listed("libcuda")["R615"] if not name.startswith("cudbg")}
    assert {name_of(symbol) for symbol in known} - every_name() == set()


def test_no_function_of_the_newest_headers_lacks_a_decision() -> None:
    text = headers.text_of_installed(WHEEL)
    assert len(headers.functions(WHEEL, text)) > 500
    assert headers.undecided(WHEEL, text) == []


def test_what_is_interposed_is_so_in_the_variants_of_the_newest_headers(interposers: Path) -> None:
    interposed = set(decided()["interposed"])
    declared = headers.symbols(headers.text_of_installed(WHEEL))
    variants = {symbol for symbol in declared if name_of(symbol) in interposed}
    assert "cuGraphAddNode_v3" in variants
    assert variants - exported(interposers / "libcuda.so.1") == set()


def test_a_function_that_a_newer_header_adds_is_named() -> None:
    text = "CUresult CUDAAPI cuMemAlloc_v7(CUdeviceptr *p);\nCUresult CUDAAPI cuBrandNew(void);\n"
    assert headers.undecided(WHEEL, text) == ["cuBrandNew"]
