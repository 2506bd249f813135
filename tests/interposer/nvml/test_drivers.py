"""The view on drivers that list more than the simulated one, or in another way, and on many processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from support import GIB, MIB
from support.simulation import Process

from .. import calls
from ..nvml_sandbox import VIEW, WORKER, nvml, setup, smi
from ..sandboxes import FOLDER, Make, Sandbox, compile_c
from .test_memory import using
from .test_processes import BESIDE_A_WORKER, NOT_FOUND, pids

Start = Callable[..., Process]
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nvml_odd.c as a library."""
    source = Path(__file__).with_name("nvml_odd.c")
    out = tmp_path_factory.mktemp("odd") / "libnvidia-ml.so"
    return compile_c(source, out, "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1")


@pytest.fixture
def container(sandbox: Make, worker: Start, driver: Path) -> tuple[Sandbox, Process, Process, Ask]:
    """A sandbox with two processes of 338 MiB and 1 GiB, and NVML's answers in it, from the odd driver."""
    inside = sandbox(4 * GIB)
    one, two = worker(inside), worker(inside)
    using(one, 338 * MIB)
    using(two, GIB)
    uuid = smi(inside, "--query-gpu=uuid", "--format=csv,noheader").strip()

    def ask(script: str, **says: str) -> Any:
        words = [f"ODD_{name.upper()}={value}" for name, value in {"uuid": uuid, **says}.items()]
        odd = f"mount --bind {driver} {FOLDER}/libnvidia-ml.real"
        return nvml(inside, script, "env", *words, more=odd)

    return inside, one, two, ask


Container = tuple[Sandbox, Process, Process, Ask]
#: A living process of no container. A pid without a process would make the list one of another PID namespace.
OTHER = os.getpid()


def test_a_process_under_mps_is_in_the_list_of_mps_alone(container: Container) -> None:
    _, one, two, ask = container
    script = """
said = [nvmlDeviceGetComputeRunningProcesses(card), nvmlDeviceGetMPSComputeRunningProcesses(card)]
said = [[[process.pid, process.usedGpuMemory] for process in each] for each in said]
"""
    compute, mps = ask(script, compute=f"{OTHER}:9 {two.pid()}:77", mps=f"{one.pid()}:55 {OTHER}:9")
    assert compute == [[two.pid(), 77]]
    assert mps == [[one.pid(), 55]]


def test_graphics_processes_are_this_containers(container: Container) -> None:
    _, one, _, ask = container
    script = "said = [process.pid for process in nvmlDeviceGetGraphicsRunningProcesses(card)]"
    assert ask(script, graphics=f"{OTHER}:9 {one.pid()}:55") == [one.pid()]
    assert ask(script, graphics=f"{OTHER}:9") == []


def test_where_the_driver_reports_nothing_the_accounts_figure_stands(container: Container) -> None:
    inside, one, two, ask = container
    script = """
said = {process.pid: process.usedGpuMemory for process in nvmlDeviceGetComputeRunningProcesses(card)}
"""
    unknown = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
    said = ask(script, compute=f"{one.pid()}:{unknown} {two.pid()}:5")
    account = {entry.pid: entry.used for entry in inside.usage()}
    assert said == {str(one.pid()): account[one.pid()], str(two.pid()): 5}


@pytest.mark.parametrize(("version", "size"), [("535.54.03", 32), ("535.104.05", 24), ("550.54.14", 24)])
def test_the_third_versions_entries_are_as_long_as_the_drivers(
    container: Container, version: str, size: int
) -> None:
    _, one, two, ask = container
    script = f"""
library = ctypes.CDLL("libnvidia-ml.so.1")
count, array = ctypes.c_uint(2), (ctypes.c_ubyte * 128)()
ctypes.memset(array, 0xee, 128)
said = [library.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(count), array), count.value]
said += [int.from_bytes(bytes(array)[at:at + 4], "little") for at in (0, {size})]
said += [bytes(array).rstrip(b"\\xee").__len__()]
"""
    result, count, *found, length = ask(script, version=version, compute=f"{one.pid()}:5 {two.pid()}:6")
    assert (result, count, length) == (0, 2, 2 * size)
    assert sorted(found) == sorted([one.pid(), two.pid()])


#: A context. After it the driver lists this process with 1 GiB, behind others.
SECOND_IN_THE_LIST = """
import ctypes, os
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
os.environ["ODD_COMPUTE"] = f"1:9 1:9 {os.getpid()}:{1 << 30}"
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(total.value - free.value)
"""


