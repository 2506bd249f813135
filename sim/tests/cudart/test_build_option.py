"""Only a simulator built with CUDART=1 says that it is NVIDIA's driver, and no such build is installed."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

from support import REPOSITORY
from support.exports import listed

#: The table by which the CUDA runtime asks (sim/cuda/export.c), and the answer of a driver without it.
VALIDITY = bytes.fromhex("d4082055bde6704b8d34ba123c66e1f2")
SUCCESS, INVALID_VALUE = 0, 1


def answer(library: Path) -> int:
    table = ctypes.c_void_p()
    return int(ctypes.CDLL(str(library)).cuGetExportTable(ctypes.byref(table), VALIDITY))


def test_the_build_for_tests_answers(native_with_cudart: Path) -> None:
    libraries = sorted(native_with_cudart.glob("libcuda-*.so"))
    assert len(libraries) == len(listed("libcuda"))
    assert {answer(library) for library in libraries} == {SUCCESS}


def test_an_installed_simulator_does_not_answer_even_with_the_option(tmp_path: Path) -> None:
    subprocess.run(
        ["make", "-s", "install", f"DESTDIR={tmp_path}", "PREFIX=/usr", "CUDART=1"],
        cwd=REPOSITORY,
        env={**os.environ, "CUDART": "1"},
        check=True,
        timeout=300,
    )
    libraries = sorted(tmp_path.rglob("libcuda-*.so"))
    assert len(libraries) == len(listed("libcuda"))
    assert {answer(library) for library in libraries} == {INVALID_VALUE}
