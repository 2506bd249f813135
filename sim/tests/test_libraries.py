"""The compiled parts: loadable in old images, true to NVIDIA's headers, and free of memory errors."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from support.simulation import Up, assert_driver_ends_well, build_sanitized, compile_program, libraries

CLIENTS = (
    *(f"{library}-{branch}.so" for library in ("libcuda", "libnvidia-ml") for branch in ("R470", "R615")),
    "nvidia-smi",
)


@pytest.mark.parametrize("name", CLIENTS)
def test_files_for_containers_need_no_glibc_newer_than_2_28(native: Path, name: str) -> None:
    listed = subprocess.run(
        ["objdump", "-T", native / name], capture_output=True, text=True, check=True
    ).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", listed)}
    assert versions, "it does use glibc"
    assert max(versions) <= (2, 28)


@pytest.mark.parametrize("name", CLIENTS)
def test_files_for_containers_need_only_libc(native: Path, name: str) -> None:
    dynamic = subprocess.run(
        ["readelf", "-d", native / name], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))
    assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    soname = re.findall(r"\(SONAME\).*\[(.+)\]", dynamic)
    assert soname == ([] if name == "nvidia-smi" else [f"{name.rpartition('-')[0]}.so.1"])


@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_sanitizers_find_no_error_in_a_program_with_many_threads(up: Up, tmp_path: Path, kind: str) -> None:
    state = up("1xT4", native=str(build_sanitized(kind)))
    program = compile_program(state, Path(__file__).with_name("workload.c"), tmp_path, kind)
    done = subprocess.run([program], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    # The sanitizers' own dlopen does not know the program's RUNPATH.
    environ = {**os.environ, "LD_LIBRARY_PATH": str(libraries(state.root))}
    smi = [f"{state.root}/usr/bin/nvidia-smi"]
    table = subprocess.run(smi, capture_output=True, text=True, timeout=60, env=environ)
    assert (table.returncode, table.stderr) == (0, "")
    assert "0MiB /  15360MiB" in table.stdout
    assert_driver_ends_well(state)
