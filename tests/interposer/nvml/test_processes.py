"""Processes and utilisation by NVML in a sandbox: this container's own alone."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from support import GIB, MIB
from support.simulation import SUCCESS, Process

from ..nvml_sandbox import VIEW, WORKER, nvml, setup, smi
from ..sandboxes import Make, Sandbox
from .test_memory import beside, using

Start = Callable[..., Process]
NOT_FOUND = {"error": pynvml.NVML_ERROR_NOT_FOUND}


def pids(entries: list[dict[str, Any]]) -> list[int]:
    return [entry["pid"] for entry in entries]


def two_containers(sandbox: Make, worker: Start, folder: Path) -> tuple[Sandbox, Process, Process]:
    """A sandbox with a process of 338 MiB, and another container's process of 1 GiB on the same card."""
    inside = sandbox(4 * GIB)
    mine, other = worker(inside), worker(beside(inside, folder, 4 * GIB))
    using(mine, 338 * MIB)
    using(other, GIB)
    return inside, mine, other


def keep_busy(process: Process) -> None:
    """Keeps the card busy with this process. Two seconds of samples show it, and the work goes on for as long
    as a slow test needs."""
    assert process.launch("busy_2400ms") == SUCCESS
    second = process.event()
    assert process.launch("busy_600000ms") == SUCCESS
    assert process.event_synchronize(second) == SUCCESS


def test_only_this_containers_processes_are_listed(sandbox: Make, worker: Start, tmp_path: Path) -> None:
    inside, mine, other = two_containers(sandbox, worker, tmp_path)
    script = f"""
others, mine = {other.pid()}, {mine.pid()}
said = {{
    "second": ask(nvmlDeviceGetComputeRunningProcesses_v2, card),
    "third": ask(nvmlDeviceGetComputeRunningProcesses_v3, card),
    "graphics": ask(nvmlDeviceGetGraphicsRunningProcesses, card),
    "mps": ask(nvmlDeviceGetMPSComputeRunningProcesses_v3, card),
    "details": ask(nvmlDeviceGetRunningProcessDetailList, card, nvmlProcessDetailList_v1, 0),
    "accounted": ask(nvmlDeviceGetAccountingPids, card),
    "stats": ask(nvmlDeviceGetAccountingStats, card, mine)["maxMemoryUsage"],
    "other stats": ask(nvmlDeviceGetAccountingStats, card, others),
    "name": ask(nvmlSystemGetProcessName, mine),
    "other name": ask(nvmlSystemGetProcessName, others),
    "no name": ask(nvmlSystemGetProcessName, 1),
    "sessions": [ask(nvmlDeviceGetEncoderSessions, card), ask(nvmlDeviceGetFBCSessions, card)],
    "encoder": ask(nvmlDeviceGetEncoderStats, card),
}}
"""
    said = nvml(inside, script)
    used = said["third"][0]["usedGpuMemory"]
    assert 338 * MIB <= used <= inside.total()
    without_mig = {"gpuInstanceId": 2**32 - 1, "computeInstanceId": 2**32 - 1}
    whole = {"pid": mine.pid(), "usedGpuMemory": used, **without_mig}
    assert said["second"] == said["third"] == [whole]
    assert [entry | whole for entry in said["details"]] == said["details"] != []
    assert said["graphics"] == said["mps"] == []
    assert said["accounted"] == [mine.pid()]
    assert (said["stats"], said["other stats"]) == (used, NOT_FOUND)
    assert said["name"].endswith(Path(sys.executable).name)
    assert said["other name"] == said["no name"] == NOT_FOUND
    assert said["sessions"] == [[], []]
    assert said["encoder"] == [0, 0, 0]