@pytest.mark.parametrize("version", ["535.54.03", "550.54.14"])
def test_the_drivers_report_is_read_whatever_length_its_entries_have(
    sandbox: Make, driver: Path, version: str
) -> None:
    odd = f"mount --bind {driver} {FOLDER}/libnvidia-ml.real"
    done = sandbox(4 * GIB).run(
        [sys.executable, "-c", SECOND_IN_THE_LIST], setup=odd, env={"ODD_VERSION": version}
    )
    assert done.stdout == f"{GIB}\n", done.stderr


#: The number of lists that a question for free memory asks for, by the lists that have this process and its
#: bytes.
LISTS_OF_A_QUESTION = """
asked = ctypes.c_int.in_dll(ctypes.CDLL(FOLDER + "/libnvidia-ml.real"), "odd_lists")
for places in ["ODD_COMPUTE"], ["ODD_GRAPHICS"], ["ODD_MPS"], []:
    for each in "ODD_COMPUTE", "ODD_GRAPHICS", "ODD_MPS":
        os.environ[each] = f"1:9 {os.getpid()}:{(1 << 30) if each in places else 0}"
    before = asked.value
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    print(asked.value - before, (total.value - free.value) >> 20)
"""


def test_lists_are_asked_for_until_one_has_this_process(sandbox: Make, driver: Path) -> None:
    odd = f"mount --bind {driver} {FOLDER}/libnvidia-ml.real"
    program = f"FOLDER = {FOLDER!r}\n{SECOND_IN_THE_LIST}{LISTS_OF_A_QUESTION}"
    done = sandbox(4 * GIB).run([sys.executable, "-c", program], setup=odd)
    assert done.stdout.splitlines()[1:] == ["1 1024", "2 1024", "3 1024", "3 0"], done.stderr


@pytest.mark.parametrize(
    ("come", "known"),
    [
        ([300], True),
        ([300, 300], False),  # either could be this process
        ([], False),
        ([2000], False),  # more than the card has lost
        ([10], False),  # less than a context takes: it is another process, and the card's loss is not its own
    ],
)
def test_a_process_that_appears_with_the_context_is_taken_for_this_one_only_if_it_fits(
    caller: calls.Start, driver: Path, come: list[int], known: bool
) -> None:
    environ = {
        "ODD_COMPUTE": f"70000:{MIB} 70001:{GIB}",
        "ODD_TAKEN": str(320 * MIB),
        "ODD_COME": " ".join(f"{80000 + at}:{mib * MIB}" for at, mib in enumerate(come)),
    }
    odd = f"mount --bind {driver} {FOLDER}/libnvidia-ml.real"
    _, free, total = caller(4 * GIB, setup=odd, **environ).info()
    # Otherwise the card's free memory tells the size.
    assert total - free == (300 if known else 320) * MIB


def test_sessions_of_the_encoder_are_this_containers(container: Container) -> None:
    _, one, _, ask = container
    script = """
library = ctypes.CDLL("libnvidia-ml.so.1")
count, room = ctypes.c_uint(1), (c_nvmlEncoderSession_t * 2)()
said = [[session.sessionId for session in nvmlDeviceGetEncoderSessions(card)],
        [session.sessionId for session in nvmlDeviceGetFBCSessions(card)],
        ask(nvmlDeviceGetEncoderStats, card), ask(nvmlDeviceGetFBCStats, card),
        library.nvmlDeviceGetEncoderSessions(card, ctypes.byref(count), room), count.value]
"""
    said = ask(script, sessions=f"{one.pid()}:30:4 {OTHER}:90:90 {one.pid()}:10:2")
    shared = {"sessionsCount": 2, "averageFPS": 20, "averageLatency": 3}
    assert said == [[1, 3], [1, 3], [2, 20, 3], shared, pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 2]
    nobody = {"sessionsCount": 0, "averageFPS": 0, "averageLatency": 0}
    assert ask(script, sessions=f"{OTHER}:90:90") == [[], [], [0, 0, 0], nobody, 0, 0]


