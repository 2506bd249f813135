"""The compiled parts: loadable in old images, true to NVIDIA's headers, and free of memory errors."""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.simulation import build_sanitized, compile_program
from xpu_simulator.simulator import SimState

Up = Callable[..., SimState]
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


def test_functions_are_found_by_name_and_version(up: Up) -> None:
    folder = next(Path(up("1xT4").root).glob("usr/lib/*-linux-gnu"))
    cuda = ctypes.CDLL(str(folder / "libcuda.so.1"))

    def find(name: str, version: int) -> tuple[int, int | None, int]:
        function, status = ctypes.c_void_p(), ctypes.c_int()
        result = cuda.cuGetProcAddress_v2(
            name.encode(), ctypes.byref(function), version, ctypes.c_uint64(0), ctypes.byref(status)
        )
        return result, function.value, status.value

    def address(symbol: str) -> int | None:
        return ctypes.cast(getattr(cuda, symbol), ctypes.c_void_p).value

    assert find("cuMemAlloc", 13000) == (0, address("cuMemAlloc_v2"), 0)
    assert find("cuCtxCreate", 13000) == (0, address("cuCtxCreate_v4"), 0)
    assert find("cuCtxCreate", 12000) == (0, address("cuCtxCreate_v3"), 0)
    assert find("cuCtxCreate", 11000) == (0, address("cuCtxCreate_v2"), 0)
    assert find("cuGetProcAddress", 11030) == (0, address("cuGetProcAddress"), 0)
    assert find("cuLaunchKernel", 2000) == (0, None, 2)
    assert find("cuNoSuchThing", 13000) == (0, None, 1)


def test_an_older_driver_does_not_hand_out_newer_functions(up: Up) -> None:
    folder = next(Path(up("1xT4-R470").root).glob("usr/lib/*-linux-gnu"))
    cuda = ctypes.CDLL(str(folder / "libcuda.so.1"))
    version, function = ctypes.c_int(), ctypes.c_void_p()
    assert (cuda.cuDriverGetVersion(ctypes.byref(version)), version.value) == (0, 11040)
    cuda.cuGetProcAddress(b"cuCtxCreate", ctypes.byref(function), 13000, ctypes.c_uint64(0))
    assert function.value == ctypes.cast(cuda.cuCtxCreate_v3, ctypes.c_void_p).value


@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_sanitizers_find_no_error_in_a_program_with_many_threads(up: Up, tmp_path: Path, kind: str) -> None:
    state = up("1xT4", native=str(build_sanitized(kind)))
    folder = next(Path(state.root).glob("usr/lib/*-linux-gnu"))
    program = compile_program(state, Path(__file__).with_name("workload.c"), tmp_path, kind)
    done = subprocess.run([program], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    # The sanitizers' own dlopen does not know the program's RUNPATH.
    environ = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    smi = [f"{state.root}/usr/bin/nvidia-smi"]
    table = subprocess.run(smi, capture_output=True, text=True, timeout=60, env=environ)
    assert (table.returncode, table.stderr) == (0, "")
    assert "0MiB /  15360MiB" in table.stdout
    pidfd = os.pidfd_open(state.pid)
    signal.pidfd_send_signal(pidfd, signal.SIGTERM)
    assert select.select([pidfd], [], [], 60)[0]
    os.close(pidfd)
    log = Path(state.root).with_name("log").read_text()
    assert log.splitlines()[-1].endswith("ended")
    assert "Sanitizer" not in log and "runtime error" not in log
