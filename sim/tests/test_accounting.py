"""Device memory: the use of each process, and its end with the process."""

from __future__ import annotations

import os
import signal
import subprocess

from support import GIB, MIB
from support.simulation import NOT_INITIALIZED, OUT_OF_MEMORY, SUCCESS, Process, Start, Up, Working, used

T4 = 15360 * MIB


def test_an_allocation_is_seen_by_cuda_nvml_and_nvidia_smi_until_it_is_freed(
    working: Working, process: Start
) -> None:
    root, one = working("2xT4")
    observer = process(root)
    result, pointer = one.alloc(338 * MIB)
    assert result == SUCCESS
    assert one.info() == [SUCCESS, T4 - 338 * MIB, T4]
    assert used(observer) == 338 * MIB
    assert used(observer, 1) == 0
    table = subprocess.run([f"{root}/usr/bin/nvidia-smi"], capture_output=True, text=True, check=True).stdout
    assert "338MiB /  15360MiB" in table
    assert one.free(pointer) == SUCCESS
    assert one.free(pointer) == 1, "a pointer that is free cannot be freed again"
    assert used(observer) == 0


def test_the_last_byte_can_be_allocated_and_not_one_more(one: Process) -> None:
    assert one.alloc(T4 + 1)[0] == OUT_OF_MEMORY
    assert one.alloc(T4 - 2 * MIB)[0] == SUCCESS
    assert one.alloc(2 * MIB + 1)[0] == OUT_OF_MEMORY
    assert one.alloc(2 * MIB)[0] == SUCCESS
    assert one.alloc(1)[0] == OUT_OF_MEMORY
    assert one.info() == [SUCCESS, 0, T4]
    assert one.error(OUT_OF_MEMORY) == "CUDA_ERROR_OUT_OF_MEMORY"


def test_processes_share_a_device_and_are_listed_with_their_memory(one: Process, two: Process) -> None:
    assert one.alloc(10 * GIB)[0] == SUCCESS
    assert two.alloc(6 * GIB)[0] == OUT_OF_MEMORY
    assert two.alloc(5 * GIB)[0] == SUCCESS
    listed = {
        entry["pid"]: entry["usedGpuMemory"] for entry in one.nvml("nvmlDeviceGetComputeRunningProcesses")
    }
    assert listed == {one.pid(): 10 * GIB, two.pid(): 5 * GIB}


def test_two_contexts_of_a_process_are_one_process(up: Up, process: Start) -> None:
    one = process(up("1xT4").root)
    one.init()
    for _ in range(2):
        assert one.create() == SUCCESS
        assert one.alloc(GIB)[0] == SUCCESS
    assert [entry["usedGpuMemory"] for entry in one.nvml("nvmlDeviceGetComputeRunningProcesses")] == [2 * GIB]
    assert one.destroy(0) == SUCCESS
    assert used(one) == GIB, "what a context had goes with it"


def test_a_killed_process_holds_nothing_from_its_end_on(up: Up, process: Start) -> None:
    root = up("1xT4").root
    observer = process(root)
    for _ in range(20):
        one = process(root)
        one.start()
        assert one.alloc(T4)[0] == SUCCESS
        one.kill()
        assert used(observer) == 0


def test_a_process_that_ends_by_itself_holds_nothing(working: Working, process: Start) -> None:
    root, one = working("1xT4", 0, GIB)
    observer = process(root)
    assert used(observer) == GIB
    one.end()
    assert used(observer) == 0


def test_a_forked_child_that_outlives_its_parent_keeps_nothing_of_it_alive(
    working: Working, process: Start
) -> None:
    root, one = working("1xT4", 0, GIB)
    observer = process(root)
    child = one.fork()
    try:
        one.kill()
        assert used(observer) == 0
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_starts_without_cuda_and_then_has_its_own(working: Working, process: Start) -> None:
    root, one = working("1xT4")
    observer = process(root)
    _, pointer = one.alloc(GIB)
    without = one.in_child(["alloc", GIB], ["free", pointer], ["info"], ["synchronize"])
    assert [without[0][0], without[1], without[2][0], without[3]] == [NOT_INITIALIZED] * 4
    started, freed, (result, _), info = one.in_child(["start"], ["free", pointer], ["alloc", GIB], ["info"])
    assert [started, result] == [SUCCESS, SUCCESS]
    assert info == [SUCCESS, T4 - 2 * GIB, T4]
    assert freed == 1, "the parent's pointer is not the child's"
    assert used(observer) == GIB
    assert one.free(pointer) == SUCCESS


def test_a_contexts_size_is_that_of_the_topology(up: Up, process: Start) -> None:
    one = process(up({"gpus": [{"model": "T4", "context_mib": 300}]}).root)
    one.start()
    assert used(one) == 300 * MIB
    assert one.alloc(T4 - 300 * MIB)[0] == SUCCESS
    assert one.create() == OUT_OF_MEMORY


def test_pitched_and_managed_memory_count(one: Process) -> None:
    assert one.pitch(1000, 2048) == [SUCCESS, 1024]
    assert used(one) == 2 * MIB
    assert one.managed(4 * MIB) == SUCCESS
    assert used(one) == 6 * MIB
    assert one.pitch((1 << 64) - 1, 2)[0] == OUT_OF_MEMORY
    assert one.pitch(1 << 40, 1 << 40)[0] == OUT_OF_MEMORY


def test_a_copy_to_a_device_comes_back_and_nothing_beyond_it(one: Process) -> None:
    _, first = one.alloc(4096)
    _, second = one.alloc(4096)
    assert one.write(first, "weights") == SUCCESS
    assert one.copy(second, first, 4096) == SUCCESS
    assert one.read(second, 7) == [SUCCESS, "weights"]
    assert one.read(second + 4090, 7)[0] == 1
    assert one.read(12345, 1)[0] == 1
    assert one.fill(second, 0x41, 3) == SUCCESS
    assert one.read(second, 7) == [SUCCESS, "AAAghts"]
    assert one.fill(second, 0, 4096) == SUCCESS
    assert one.read(second, 3) == [SUCCESS, "\0\0\0"]
    assert one.read(first, 7) == [SUCCESS, "weights"]


def test_a_mig_device_has_its_own_memory(up: Up, process: Start) -> None:
    root = up("2xA100-MIG").root
    observer = process(root)
    large, small = observer.mig()[:2]
    first = process(root, {"CUDA_VISIBLE_DEVICES": large})
    second = process(root, {"CUDA_VISIBLE_DEVICES": small})
    first.start(), second.start()
    assert first.total() == 40192 * MIB
    assert second.total() == 9728 * MIB
    assert second.alloc(9729 * MIB)[0] == OUT_OF_MEMORY
    assert second.alloc(9728 * MIB)[0] == SUCCESS
    assert first.alloc(40192 * MIB)[0] == SUCCESS, "another instance's memory is not touched"
    assert used(observer) == (40192 + 9728) * MIB
    listed = observer.nvml("nvmlDeviceGetComputeRunningProcesses")
    assert {(entry["pid"], entry["gpuInstanceId"]) for entry in listed} == {
        (first.pid(), 1),
        (second.pid(), 7),
    }
