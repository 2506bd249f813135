"""A fault on a card in one container stays there: its neighbours' work goes on and is right.

The containers have limits on one simulated card, held by the driver or by the interposers. Contexts fail
separately there, as NVIDIA documents for contexts without MPS (mps/ has those with it);
docs/concepts/isolation.md has a real card's behaviour.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from support.device_work import Program, Workers, get
from support.sharing_time import until

from ..conftest import Node

MIB = 1 << 20
TOPOLOGY = {"driver": "1xT4", "library": "1xT4-R580"}
#: A kernel that ends its context, and CUDA's error from then on.
FATAL = {
    "fault_illegal_address": "CUDA_ERROR_ILLEGAL_ADDRESS",
    "fault_assert": "CUDA_ERROR_ASSERT",
}
CALLS = ("cuCtxSynchronize", "cuLaunchKernel", "cuMemAlloc", "cuMemcpyDtoH", "cuCtxSynchronize")
MEMORY_MIB = 500
#: Caps in percent: of two containers at work, and of the one in which something goes wrong.
NEIGHBOURS, CAP = (30, 40), 20


class Card:
    """One card with two containers at work, and one in which something goes wrong."""

    def __init__(self, node: Node, workers: Workers, memory_by: str) -> None:
        node.sim(TOPOLOGY[memory_by])
        self.node, self.memory_by = node, memory_by
        self.neighbours = [workers.working("XPU_MEM=1G", f"XPU_CORES={cores}") for cores in NEIGHBOURS]
        self.bad = workers.start("XPU_MEM=1G", f"XPU_CORES={CAP}")

    def entry(self) -> dict[str, Any]:
        """`xpu ps`'s entry of the container with the fault."""
        entries = {each["container_id"]: each for each in self.node.json("ps")}
        assert len(entries) == 3 and {each["state"] for each in entries.values()} == {"running"}
        assert {each["memory_backend"] for each in entries.values()} == {self.memory_by}
        found: dict[str, Any] = entries[self.bad]
        return found

    def row(self) -> dict[str, Any]:
        """And `xpu top`."""
        (device,) = self.node.json("top", "--interval", "0.2")["devices"]
        (found,) = [each for each in device["containers"] if each["container_id"] == self.bad]
        row: dict[str, Any] = found
        return row

    def neighbours_go_on(self) -> None:
        """Each completes kernels, finds its memory right, and gets half of its share at the least."""
        for neighbour in self.neighbours:
            neighbour.goes_on()
        get(self.neighbours, [(cores / 2, 100) for cores in NEIGHBOURS])

    def program(self, *words: object) -> Program:
        return Program(self.node, self.bad, *words)

    def is_as_before(self) -> None:
        """Nothing is left of the program: memory and budget are there for the next one."""
        until(lambda: self.entry()["memory_used_bytes"] == 0, "its memory is back")
        with self.program("some", 30) as another:
            assert another.line() == "done"
            assert another.ended() == 0


@pytest.fixture(params=list(TOPOLOGY))
def card(node: Node, workers: Workers, request: pytest.FixtureRequest) -> Card:
    return Card(node, workers, request.param)


def test_neighbours_of_a_program_that_fails_is_killed_or_never_ends_go_on(card: Card) -> None:
    for kernel, error in FATAL.items():
        fails(card, kernel, error)
    is_killed(card)
    never_ends(card)
    for neighbour in card.neighbours:
        neighbour.end()


def holds_its_memory(entry: dict[str, Any]) -> bool:
    used: int = entry["memory_used_bytes"]
    return MEMORY_MIB * MIB <= used < 2 * MEMORY_MIB * MIB


def fails(card: Card, kernel: str, error: str) -> None:
    with card.program("fail", kernel, MEMORY_MIB) as program:
        assert program.line() == "ready"
        program.tell()
        assert program.line() == "launched"
        assert [program.line() for _ in CALLS] == [f"{call}: {error}" for call in CALLS]
        card.neighbours_go_on()
        # The program is still there: it has its memory, and uses no time.
        entry = card.entry()
        assert holds_its_memory(entry) and entry["cores_got_percent"] == 0
        assert program.ended() == 0
    card.is_as_before()


def is_killed(card: Card) -> None:
    with card.program("work", 1, "/progress") as program:
        until(lambda: card.row()["cores_got_percent"] > 0, "it works")
        os.kill(program.pid, signal.SIGKILL)
        assert program.ended() == 128 + signal.SIGKILL
    card.is_as_before()
    card.neighbours_go_on()


def never_ends(card: Card) -> None:
    with card.program("fail", "busy_3600s", MEMORY_MIB) as program:
        assert program.line() == "ready"
        program.tell()
        assert program.line() == "launched"
        # Nothing takes a kernel off the card. It has one program's turns, here a third, in spite of its
        # container's cap; and `xpu ps` shows that.
        card.neighbours_go_on()
        until(lambda: card.row()["cores_got_percent"] > CAP + 5, "more than its cap is told")
        entry = card.entry()
        assert holds_its_memory(entry) and entry["cores_got_percent"] > 0
        os.kill(program.pid, signal.SIGKILL)
        assert program.ended() == 128 + signal.SIGKILL
    until(lambda: card.entry()["memory_used_bytes"] == 0, "its memory is back")
    assert card.row()["cores_got_percent"] == 0
