"""The system calls, and the two ways to libc that an interpreter may have."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from xpu_runtime.linux import syscalls

SOURCE = Path(syscalls.__file__).parents[2]

USE = """
import errno, os, sys
sys.path.insert(0, sys.argv[1])
if sys.argv[2] == "ctypes":
    import ctypes
    sys.modules["_ctypes"] = None
from xpu_runtime.linux import syscalls
assert ("ctypes" in sys.modules) == (sys.argv[2] == "ctypes")
folder = os.open("/etc", os.O_PATH)
fd = syscalls.openat2(folder, "/../passwd", os.O_RDONLY, resolve=syscalls.RESOLVE_IN_ROOT)
assert os.path.samestat(os.fstat(fd), os.stat("/etc/passwd"))
assert not os.get_inheritable(fd)
try:
    syscalls.openat2(folder, "none", os.O_RDONLY)
except FileNotFoundError as error:
    assert error.filename == "none"
else:
    raise AssertionError("a file that is missing was opened")
word = bytearray(8)
import struct
ids = bytearray(8)
cgroup = os.open("/sys/fs/cgroup/unified", os.O_RDONLY)
query = bytearray(struct.pack("=IIIIQI4x", cgroup, 6, 0, 9, syscalls.address_of(ids), 2))
syscalls.bpf(16, query)
assert struct.unpack_from("=I", query, 24)[0] == 0  # written by the kernel: no programs
"""


@pytest.mark.parametrize("way", ["_ctypes", "ctypes"])
def test_both_ways_to_libc_do_the_same(way: str) -> None:
    subprocess.run([sys.executable, "-I", "-c", USE, SOURCE, way], check=True)


def test_an_error_has_the_number_the_words_and_the_path() -> None:
    with pytest.raises(OSError) as caught:
        syscalls.umount2("/no/such/mount", 0)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, "/no/such/mount")
    assert caught.value.strerror == os.strerror(errno.ENOENT)


def test_an_error_without_a_path_names_none(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file, pytest.raises(OSError) as caught:
        syscalls.setns(file.fileno(), 0)
    assert caught.value.errno == errno.EINVAL
    assert caught.value.filename is None


def test_a_path_with_a_nul_is_no_path() -> None:
    with pytest.raises(ValueError, match="NUL"):
        syscalls.openat2(syscalls.AT_FDCWD, "/etc\0/passwd", os.O_RDONLY)
