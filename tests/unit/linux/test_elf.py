"""The reading of a library file, against gcc's options, and of files that are no library."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_runtime.linux import elf

HERE = platform.machine()


def elf_soname(path: Path | str) -> str:
    with open(path, "rb") as file:
        return elf.elf_soname(file.fileno())


def elf_search_path(path: Path) -> str:
    with open(path, "rb") as file:
        return elf.elf_search_path(file.fileno())


def test_the_soname_and_the_search_path_of_a_library_are_read(compile_c: Callable[..., Path]) -> None:
    flags = ("-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-Wl,-rpath,/opt/a:$ORIGIN/b")
    library = compile_c("libreal", "int x;", *flags)
    assert elf_soname(library) == "libcuda.so.1"
    assert elf_search_path(library) == "/opt/a:$ORIGIN/b"


def test_a_library_without_a_soname_has_none(compile_c: Callable[..., Path]) -> None:
    library = compile_c("libbare", "int x;", "-shared", "-nostdlib")
    assert (elf_soname(library), elf_search_path(library)) == ("", "")


def test_a_program_has_no_soname(compile_c: Callable[..., Path]) -> None:
    program = compile_c("program", "int main(void) { return 0; }", "-no-pie", "-Wl,-rpath,/opt/a")
    assert (elf_soname(program), elf_search_path(program)) == ("", "/opt/a")


@pytest.mark.skipif(HERE != "x86_64", reason="gcc makes 32-bit libraries for x86 only")
def test_a_32_bit_library_is_read_too(compile_c: Callable[..., Path]) -> None:
    flags = ("-m32", "-ffreestanding", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1")
    assert elf_soname(compile_c("lib32", "int x;", *flags)) == "libcuda.so.1"


def test_every_library_of_the_ld_cache_has_the_soname_that_readelf_prints() -> None:
    listed = subprocess.run(["ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    libraries = sorted(
        {os.path.realpath(line.split(" => ")[1]) for line in listed.splitlines()[1:] if " => " in line}
    )
    assert len(libraries) > 10
    for library in libraries[:60]:
        shown = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
        names = [line.split("[")[1].rstrip("]") for line in shown.splitlines() if "(SONAME)" in line]
        assert elf_soname(library) == (names[0] if names else ""), library


@pytest.mark.timeout(20)
def test_a_file_that_is_not_regular_has_neither(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert (elf.elf_soname(fd), elf.elf_search_path(fd)) == ("", "")
        finally:
            os.close(fd)


@pytest.fixture(scope="module")
def small_library(compile_c: Callable[..., Path]) -> Path:
    return compile_c("libsmall", "int x;", "-shared", "-nostdlib", "-Wl,-soname,libsmall.so.1")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elf") / "file"


@given(cut=st.integers(0, 1 << 14))
def test_a_library_cut_off_anywhere_does_no_harm(small_library: Path, scratch: Path, cut: int) -> None:
    whole = small_library.read_bytes()
    scratch.write_bytes(whole[: cut % len(whole)])
    assert elf_soname(scratch) in ("", "libsmall.so.1")


@given(at=st.integers(0, 400), word=st.binary(min_size=8, max_size=8))
def test_a_library_with_hostile_headers_does_no_harm(
    small_library: Path, scratch: Path, at: int, word: bytes
) -> None:
    whole = small_library.read_bytes()
    scratch.write_bytes(whole[:at] + word + whole[at + 8 :])
    elf_soname(scratch)
    elf_search_path(scratch)


@given(st.binary(max_size=300))
def test_garbage_behind_the_magic_does_no_harm(rest: bytes) -> None:
    descriptor = os.memfd_create("garbage")
    try:
        os.write(descriptor, b"\x7fELF\x02\x01" + rest)
        assert elf.elf_soname(descriptor) == elf.elf_search_path(descriptor) == ""
    finally:
        os.close(descriptor)
