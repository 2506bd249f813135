"""Device memory that several processes hold is counted once, and lives until the last of them has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import GIB, MIB
from support.sharing_time import until
from support.simulation import SUCCESS, Process, Start, Up, used
from xpu_simulator.simulator import status

from .test_memory import INVALID, reported

INVALID_CONTEXT = 201
POSIX_FD = 1


@pytest.fixture
def handover(owner: Process, other: Process, tmp_path: Path) -> Callable[[int], int]:
    """Passes a descriptor from the first process to the second. Returns its number there."""
    socket = str(tmp_path / "socket")
    other.listen(socket)

    def hand(descriptor: int) -> int:
        owner.give(socket, descriptor)
        return int(other.take())

    return hand


def test_ipc_memory_is_the_owners_and_outlives_its_free_while_another_has_it_open(
    owner: Process, other: Process
) -> None:
    _, pointer = owner.alloc(4 * MIB)
    owner.write(pointer, "weights")
    result, handle = owner.ipc_get(pointer)
    assert result == SUCCESS
    assert owner.ipc_open(handle)[0] == INVALID_CONTEXT, "not in the process that has it"
    result, opened = other.ipc_open(handle)
    assert result == SUCCESS
    assert other.read(opened, 7) == [SUCCESS, "weights"]
    assert [used(other), reported(other, owner.pid()), reported(other, other.pid())] == [4 * MIB, 4 * MIB, 0]
    assert owner.free(pointer) == SUCCESS
    assert [used(other), reported(other, owner.pid()), reported(other, other.pid())] == [4 * MIB, 0, 0]
    assert other.read(opened, 7) == [SUCCESS, "weights"]
    assert other.free(opened) == INVALID, "cuIpcCloseMemHandle is what closes it"
    assert other.ipc_close(opened) == SUCCESS
    assert other.ipc_close(opened) == INVALID
    assert used(other) == 0
    assert other.ipc_open(handle)[0] == INVALID, "it is gone"


def test_ipc_memory_outlives_a_killed_owner_and_ends_with_the_last_process_that_has_it_open(
    owner: Process, other: Process, process: Start
) -> None:
    _, pointer = owner.alloc(100)
    owner.write(pointer, "weights")
    _, handle = owner.ipc_get(pointer)
    _, opened = other.ipc_open(handle)
    assert other.ipc_open(handle) == [SUCCESS, opened], "opened twice, it is one"
    owner.kill()
    assert other.read(opened, 7) == [SUCCESS, "weights"]
    assert [used(other), reported(other, other.pid())] == [2 * MIB, 0], "the piece that it was in"
    assert other.ipc_close(opened) == SUCCESS
    assert used(other) == 2 * MIB
    assert other.ipc_close(opened) == SUCCESS
    assert used(other) == 0


def test_a_killed_process_that_opened_memory_takes_none_of_the_owners(owner: Process, other: Process) -> None:
    _, pointer = owner.alloc(4 * MIB)
    _, handle = owner.ipc_get(pointer)
    assert other.ipc_open(handle)[0] == SUCCESS
    other.kill()
    assert used(owner) == reported(owner, owner.pid()) == 4 * MIB
    assert owner.free(pointer) == SUCCESS
    assert used(owner) == 0


def test_only_linear_memory_has_an_ipc_handle(owner: Process, other: Process) -> None:
    assert owner.ipc_get(owner.alloc_async(100)[1])[0] == INVALID
    assert owner.ipc_get(4096)[0] == INVALID
    assert other.ipc_open("00" * 64)[0] == INVALID


def test_created_memory_passes_by_a_descriptor_and_lives_while_it_is_under_way(
    owner: Process, other: Process, handover: Callable[[int], int]
) -> None:
    size = 4 * MIB
    _, handle = owner.create_memory(size, POSIX_FD)
    pointer = owner.place(handle, size)
    owner.write(pointer, "weights")
    result, descriptor = owner.export_memory(handle)
    assert result == SUCCESS
    assert owner.release(handle) == owner.unmap(pointer, size) == SUCCESS
    assert [used(owner), reported(owner, owner.pid())] == [size, 0], "only the descriptor holds it now"
    there = handover(descriptor)
    assert used(owner) == size
    result, imported = other.import_memory(there)
    assert result == SUCCESS
    other.close(there)
    assert [used(owner), reported(owner, other.pid())] == [size, 0]
    opened = other.place(imported, size)
    assert other.read(opened, 7) == [SUCCESS, "weights"]
    assert other.release(imported) == SUCCESS
    assert used(owner) == size
    assert other.unmap(opened, size) == SUCCESS
    assert used(owner) == 0


def test_a_descriptor_that_no_process_takes_gives_the_memory_back_at_its_close(
    owner: Process, other: Process
) -> None:
    _, handle = owner.create_memory(4 * MIB, POSIX_FD)
    _, descriptor = owner.export_memory(handle)
    _, second = owner.export_memory(handle)
    assert owner.release(handle) == SUCCESS
    owner.close(descriptor)
    assert used(other) == 4 * MIB
    owner.close(second)
    assert used(other) == 0
    _, handle = owner.create_memory(4 * MIB, POSIX_FD)
    assert owner.export_memory(handle)[0] == SUCCESS
    owner.kill()
    assert used(other) == 0


@pytest.fixture
def slow_driver(pair: object) -> Iterator[None]:
    """The driver loses its processor for a while after each reply, as on a busy machine."""
    state = status()
    assert state
    inject = ["-e", "trace=sendmsg", "-e", "inject=sendmsg:delay_exit=200000"]
    tracer = subprocess.Popen(["strace", "-qq", "-o", os.devnull, *inject, "-p", str(state.pid)])
    facts = Path(f"/proc/{state.pid}/status")
    until(lambda: f"TracerPid:\t{tracer.pid}\n" in facts.read_text(), "it is traced", 30)
    yield
    tracer.terminate()
    tracer.wait()


@pytest.mark.usefixtures("slow_driver")
def test_memory_is_back_for_any_question_after_the_death_of_the_descriptors_receiver(
    owner: Process, other: Process
) -> None:
    _, handle = owner.create_memory(4 * MIB, POSIX_FD)
    assert used(other) == 4 * MIB  # this makes its connection
    assert owner.export_memory(handle)[0] == SUCCESS
    owner.kill()
    assert used(other) == 0


def test_a_descriptor_of_something_else_is_refused(owner: Process) -> None:
    assert owner.import_memory(0)[0] == INVALID
    assert owner.import_memory(2)[0] == INVALID
    assert owner.pool_import(2)[0] == INVALID
    assert owner.external(2, MIB)[0] == INVALID
    _, handle = owner.create_memory(2 * MIB, POSIX_FD)
    _, descriptor = owner.export_memory(handle)
    assert owner.pool_import(descriptor)[0] == INVALID, "that is no pool"
    assert used(owner) == 2 * MIB


def test_external_memory_counts_at_its_maker_and_ends_when_destroyed_and_freed(
    owner: Process, other: Process, handover: Callable[[int], int]
) -> None:
    size = 4 * MIB
    _, handle = owner.create_memory(size, POSIX_FD)
    owner.write(owner.place(handle, size) + 2 * MIB, "weights")
    result, memory = other.external(handover(owner.export_memory(handle)[1]), size)
    assert result == SUCCESS
    assert other.external_buffer(memory, 2 * MIB, 4 * MIB)[0] == INVALID, "more than there is"
    result, pointer = other.external_buffer(memory, 2 * MIB, MIB)
    assert other.read(pointer, 7) == [SUCCESS, "weights"]
    assert [used(other), reported(other, owner.pid()), reported(other, other.pid())] == [size, size, 0]
    owner.kill()
    assert other.external_destroy(memory) == SUCCESS
    assert used(other) == size
    assert other.free(pointer) == SUCCESS
    assert used(other) == 0


def test_a_pool_is_shared_and_its_pointers_opened(
    owner: Process, other: Process, handover: Callable[[int], int]
) -> None:
    _, private = owner.pool()
    assert owner.pool_export(private)[0] == INVALID, "it was not made for that"
    _, pool = owner.pool(POSIX_FD)
    _, pointer = owner.alloc_async(3 * MIB, pool)
    owner.write(pointer, "weights")
    result, descriptor = owner.pool_export(pool)
    assert result == SUCCESS
    result, there = other.pool_import(handover(descriptor))
    assert result == SUCCESS
    assert other.alloc_async(100, there)[0] == INVALID, "nothing is allocated from another's pool"
    _, data = owner.pool_export_pointer(pointer)
    result, opened = other.pool_import_pointer(there, data)
    assert other.read(opened, 7) == [SUCCESS, "weights"]
    assert [used(other), reported(other, owner.pid()), reported(other, other.pid())] == [
        32 * MIB,
        32 * MIB,
        0,
    ]
    assert other.free_async(opened) == SUCCESS
    assert owner.free_async(pointer) == owner.synchronize() == SUCCESS
    assert used(other) == 0
    assert other.pool_destroy(there) == SUCCESS


def test_three_hundred_processes_each_have_a_context_and_memory(up: Up) -> None:
    root = up({"gpus": [{"model": "H200", "count": 2}]}).root
    program = (
        "import ctypes, glob, sys\n"
        "cuda = ctypes.CDLL(glob.glob(sys.argv[1] + '/usr/lib/*-linux-gnu/libcuda.so.1')[0])\n"
        "context, pointer = ctypes.c_void_p(), ctypes.c_ulonglong()\n"
        "assert cuda.cuInit(0) == cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0\n"
        "assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2 << 20)) == 0\n"
        "print('has it', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-IS", "-c", program, root]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started = [subprocess.Popen(command, text=True, **pipes) for _ in range(300)]  # type: ignore[call-overload]
    try:
        assert {process.stdout.readline() for process in started} == {"has it\n"}
        query = [f"{root}/usr/bin/nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        assert {int(line) for line in listed.split()} == {process.pid for process in started}
    finally:
        for process in started:
            process.communicate()
    assert all(process.returncode == 0 for process in started)


def test_a_group_of_processes_cannot_have_more_than_the_device_by_sharing(
    owner: Process, other: Process
) -> None:
    _, pointer = owner.alloc(10 * GIB)
    _, handle = owner.ipc_get(pointer)
    assert other.ipc_open(handle)[0] == SUCCESS
    assert other.alloc(5 * GIB)[0] == SUCCESS, "what is shared is there once"
    assert other.alloc(2 * MIB)[0] != SUCCESS
