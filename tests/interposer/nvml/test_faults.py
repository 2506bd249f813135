"""The NVML interposer without a valid slice, with threads and forks, and under sanitizers."""

from __future__ import annotations

import json
import re
import subprocess
from binascii import crc32
from collections.abc import Callable
from pathlib import Path

import pytest

from support import GIB, MIB
from support.simulation import SUCCESS, Process

from ..nvml_sandbox import nvml
from ..sandboxes import FOLDER, FORK_FENCE, Make, Sandbox, build, compile_c

Start = Callable[..., Process]
#: The sanitizers, and the number of forks beside the threads. ThreadSanitizer follows no fork.
SANITIZERS = [("", 20), ("address,undefined", 0), ("address,undefined", 5), ("thread", 0)]


def without(name: str) -> str:
    return f"umount {FOLDER}/{name}; rm {FOLDER}/{name}"


@pytest.mark.parametrize("name", ["quota", "usage"])
def test_without_its_pages_nvml_does_not_start_and_says_why_once(sandbox: Make, name: str) -> None:
    script = """
import ctypes
library = ctypes.CDLL("libnvidia-ml.so.1")
print([library.nvmlInit_v2(), library.nvmlInit(), library.nvmlInitWithFlags(0), library.nvmlShutdown()])
"""
    done = sandbox(GIB).python(script, setup=without(name))
    assert json.loads(done.stdout) == [4, 4, 4, 1], "the real library was not started, either"
    [line] = done.stderr.splitlines()
    assert f"{FOLDER}/{name}" in line


def test_nvml_that_was_started_past_the_interposer_tells_it_nothing(sandbox: Make) -> None:
    script = f"""
import ctypes
library, real = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("{FOLDER}/libnvidia-ml.real")
device, memory, count = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)(), ctypes.c_uint(0)
said = [real.nvmlInit_v2(), real.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))]
said.append(library.nvmlDeviceGetMemoryInfo(device, memory))
said.append(library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), None))
print(said, list(memory))
"""
    done = sandbox(GIB).python(script, setup=without("quota"))
    assert done.stdout == "[0, 0, 4, 4] [0, 0, 0]\n"


def test_a_device_of_another_grant_is_as_the_driver_says(sandbox: Make) -> None:
    inside = sandbox(GIB)
    page = bytearray((inside.pages / "quota").read_bytes())
    page[1024:1040] = bytes(range(16))
    page[12:16] = bytes(4)
    page[12:16] = crc32(page[:2048]).to_bytes(4, "little")
    (inside.pages / "quota").write_bytes(page)
    assert nvml(inside, "said = nvmlDeviceGetMemoryInfo(card).total") == 15360 * MIB


def test_the_interposer_only_looks_at_stderr_when_it_is_loaded(interposers: Path) -> None:
    sections = subprocess.run(
        ["readelf", "-SW", interposers / "libnvidia-ml.so.1"], check=True, capture_output=True, text=True
    ).stdout
    [size] = re.findall(r"\.init_array\s+INIT_ARRAY\s+\S+\s+\S+\s+(\S+)", sections)
    assert int(size, 16) == 2 * 8, "the compiler's own entry, and log.c's"


def test_nvmls_count_of_users_is_the_drivers(sandbox: Make) -> None:
    script = """
library = ctypes.CDLL("libnvidia-ml.so.1")
said = [library.nvmlInit_v2(), library.nvmlShutdown(), ask(nvmlDeviceGetMemoryInfo, card)["total"],
        library.nvmlShutdown(), ask(nvmlDeviceGetMemoryInfo, card), library.nvmlShutdown()]
library.nvmlInit_v2()
said.append(ask(nvmlDeviceGetMemoryInfo, nvmlDeviceGetHandleByIndex(0))["total"])
"""
    assert nvml(sandbox(GIB), script) == [0, 0, GIB, 0, {"error": 1}, 1, GIB]


@pytest.mark.parametrize(("kind", "forks"), SANITIZERS)
def test_threads_and_forks_get_right_answers_while_processes_come_and_go(
    sandbox: Make, worker: Start, tmp_path: Path, interposers: Path, kind: str, forks: int
) -> None:
    source = Path(__file__).with_name("nvml_calls.c")
    options = [f"-fsanitize={kind}", "-fno-sanitize-recover=all"] if kind else []
    # With the fence, LeakSanitizer no longer knows the dynamic loader's allocations and reports them as
    # leaks.
    fenced = bool(kind and forks)
    environ = {"ASAN_OPTIONS": f"detect_leaks={int(not fenced)}", "TSAN_OPTIONS": "halt_on_error=1"}
    sources = [FORK_FENCE] if fenced else []
    program = compile_c(source, tmp_path / "calls", *sources, *options, "-ldl")
    plain = sandbox(GIB)
    inside = Sandbox(plain.pages, plain.driver_root, build(kind) if kind else interposers)
    threads, rounds = (4, 15) if kind else (8, 40)
    calls = inside.start(
        [str(program), str(threads), str(rounds), str(forks)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(500):  # some dozens of rounds are enough; a program that hangs ends the loop
        if calls.poll() is not None:
            break
        one = worker(plain)
        assert one.start() == SUCCESS
        one.alloc(MIB)
        one.kill()
    out, err = calls.communicate(timeout=120)
    assert (calls.returncode, err) == (0, ""), out + err
    assert int(out) > threads * rounds * 8
