"""The CUDA interposer on a driver that lists processes by the host's pids, which a container does not know. A
process recognizes itself by the pid that appears when it makes its first context. From then on it has the
driver's report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support import GIB, MIB
from support.simulation import Process

from ..calls import OUT_OF_MEMORY, SUCCESS, kinds
from ..memory.storm_sandbox import Card
from ..nvml_sandbox import nvml
from ..sandboxes import Make, Sandbox
from .test_memory import beside, using
from .test_processes import NOT_FOUND

Start = Callable[..., Process]

CONTEXT = 300 * MIB
HOST = {"driver": "R580", "gpus": [{"model": "T4", "context_mib": 300, "host_pids": True}]}
#: Each is the first process of a PID namespace, as in a container.
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def test_the_drivers_memory_beyond_the_allocations_is_known(sandbox: Make, caller: Start) -> None:
    one, neighbour = sandbox(CONTEXT + 30 * MIB, topology=HOST), sandbox(4 * GIB, topology=HOST)
    other = caller(neighbour, within=APART)
    other.alloc(GIB)
    user = caller(one, within=APART)
    assert kinds(one) == {"overhead": CONTEXT}
    module = user.module("cuModuleLoadData", 20 * MIB - 1000)[1]  # the driver loads it at its first use
    assert user.function(module) == SUCCESS
    assert user.info() == [SUCCESS, 10 * MIB, CONTEXT + 30 * MIB]
    assert user.alloc(12 * MIB)[0] == OUT_OF_MEMORY
    # The neighbour's memory is not counted.
    other.alloc(GIB)
    assert user.info() == [SUCCESS, 10 * MIB, CONTEXT + 30 * MIB]


def test_processes_of_one_container_each_have_their_own(sandbox: Make, caller: Start) -> None:
    one = sandbox(4 * GIB, topology=HOST)
    users = [caller(one, within=APART, device=None) for _ in range(3)]
    for user in users:
        user.start()
    assert one.total() == 3 * CONTEXT == Card(one).used()
    for user in users:
        user.real_context()  # another context, behind the interposer's back
        user.info()
    assert one.total() == 6 * CONTEXT == Card(one).used()


def test_those_that_start_at_once_are_not_taken_for_one_another(sandbox: Make, caller: Start) -> None:
    one = sandbox(8 * GIB, topology=HOST)
    users = [caller(one, within=APART, device=None) for _ in range(6)]
    for user in users:
        user.send("start")
    assert [user.result() for user in users] == [SUCCESS] * len(users)
    for number, user in enumerate(users):
        user.alloc((number + 1) * 32 * MIB)  # its slot is recognized by this size
    for number, user in enumerate(users):
        before = overheads(one)
        assert user.real_context() == SUCCESS
        for each in users:
            each.info()
        after = overheads(one)
        mine = (number + 1) * 32 * MIB
        # A process that could not be recognized has no report, and its hidden memory stays unseen.
        assert after.pop(mine) - before.pop(mine) in (0, CONTEXT)
        assert after == before


def overheads(sandbox: Sandbox) -> dict[int, int]:
    """Each process's memory beyond its own allocations, by the size of its allocation."""
    return {each.kinds["linear"]: each.kinds["overhead"] for each in sandbox.usage()}


def test_nvml_lists_this_containers_processes_by_their_pids_here(
    sandbox: Make, worker: Callable[..., Process], tmp_path: Path
) -> None:
    inside = sandbox(4 * GIB, topology=HOST)
    outside = beside(inside, tmp_path, 4 * GIB)
    mine, other = worker(inside, *APART), worker(outside, *APART)
    for one, size in ((mine, 100 * MIB), (other, GIB)):
        using(one, size)
        one.launch("busy_10s")  # not waited for: the card is shared all the time
    (neighbour,) = Path(f"/proc/{other.popen.pid}/task/{other.popen.pid}/children").read_text().split()
    script = f"""
second = nvmlDeviceGetComputeRunningProcesses_v2
said = [[mine.pid, mine.usedGpuMemory] for mine in second(card)]
rate, end, sampled = 0, time.monotonic() + 10, []
while not sampled and time.monotonic() < end:  # samples are late
    try:
        sampled = [sample.pid for sample in nvmlDeviceGetProcessUtilization(card, 0)]
    except NVMLError:
        pass
said.append(sampled)
while rate < 20 and time.monotonic() < end:
    rate = nvmlDeviceGetUtilizationRates(card).gpu
said.append(rate)
said.append(nvmlDeviceGetAccountingPids(card))
said.append(nvmlDeviceGetAccountingStats(card, 1).maxMemoryUsage)
said.append(ask(nvmlDeviceGetAccountingStats, card, {neighbour}))
"""
    used = CONTEXT + 100 * MIB
    listed, samples, rate, accounted, most, unknown = nvml(inside, script)
    assert (listed, samples, accounted, most) == ([1, used], [1], [1], used)
    assert 20 <= rate < 80, "the other half is the neighbour's"
    assert unknown == NOT_FOUND
