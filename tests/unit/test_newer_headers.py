"""packaging/newer_headers.py: it reports headers newer than the pinned ones, and does not fail."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import headers
from support import REPOSITORY

PINNED = headers.pinned()["nvidia-cuda-runtime"]
KNOWN = "CUresult CUDAAPI cuMemAlloc(CUdeviceptr *pointer);\n"


def said(folder: Path, pip: str) -> list[str]:
    """The lines for cuda.h's wheel, with a script instead of pip."""
    script = folder / "pip"
    find = 'for to in "$@"; do [ "$was" = --dest ] && dest=$to; was=$to; done'
    script.write_text(f"#!/bin/sh\n{find}\n{pip}\n")
    script.chmod(0o755)
    done = subprocess.run(
        [sys.executable, REPOSITORY / "packaging/newer_headers.py", script], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == len(headers.pinned())
    return [line for line in lines if "nvidia-cuda-runtime" in line]


def wheel(folder: Path, version: str, text: str) -> str:
    """The command of a pip that finds a wheel with this cuda.h."""
    file = folder / f"nvidia_cuda_runtime-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("nvidia/cu99/include/cuda.h", text)
    return f'cp {file} "$dest"'


def test_nothing_newer(tmp_path: Path) -> None:
    (line,) = said(tmp_path, wheel(tmp_path, PINNED, KNOWN))
    assert line == f"nvidia-cuda-runtime: {PINNED}, which the tests use, is the newest"


def test_a_newer_one_is_told_with_its_new_functions(tmp_path: Path) -> None:
    new = "CUresult CUDAAPI cuBrandNew(void);\n"
    decided = "native/interposer/nvidia/cuda/driver/functions.txt"
    for text, told in (
        (KNOWN, "no function is new in it"),
        (KNOWN + new, f"without a decision in {decided}: cuBrandNew"),
    ):
        (line,) = said(tmp_path, wheel(tmp_path, "99.1.2", text))
        assert line.startswith(f"WARNING: nvidia-cuda-runtime: there is 99.1.2, the tests use {PINNED}; ")
        assert line.endswith(told)


@pytest.mark.parametrize(
    ("pip", "reason"),
    [
        ("echo a >&2; echo 'no route to host' >&2; exit 1", "pip: no route to host"),
        ("exit 0", "pip: it said nothing"),
        ('echo x > "$dest/nvidia_cuda_runtime-99.1-py3-none-any.whl"', "99.1-py3-none-any.whl: File is not"),
    ],
)
def test_an_index_that_cannot_be_asked_is_no_failure(tmp_path: Path, pip: str, reason: str) -> None:
    (line,) = said(tmp_path, pip)
    assert line.startswith(f"nvidia-cuda-runtime: could not look for a newer one than {PINNED}: ")
    assert reason in line


def test_a_wheel_without_the_headers_is_none(tmp_path: Path) -> None:
    (line,) = said(tmp_path, wheel(tmp_path, "99.1.2", "nothing\n"))
    assert "could not look" in line
    assert "no functions in cuda.h" in line
