"""Two promises of the interposers: no thread without a cap on cores, and no variable lifts a limit."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from support import GIB, REPOSITORY

from .sandboxes import Make

#: Uses CUDA and NVML, then prints the number of its threads and how the limit was held.
PROGRAM = """
import ctypes, os
before = len(os.listdir("/proc/self/task"))
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and nvml.nvmlInit_v2() == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
result = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2 << 30))
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)) == 0
print(len(os.listdir("/proc/self/task")) - before, total.value, result)
"""


def threads_of_the_driver(sandbox: Make) -> int:
    """The threads that the simulated driver's libraries start by themselves."""
    environ = {**os.environ, "LD_LIBRARY_PATH": str(sandbox(GIB).driver)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True)
    return int(done.stdout.split()[0])


def test_without_a_cap_on_cores_no_thread_is_started(sandbox: Make) -> None:
    done = sandbox(GIB).python(PROGRAM)
    assert int(done.stdout.split()[0]) == threads_of_the_driver(sandbox), done.stderr


@pytest.mark.parametrize(
    "environ",
    [
        {"XPU_MEM": "100G", "XPU_ENFORCE": "none", "XPU_LOG": "nothing", "XPU_DISABLE": "1"},
        {"CUDA_DEVICE_MEMORY_LIMIT": "100g", "NVIDIA_GPU_MEMORY_LIMIT": "102400", "GPU_MEMORY_LIMIT": "0"},
        {"CUDA_VISIBLE_DEVICES": "0", "CUDA_MODULE_LOADING": "EAGER", "CUDA_MPS_PIPE_DIRECTORY": "/none"},
        {"LD_BIND_NOW": "1", "GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=0"},
    ],
    ids=lambda environ: next(iter(environ)),
)
def test_no_environment_variable_lifts_a_limit(sandbox: Make, environ: dict[str, str]) -> None:
    done = sandbox(GIB).python(PROGRAM, env=environ)
    assert done.stdout.split()[1:] == [str(GIB), "2"], done.stderr


def test_a_variable_can_ask_only_for_a_log_or_for_less_than_the_limit() -> None:
    asked = set()
    for folder in ("native/account", "native/interposer/nvidia"):
        for source in (REPOSITORY / folder).rglob("*.c"):
            asked |= set(re.findall(r'getenv\(("?\w+"?)', source.read_text()))
    assert asked == {'"XPU_LOG"', '"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"'}
