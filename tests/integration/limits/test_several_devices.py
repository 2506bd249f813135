"""Caps on the time of several devices, and of one that containers of several kinds share: each holds.

Programs keep the devices of real containers busy. Bounds are wide: how exactly a cap holds is bench/share's
to say.
"""

from __future__ import annotations

from typing import Any

import pytest

from support import GIB
from support.device_work import Bounds, Program, Workers, get
from support.sharing_time import until

from ..conftest import Node

#: The driver of each topology, and the backend that holds memory there.
CARDS = {"driver": "T4", "library": "T4-R580"}


@pytest.fixture(params=list(CARDS))
def memory_by(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def are(shares: list[Any], bounds: list[Bounds]) -> bool:
    return all(low <= share <= high for share, (low, high) in zip(shares, bounds, strict=True))


def test_a_container_has_a_budget_of_each_of_its_devices(
    node: Node, workers: Workers, memory_by: str
) -> None:
    node.sim(f"2x{CARDS[memory_by]}")
    both = workers.working("XPU_COUNT=2", "XPU_MEM=1G,2G", "XPU_CORES=30", devices=2)
    second = workers.working("XPU_VISIBLE_DEVICES=1", "XPU_MEM=1G", "XPU_CORES=35")

    def told(what: str) -> list[Any]:
        return [entry[what] for entry in node.json("ps")]

    # One budget for both would give 15 each.
    get([both], [(20, 40)] * 2, devices=(0, 1))
    get([second], [(25, 45)])
    until(lambda: are(told("cores_got_percent"), [(20, 40), (20, 40), (25, 45)]), "what each gets is told")
    assert told("memory_backend") == [memory_by] * 3 and told("cores_backend") == ["library"] * 3

    node.xpu("set", both.id, "--cores", "5", "--device", "0")
    node.xpu("set", both.id, "--cores", "60", "--device", "1")
    get([both], [(1, 12), (45, 70)], devices=(0, 1))
    until(lambda: are(told("cores_got_percent"), [(1, 12), (45, 70), (25, 45)]), "and after a change")
    assert (told("cores"), told("device_index")) == ([5, 60, 35], [0, 1, 1])
    (grant,) = node.json("inspect", both.id)["grants"]
    assert [slice_["cores_in_force"] for slice_ in grant["slices"]] == [5, 60]

    # Meanwhile each device's memory is held.
    with Program(node, both.id, "fill", 2, 700, 700) as program:
        results = ["CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_SUCCESS", "CUDA_SUCCESS"]
        wanted = [f"device {at // 2}: 700 MiB: {result}" for at, result in enumerate(results)]
        assert [program.line() for _ in wanted] == wanted
        assert program.line() == "done"
    for each in (both, second):
        each.end()


def test_a_program_that_sees_one_of_the_devices_uses_that_ones_budget(node: Node, workers: Workers) -> None:
    node.sim("2xT4-R580")
    container = workers.start("XPU_COUNT=2", "XPU_MEM=1G", "XPU_CORES=20")
    node.xpu("set", container, "--cores", "70", "--device", "1")

    def got() -> list[Any]:
        return [entry["cores_got_percent"] for entry in node.json("ps")]

    with Program(node, container, "work", 1, "/progress", env=["CUDA_VISIBLE_DEVICES=1"]):
        until(lambda: are(got(), [(0, 0), (50, 80)]), "work on the second device")


def test_containers_with_a_cap_and_without_share_a_device(
    node: Node, workers: Workers, memory_by: str
) -> None:
    node.sim(f"1x{CARDS[memory_by]}")
    capped = workers.working("XPU_MEM=1G", "XPU_CORES=30")
    free = workers.working("XPU_MEM=2G")
    # The container without a cap gets the rest.
    get([capped, free], [(20, 40), (45, 80)])
    until(lambda: 20 <= node.json("ps")[0]["cores_got_percent"] <= 40, "what the capped one gets is told")
    entries = node.json("ps")
    assert [entry["memory_bytes"] for entry in entries] == [GIB, 2 * GIB]
    assert [entry["memory_backend"] for entry in entries] == [memory_by] * 2
    assert [(entry["cores_shared"], entry["cores_backend"]) for entry in entries] == [
        ("cap", "library"),
        ("turns", None),
    ]
    assert entries[1]["cores_got_percent"] is None
    for container, lines in (
        (capped, ["CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"]),
        (free, ["CUDA_SUCCESS"] * 2),
    ):
        with Program(node, container.id, "fill", 1, 700, 700) as program:
            assert [program.line() for _ in lines] == [f"device 0: 700 MiB: {each}" for each in lines]
            assert program.line() == "done"
    for each in (capped, free):
        each.end()