def test_nvidia_smi_shows_the_slice_and_its_processes(sandbox: Make, worker: Start, tmp_path: Path) -> None:
    inside, mine, _ = two_containers(sandbox, worker, tmp_path)
    table = smi(inside)
    used = inside.total() // MIB
    assert f"{used:>8}MiB /   4096MiB |" in table
    [row] = [line for line in table.splitlines() if re.search(r" C   .*MiB \|$", line)]
    assert row.split()[1:6] == ["0", "N/A", "N/A", str(mine.pid()), "C"]
    assert Path(sys.executable).name in row
    assert int(row.split()[-2].removesuffix("MiB")) in range(338, used + 1)
    listed = smi(inside, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    assert listed.split(", ")[0] == str(mine.pid())


def test_a_killed_process_is_gone_from_the_list(sandbox: Make, worker: Start) -> None:
    inside = sandbox(4 * GIB)
    one, two = worker(inside), worker(inside)
    using(one, GIB)
    using(two, GIB)
    listed = two.nvml("nvmlDeviceGetComputeRunningProcesses")
    assert sorted(pids(listed)) == sorted([one.pid(), two.pid()])
    one.kill()
    assert pids(two.nvml("nvmlDeviceGetComputeRunningProcesses")) == [two.pid()]


def test_utilisation_is_this_containers(sandbox: Make, worker: Start, tmp_path: Path) -> None:
    inside, mine, other = two_containers(sandbox, worker, tmp_path)
    states = "said = [part.percentage for part in nvmlDeviceGetDynamicPstatesInfo(card).utilization][:4]"
    keep_busy(other)
    # The card was busy for the last second with another container's work.
    rates = other.nvml("nvmlDeviceGetUtilizationRates")
    assert rates["gpu"] > 90
    assert mine.nvml("nvmlDeviceGetUtilizationRates") == {"gpu": 0, "memory": 0}
    assert mine.nvml("nvmlDeviceGetProcessUtilization", 0, 0) == NOT_FOUND
    assert mine.nvml("nvmlDeviceGetProcessesUtilizationInfo", 0, 0) == NOT_FOUND
    assert mine.nvml("nvmlDeviceGetEncoderUtilization") == [0, 1000000]
    assert nvml(inside, states)[0] == 0
    other.kill()
    keep_busy(mine)
    assert mine.nvml("nvmlDeviceGetUtilizationRates")["gpu"] > 50
    assert pids(mine.nvml("nvmlDeviceGetProcessUtilization", 0, 0)) == [mine.pid()]
    assert pids(mine.nvml("nvmlDeviceGetProcessesUtilizationInfo", 0, 0)) == [mine.pid()]
    kind, samples = mine.nvml("nvmlDeviceGetSamples", 0, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
    assert kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    assert samples[0]["sampleValue"]["uiVal"] > 50
    assert nvml(inside, states)[0] in range(51, 101)


def test_samples_of_the_card_are_not_above_this_containers_use(
    sandbox: Make, worker: Start, tmp_path: Path
) -> None:
    _, mine, other = two_containers(sandbox, worker, tmp_path)
    keep_busy(other)
    for process, expected in ((other, range(50, 101)), (mine, range(1))):
        _, samples = process.nvml("nvmlDeviceGetSamples", 0, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
        assert samples[0]["sampleValue"]["uiVal"] in expected
    _, watts = mine.nvml("nvmlDeviceGetSamples", 0, pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
    assert watts[0]["sampleValue"]["uiVal"] >= 9000


def test_the_length_of_lists_is_asked_for_as_of_nvml(sandbox: Make, worker: Start) -> None:
    inside = sandbox(4 * GIB)
    for one in (worker(inside), worker(inside)):
        using(one, MIB)
    script = """
library = ctypes.CDLL("libnvidia-ml.so.1")
def call(name, struct, room, infos=True):
    count, array = ctypes.c_uint(room), (struct * (room + 1))()
    ctypes.memset(array, 0xee, ctypes.sizeof(array))
    result = getattr(library, name)(card, ctypes.byref(count), array if infos else None)
    used = bytes(array).rstrip(b"\\xee")
    return [result, count.value, -(-len(used) // ctypes.sizeof(struct))]
class First(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)]
said = [[call(f"nvmlDeviceGetComputeRunningProcesses{name}", struct, *room)
         for room in ((0, False), (0,), (1,), (2,), (5,))]
        for name, struct in (("", First), ("_v2", c_nvmlProcessInfo_v2_t), ("_v3", c_nvmlProcessInfo_v3_t))]
said.append(call("nvmlDeviceGetGraphicsRunningProcesses_v3", c_nvmlProcessInfo_v3_t, 0, False))
said.append(library.nvmlDeviceGetComputeRunningProcesses_v3(card, None, None))
"""
    *lists, graphics, nothing = nvml(inside, script)
    expected = [[7, 2, 0], [7, 2, 0], [7, 2, 0], [0, 2, 2], [0, 2, 2]]
    assert lists == [expected] * 3
    assert (graphics, nothing) == ([0, 0, 0], 2)


def test_drivers_without_the_third_version_have_lists_too(sandbox: Make, worker: Start) -> None:
    inside = sandbox(4 * GIB, topology="1xT4-R470")
    one = worker(inside)
    using(one, MIB)
    assert pids(one.nvml("nvmlDeviceGetComputeRunningProcesses_v3")) == [one.pid()]
    assert str(one.pid()) in smi(inside)


#: Runs a worker of 1 GiB in a PID namespace of its own, and then the rest of the arguments.
BESIDE_A_WORKER = """
import json, subprocess, sys
worker = subprocess.Popen([sys.executable, sys.argv[1], sys.argv[2]], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True)
def call(*words):
    print(json.dumps(words), file=worker.stdin, flush=True)
    return json.loads(worker.stdout.readline())
assert call("start") == 0 and call("alloc", 1 << 30)[0] == 0
print(call("pid"), flush=True)
sys.exit(subprocess.call(sys.argv[3:]))
"""


def test_processes_are_listed_in_their_own_pid_namespaces_and_without_proc(
    sandbox: Make, worker: Start
) -> None:
    inside = sandbox(4 * GIB)
    using(worker(inside), 338 * MIB)
    (program,) = Path(inside.driver_root).glob("usr/bin/nvidia-smi")
    fields = "--query-compute-apps=pid,used_memory,process_name"
    query = [str(program), fields, "--format=csv,noheader,nounits"]
    own = ["unshare", "--pid", "--fork", "--kill-child"]
    script = [sys.executable, "-c", BESIDE_A_WORKER, str(WORKER), VIEW]
    for proc in ("umount -l /proc; exec", "mount -t proc proc /proc; exec", "exec"):
        last = ["unshare", "-m", "sh", "-ec", f'{proc} "$@"', "sh", *query]
        said = inside.run([*own, *script, *last], setup=setup(inside))
        assert said.returncode == 0, said.stderr
        pid, *rows = said.stdout.splitlines()
        listed = {int(row.split(", ")[0]): row.split(", ")[1:] for row in rows}
        assert int(pid) in listed, "the process of the namespace, by its pid there"
        assert 1024 <= int(listed[int(pid)][0]) < 1100
        assert listed[int(pid)][1].endswith(Path(sys.executable).name)
        assert len(listed) == 2, "and that outside of it, as the account knows it"


#: Stands for a driver that lists the host's pids: the library's connection comes from a process outside.
FOREIGN = """
clone = {"x86_64": 56, "aarch64": 220}[%r]
CLONE_NEWPID = 0x20000000
reader, writer = os.pipe()
child = ctypes.CDLL(None, use_errno=True).syscall(clone, CLONE_NEWPID | signal.SIGCHLD, 0, 0, 0, 0)
if child == 0:
    found = [os.getpid(), ask(nvmlDeviceGetComputeRunningProcesses, card),
             ask(nvmlDeviceGetUtilizationRates, card), ask(nvmlDeviceGetProcessUtilization, card, 0)]
    os.write(writer, json.dumps(found).encode())
    os._exit(0)
os.close(writer)
with os.fdopen(reader) as pipe:
    said = json.load(pipe)
os.waitpid(child, 0)
"""


def test_pids_of_the_host_are_ignored(sandbox: Make, worker: Start, tmp_path: Path) -> None:
    inside, mine, other = two_containers(sandbox, worker, tmp_path)
    keep_busy(other)
    own_pid, listed, rates, samples = nvml(inside, FOREIGN % platform.machine())
    assert own_pid == 1
    account = [entry.used for entry in inside.usage() if entry.pid == mine.pid()]
    assert [(entry["pid"], [entry["usedGpuMemory"]]) for entry in listed] == [(mine.pid(), account)]
    assert rates["gpu"] > 20, "what the driver says, as it knows no share of this container"
    assert samples == NOT_FOUND


def test_a_mig_devices_own_processes_are_listed_with_their_instance(
    sandbox: Make, worker: Start, tmp_path: Path
) -> None:
    card = sandbox(topology="2xA100-MIG")
    uuids = [line.split("UUID: ")[1].rstrip(")") for line in smi(card, "-L").splitlines()]
    inside = beside(card, tmp_path, 4 * GIB, uuids=(uuids[2],))
    one = worker(inside, "env", f"CUDA_VISIBLE_DEVICES={uuids[2]}")
    using(one, GIB)
    script = f"""
mig = nvmlDeviceGetHandleByUUID({uuids[2]!r})
other = nvmlDeviceGetHandleByUUID({uuids[1]!r})
said = [ask(nvmlDeviceGetComputeRunningProcesses, each) for each in (mig, other, card)]
said.append([nvmlDeviceGetGpuInstanceId(mig), nvmlDeviceGetComputeInstanceId(mig)])
said.append(nvmlDeviceGetMemoryInfo(mig).used)
"""
    mine, others, whole, ids, used = nvml(inside, script)
    assert [(entry["pid"], entry["gpuInstanceId"], entry["computeInstanceId"]) for entry in mine] == [
        (one.pid(), *ids)
    ]
    assert others == []
    assert pids(whole) == [one.pid()]
    assert used == inside.total() >= GIB
    assert json.dumps(ids) == "[7, 0]"