def test_utilisation_is_the_sum_of_the_newest_samples_of_each_process(container: Container) -> None:
    _, one, two, ask = container
    script = """
said = [plain(nvmlDeviceGetUtilizationRates(card)), nvmlDeviceGetEncoderUtilization(card)[0],
        nvmlDeviceGetDecoderUtilization(card)[0],
        ask(lambda: [[s.pid, s.smUtil] for s in nvmlDeviceGetProcessUtilization(card, 0)])]
"""
    mine = f"{one.pid()}:30:1000 {two.pid()}:20:1000 {one.pid()}:50:3000 {one.pid()}:10:2000"
    listed = f"{one.pid()}:5 {two.pid()}:5"
    rates, encoder, decoder, samples = ask(script, compute=listed, samples=f"{OTHER}:90:1000 {mine}")
    assert (rates, encoder, decoder) == ({"gpu": 70, "memory": 35}, 14, 7)
    assert samples == [[one.pid(), 30], [two.pid(), 20], [one.pid(), 50], [one.pid(), 10]]
    much = ask(script, compute=listed, samples=f"{one.pid()}:90:9 {two.pid()}:90:9")
    assert much[:3] == [{"gpu": 100, "memory": 90}, 36, 18]
    assert ask(script, compute=listed, samples=f"{OTHER}:90:9") == [{"gpu": 0, "memory": 0}, 0, 0, NOT_FOUND]
    unlisted = ask(script, compute=f"{OTHER}:9", samples=f"{OTHER}:90:9")
    assert unlisted[0] == {"gpu": 100, "memory": 90}, "the driver knows no pid of ours: its own answer"


def test_engines_for_jpeg_and_optical_flow_are_as_busy_as_this_container_makes_them(
    container: Container,
) -> None:
    _, one, two, ask = container
    script = """
def newest(kind):
    return nvmlDeviceGetSamples(card, kind, 0)[1][0].sampleValue.uiVal
said = [nvmlDeviceGetJpgUtilization(card)[0], nvmlDeviceGetOfaUtilization(card)[0], newest(8), newest(9)]
"""
    listed = f"{one.pid()}:5 {two.pid()}:5"
    mine = f"{one.pid()}:30:1000 {two.pid()}:20:1000 {one.pid()}:40:3000"
    assert ask(script, compute=listed, samples=f"{OTHER}:90:4000 {mine}") == [60, 30, 60, 30]
    assert ask(script, compute=listed, samples=f"{OTHER}:90:4000") == [0, 0, 0, 0]
    older = ask(script, compute=listed, samples=mine, older="1")
    assert older == [100] * 4, "a driver that tells them of no process: its own answer"


def test_protected_memory_is_bounded_by_the_slice(container: Container) -> None:
    inside, _, _, ask = container
    script = """
said = [plain(nvmlDeviceGetConfComputeMemSizeInfo(card)),
        plain(nvmlDeviceGetConfComputeProtectedMemoryUsage(card))]
"""
    size, usage = ask(script)
    assert size == {"protectedMemSizeKib": 4 * GIB >> 10, "unprotectedMemSizeKib": GIB >> 11}
    used = inside.total()
    assert usage == {"total": 4 * GIB, "free": 4 * GIB - used, "used": used}


def test_two_processes_with_the_same_pid_are_both_listed(sandbox: Make) -> None:
    # The driver does not report the size of a context that takes no memory.
    inside = sandbox(4 * GIB, topology={"driver": "R580", "gpus": [{"model": "T4", "context_mib": 64}]})
    own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    script = [sys.executable, "-c", BESIDE_A_WORKER, str(WORKER), VIEW, "cat"]
    started = [
        inside.start([*own, *script], setup=setup(inside), stdin=-1, stdout=-1, text=True) for _ in range(2)
    ]
    own_pids = [int(one.stdout.readline()) for one in started]
    assert own_pids[0] == own_pids[1]
    listed = nvml(inside, "said = ask(nvmlDeviceGetComputeRunningProcesses, card)")
    for one in started:
        one.communicate()
    assert pids(listed) == own_pids
    assert all(GIB <= entry["usedGpuMemory"] < GIB + 100 * MIB for entry in listed)


#: Forks children that each hold some memory, then prints NVML's list of them.
MANY = """
import ctypes, os, signal
children = []
ready, told = os.pipe()
for _ in range(48):
    child = os.fork()
    if child == 0:
        cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        pointer = ctypes.c_ulonglong()
        failed = (cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
                  or cuda.cuCtxSetCurrent(context) or cuda.cuMemAlloc_v2(ctypes.byref(pointer), 2 << 20))
        os.write(told, b"x" if failed else b".")
        signal.pause()
    children.append(child)
results = b"".join(os.read(ready, 1) for _ in children)
from pynvml import *
nvmlInit()
listed = nvmlDeviceGetComputeRunningProcesses(nvmlDeviceGetHandleByIndex(0))
print(results == b"." * 48, sorted(process.pid for process in listed) == sorted(children))
for child in children:
    os.kill(child, signal.SIGKILL)
"""


def test_more_processes_than_a_guess_are_all_listed(sandbox: Make) -> None:
    done = sandbox(4 * GIB).python(MANY)
    assert done.stdout == "True True\n", done.stdout + done.stderr
