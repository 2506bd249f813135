"""The list of interposed CUDA functions is complete: each function of CUDA has a decision."""

from __future__ import annotations

import re
from pathlib import Path

import headers
from headers import name_of
from support import REPOSITORY
from support.exports import exported, listed

TABLE = headers.TABLES["nvidia-cuda-runtime"]
#: The pacer's decision about each function that gives a device work.
LAUNCHES = TABLE.with_name("launches.txt")
WORK = {
    "paced",
    "copies",
    "engines",
    "order",
    "marked",
    "host",
    "memory",
    "recorded",
    "unseen",
}
PARTS = {"interposed", "reported", "graphics", "host", "unseen", "none"}
#: The package with cuda.h.
WHEEL = "nvidia-cuda-runtime"


def decided() -> dict[str, list[str]]:
    """The table: decision → names."""
    return headers.decided(TABLE)


def every_name() -> set[str]:
    return {name for names in decided().values() for name in names}


def known_symbols() -> set[str]:
    """The names that cuGetProcAddress of a real driver knows, by the list in sim/cuda."""
    listed = (REPOSITORY / "sim/cuda/functions.def").read_text()
    found = re.findall(r"\b(ONE|PTSZ|PTDS)\((cu\w+), \d+, (\w*)\)", listed)
    assert len(found) > 500
    symbols = {name + suffix for _, name, suffix in found}
    return symbols | {f"{name}{suffix}_{kind.lower()}" for kind, name, suffix in found if kind != "ONE"}


def test_each_function_is_decided_about_once() -> None:
    table = decided()
    assert set(table) == PARTS
    assert sum(map(len, table.values())) == len(every_name())


def test_the_interposer_has_exactly_the_variants_of_its_functions(interposers: Path) -> None:
    seen = set(decided()["interposed"])
    newest = listed("libcuda")["R615"]
    assert exported(interposers / "libcuda.so.1") == {name for name in newest if name_of(name) in seen}


def test_no_function_that_a_driver_gives_out_or_exports_lacks_a_decision() -> None:
    known = known_symbols() | {name for name in listed("libcuda")["R615"] if not name.startswith("cudbg")}
    assert {name_of(symbol) for symbol in known} - every_name() == set()


def test_no_function_of_the_newest_headers_lacks_a_decision() -> None:
    text = headers.text_of_installed(WHEEL)
    assert len(headers.functions(WHEEL, text)) > 500
    assert headers.undecided(WHEEL, text) == []


def test_an_interposed_function_is_interposed_in_the_newest_headers_variants(interposers: Path) -> None:
    interposed = set(decided()["interposed"])
    declared = headers.symbols(headers.text_of_installed(WHEEL))
    variants = {symbol for symbol in declared if name_of(symbol) in interposed}
    assert "cuGraphAddNode_v3" in variants
    assert variants - exported(interposers / "libcuda.so.1") == set()


def test_a_function_that_a_newer_header_adds_is_named() -> None:
    text = "CUresult CUDAAPI cuMemAlloc_v7(CUdeviceptr *p);\nCUresult CUDAAPI cuBrandNew(void);\n"
    assert headers.undecided(WHEEL, text) == ["cuBrandNew"]


def works(text: str) -> set[str]:
    """The functions of a header that take a stream, or whose names say that they give work."""
    declared = re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(([^)]*)\)", re.sub(r"(?s)/\*.*?\*/", "", text))
    given = re.compile(r"\bCUstream\s+\w")
    named = re.compile("Launch|Memcpy|Memset|Subgrid|Decompress")
    return {name_of(name) for name, takes in declared if given.search(takes) or named.search(name)}


def undecided_work(text: str) -> list[str]:
    return sorted(works(text) - {name for names in headers.decided(LAUNCHES).values() for name in names})


def test_each_function_that_gives_a_device_work_is_decided_about_once() -> None:
    table = headers.decided(LAUNCHES)
    names = [name for part in table.values() for name in part]
    assert set(table) == WORK
    assert len(names) == len(set(names))
    assert set(names) - every_name() == set()


def test_paced_functions_are_interposed_and_no_way_to_launch_is_missing() -> None:
    table = headers.decided(LAUNCHES)
    assert set(table["paced"] + table["marked"]) - set(decided()["interposed"]) == set()
    launches = {name for name in every_name() if re.search("Launch", name)}
    assert launches - set(table["paced"]) == {"cuLaunchHostFunc"}
    assert {name for name in every_name() if name.startswith("cuSubgrid")} <= set(table["unseen"])


def test_no_function_of_the_newest_headers_that_is_given_a_stream_lacks_a_decision() -> None:
    text = headers.text_of_installed(WHEEL)
    assert len(works(text)) > 90
    assert undecided_work(text) == []


def test_a_way_to_launch_that_a_newer_header_adds_is_named() -> None:
    text = "CUresult CUDAAPI cuRunBrandNew(CUfunction f, CUstream hStream);\nCUresult CUDAAPI cuNot(int a);\n"
    assert undecided_work(text) == ["cuRunBrandNew"]
