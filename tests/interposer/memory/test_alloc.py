"""The CUDA interposer: plain allocations, up to the limit and back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support import GIB, MIB

from ..calls import INVALID_VALUE, OUT, OUT_OF_MEMORY, SUCCESS, Start, kinds
from ..sandboxes import Make, compile_c
from .storm_sandbox import TOPOLOGY, Card

#: The driver takes memory in steps of this size.
STEP = 2 * MIB


def test_memory_is_given_up_to_the_limit_and_no_further(caller: Start, way: str) -> None:
    user = caller(1 * GIB, way=way)
    result, most = user.alloc(1 * GIB - STEP)
    assert result == SUCCESS
    assert user.alloc(STEP + 1)[0] == OUT_OF_MEMORY
    result, last = user.alloc(STEP)
    assert result == SUCCESS
    assert user.sandbox.total() == 1 * GIB
    assert user.alloc(1)[0] == OUT_OF_MEMORY
    assert user.info() == [SUCCESS, 0, 1 * GIB]
    assert user.free(last) == SUCCESS
    assert user.info() == [SUCCESS, STEP, 1 * GIB]
    assert user.free(most) == SUCCESS
    assert user.sandbox.total() == 0
    assert user.alloc(1 * GIB)[0] == SUCCESS


def test_a_limit_below_the_drivers_step_is_held_to_the_grain(caller: Start) -> None:
    user = caller(1024)
    assert user.alloc(1025)[0] == OUT_OF_MEMORY
    assert user.alloc(1024)[0] == SUCCESS
    assert user.alloc(1)[0] == OUT_OF_MEMORY


def test_a_large_piece_is_charged_in_the_drivers_steps(caller: Start) -> None:
    user = caller(3 * STEP)
    pointer = user.alloc(STEP + 1)[1]
    assert kinds(user.sandbox) == {"linear": 2 * STEP}
    assert user.info() == [SUCCESS, STEP, 3 * STEP]
    assert user.alloc(STEP + 1)[0] == OUT_OF_MEMORY
    assert user.alloc(STEP)[0] == SUCCESS
    assert user.free(pointer) == SUCCESS
    assert user.sandbox.total() == STEP


def test_the_drivers_rounding_is_counted(caller: Start) -> None:
    user = caller(1 * GIB)
    pointer = user.alloc(1)[1]
    assert user.info() == [SUCCESS, 1 * GIB - STEP, 1 * GIB]
    assert kinds(user.sandbox) == {"linear": 512, "overhead": STEP - 512}
    # The rest of the step serves the next allocations.
    more = user.alloc(STEP - 512)[1]
    assert user.info() == [SUCCESS, 1 * GIB - STEP, 1 * GIB]
    assert (user.free(pointer), user.free(more)) == (SUCCESS, SUCCESS)
    assert user.sandbox.total() == 0


@pytest.mark.parametrize("size", [(1 << 64) - 1, (1 << 64) - 512, 1 << 63, 64 * GIB])
def test_an_absurd_size_is_refused_and_charges_nothing(caller: Start, size: int) -> None:
    user = caller(None)
    assert user.alloc(size)[0] == OUT_OF_MEMORY
    assert user.alloc_managed(size)[0] == OUT_OF_MEMORY
    assert user.pitch(size, 2)[0] == OUT_OF_MEMORY
    assert user.sandbox.total() == 0


def test_a_call_that_the_driver_refuses_is_not_charged(caller: Start) -> None:
    user = caller(None, device=None)  # no limit: the card refuses
    user.start()
    assert user.alloc(0)[0] == INVALID_VALUE
    assert user.alloc(10 * GIB)[0] == SUCCESS
    assert user.alloc(10 * GIB)[0] == OUT_OF_MEMORY
    assert user.sandbox.total() == 10 * GIB


def test_functions_with_32_bit_sizes_are_limited(caller: Start) -> None:
    user = caller(100 * MIB)
    assert user.alloc_v1(101 * MIB)[0] == OUT_OF_MEMORY
    assert user.pitch(MIB, 101, "cuMemAllocPitch")[0] == OUT_OF_MEMORY
    assert user.free_v1(0x1000) == INVALID_VALUE
    assert user.sandbox.total() == 0
    result, pointer = user.alloc_v1(60 * MIB)
    assert result == SUCCESS
    result, rows, pitch = user.pitch(1 * MIB - 1, 40, "cuMemAllocPitch")
    assert (result, pitch) == (SUCCESS, 1 * MIB)
    assert user.sandbox.total() == 100 * MIB
    assert user.alloc(1)[0] == OUT_OF_MEMORY
    assert (user.free_v1(pointer), user.free_v1(rows)) == (SUCCESS, SUCCESS)
    assert user.sandbox.total() == 0


def test_managed_memory_is_charged(caller: Start, way: str) -> None:
    user = caller(1 * GIB, way=way)
    result, pointer = user.alloc_managed(1 * GIB)
    assert result == SUCCESS
    assert kinds(user.sandbox) == {"managed": 1 * GIB}
    assert user.alloc_managed(1)[0] == OUT_OF_MEMORY
    assert user.free(pointer) == SUCCESS
    assert user.sandbox.total() == 0


def test_rows_are_charged_with_their_padding(caller: Start, way: str) -> None:
    user = caller(1 * GIB, way=way)
    result, pointer, pitch = user.pitch(1000, 1 << 20)  # 1024 bytes a row, the whole limit
    assert (result, pitch) == (SUCCESS, 1024)
    assert user.sandbox.total() == 1 * GIB
    assert user.pitch(1, 1)[0] == OUT_OF_MEMORY
    assert user.free(pointer) == SUCCESS
    assert user.sandbox.total() == 0
    assert user.pitch(1025, 1 << 20)[0] == OUT_OF_MEMORY
    assert user.sandbox.total() == 0


def test_an_unknown_or_freed_pointer_gives_back_nothing(caller: Start, way: str) -> None:
    user = caller(1 * GIB, way=way)
    keep, gone = user.alloc(STEP)[1], user.alloc(STEP)[1]
    assert user.free(0) == SUCCESS
    assert user.free(gone + 512) == INVALID_VALUE
    assert user.sandbox.total() == 2 * STEP
    assert user.free(gone) == SUCCESS
    assert user.free(gone) == INVALID_VALUE
    assert user.sandbox.total() == STEP
    assert user.free(keep) == SUCCESS
    assert user.sandbox.total() == 0


def test_memory_of_the_host_is_not_counted(caller: Start, way: str) -> None:
    user = caller(MIB, way=way)
    assert user.code("cuMemAllocHost_v2", OUT, 64 * MIB) == SUCCESS
    assert user.sandbox.total() == 0


def test_processes_share_the_limit_and_the_killed_give_back(sandbox: Make, caller: Start) -> None:
    one = sandbox(1 * GIB)
    users = [caller(one, device=None) for _ in range(4)]
    for user in users:
        user.start()
        assert user.alloc(256 * MIB)[0] == SUCCESS
    assert users[0].alloc(1)[0] == OUT_OF_MEMORY
    assert users[0].info() == [SUCCESS, 0, 1 * GIB]
    users[3].kill()
    assert users[0].alloc(256 * MIB)[0] == SUCCESS
    assert users[1].alloc(1)[0] == OUT_OF_MEMORY


def test_a_limit_that_changes_holds_at_once(caller: Start) -> None:
    user = caller(1 * GIB)
    pointer = user.alloc(1 * GIB)[1]
    user.sandbox.set_limit(2 * GIB)
    assert user.info() == [SUCCESS, 1 * GIB, 2 * GIB]
    assert user.alloc(1 * GIB)[0] == SUCCESS
    user.sandbox.set_limit(1 * GIB)
    assert user.info() == [SUCCESS, 0, 1 * GIB]
    assert user.free(pointer) == SUCCESS
    assert user.alloc(512)[0] == OUT_OF_MEMORY


def test_memory_that_the_process_has_no_room_to_note_goes_back_to_the_driver(
    sandbox: Make, tmp_path: Path
) -> None:
    one = sandbox(1 * GIB, topology=TOPOLOGY)
    source = Path(__file__).with_name("no_memory.c")
    program = compile_c(source, tmp_path / "no_memory", one.driver / "libcuda.so.1", "-ldl")
    card = Card(one)
    with one.start([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout.readline() == "ready\n"
        before, pieces = (card.used(), one.total()), 0
        for result in (OUT_OF_MEMORY, SUCCESS):
            user.stdin.write("\n")
            user.stdin.flush()
            *results, given = map(int, user.stdout.readline().split())
            assert results == [result] * 6
            pieces += given
            assert (card.used(), one.total()) == tuple(each + 4 * MIB * pieces for each in before)
        user.communicate("\n", timeout=60)
        assert user.returncode == 0
