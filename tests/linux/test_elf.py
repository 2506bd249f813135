"""What is read of a library file, against what gcc was told to make, and of files that are none."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xpu_runtime.linux.elf import Elf, elf_soname, read_elf

HERE = platform.machine()


def test_the_soname_and_machine_of_a_library_are_read(compile_c: Callable[..., Path]) -> None:
    library = compile_c("libreal", "int x;", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1")
    assert read_elf(str(library)) == Elf(HERE, "libcuda.so.1")
    with open(library, "rb") as file:
        assert elf_soname(file.fileno()) == "libcuda.so.1"


def test_a_library_without_a_soname_has_none(compile_c: Callable[..., Path]) -> None:
    library = compile_c("libbare", "int x;", "-shared", "-nostdlib")
    assert read_elf(str(library)) == Elf(HERE, None)


@pytest.mark.skipif(HERE != "x86_64", reason="gcc makes 32-bit libraries for x86 only")
def test_a_32_bit_library_is_known_by_its_machine(compile_c: Callable[..., Path]) -> None:
    flags = ("-m32", "-ffreestanding", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1")
    library = compile_c("lib32", "int x;", *flags)
    assert read_elf(str(library)) == Elf("i386", "libcuda.so.1")


def test_every_library_of_the_ld_cache_has_the_soname_that_readelf_prints() -> None:
    listed = subprocess.run(["ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    libraries = sorted(
        {os.path.realpath(line.split(" => ")[1]) for line in listed.splitlines()[1:] if " => " in line}
    )
    assert len(libraries) > 10
    for library in libraries[:60]:
        shown = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
        names = [line.split("[")[1].rstrip("]") for line in shown.splitlines() if "(SONAME)" in line]
        assert elf_soname(library) == (names[0] if names else None), library


@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_no_library(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        assert read_elf(str(path)) is None


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_elf(str(tmp_path / "libnone.so"))


@pytest.fixture(scope="module")
def small_library(compile_c: Callable[..., Path]) -> Path:
    return compile_c("libsmall", "int x;", "-shared", "-nostdlib", "-Wl,-soname,libsmall.so.1")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elf") / "file"


@settings(deadline=None)
@given(cut=st.integers(0, 1 << 14))
def test_a_library_cut_off_anywhere_does_no_harm(small_library: Path, scratch: Path, cut: int) -> None:
    whole = small_library.read_bytes()
    scratch.write_bytes(whole[: cut % len(whole)])
    assert elf_soname(str(scratch)) in (None, "libsmall.so.1")


@settings(deadline=None)
@given(at=st.integers(0, 400), word=st.binary(min_size=8, max_size=8))
def test_a_library_with_hostile_headers_does_no_harm(
    small_library: Path, scratch: Path, at: int, word: bytes
) -> None:
    whole = small_library.read_bytes()
    scratch.write_bytes(whole[:at] + word + whole[at + 8 :])
    read_elf(str(scratch))


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_garbage_behind_the_magic_does_no_harm(rest: bytes) -> None:
    descriptor = os.memfd_create("garbage")
    try:
        os.write(descriptor, b"\x7fELF\x02\x01" + rest)
        read_elf(descriptor)
    finally:
        os.close(descriptor)
