"""docker run where the interposers hold the limit: what only they can get wrong, on an older driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support import GIB, MIB

from ..conftest import Node
from .conftest import Docker, until


@pytest.fixture(autouse=True)
def older(topology: Callable[[str], None]) -> None:
    topology("1xT4-R535")


def test_all_processes_of_a_container_share_the_limit(docker: Docker, node: Node) -> None:
    container = docker.hold("XPU_MEM=4G", 3000)
    done = docker("exec", container, "cuda-probe", "alloc", "2000", "500")
    assert done.out.splitlines() == [
        "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY",
        "allocating 500 MiB: CUDA_SUCCESS",
        "device 0: 596 MiB free of 4096 MiB",
    ]
    # The program of the exec has ended: what it held is free again.
    (entry,) = node.json("ps")
    assert (entry["memory_bytes"], entry["memory_used_bytes"]) == (4 * GIB, 3000 * MIB)
    assert (entry["memory_backend"], entry["memory_strength"]) == ("library", "soft")
    done = docker("exec", container, "cuda-probe", "alloc", "1096")
    assert done.status == 0, done


def test_what_a_killed_process_held_is_free_again(docker: Docker, node: Node) -> None:
    container = docker.start("XPU_MEM=4G", "sleep", "1000")
    script = "cuda-probe alloc 3000 --hold & sleep 1000"
    docker.must("exec", "--detach", container, "sh", "-c", script)
    until(lambda: node.json("ps")[0]["memory_used_bytes"] == 3000 * MIB, "the program has its memory")
    docker.must("exec", container, "killall", "-9", "cuda-probe")
    done = docker("exec", container, "cuda-probe", "alloc", "4096")
    assert done.status == 0, done


def test_nvidia_smi_lists_the_containers_own_processes_only(docker: Docker) -> None:
    docker.hold("XPU_MEM=4G", 1000)
    mine = docker.hold("XPU_MEM=4G", 338)
    done = docker("exec", mine, "nvidia-smi")
    assert "338MiB /   4096MiB" in done.out, done
    rows = [line for line in done.out.splitlines() if "cuda-probe" in line]
    assert len(rows) == 1, done
    assert "338MiB" in rows[0]


def test_two_containers_race_for_nothing_of_each_others(docker: Docker, node: Node) -> None:
    first, second = docker.hold("XPU_MEM=7G", 7000), docker.hold("XPU_MEM=8G", 8000)
    assert docker("exec", first, "cuda-probe", "alloc", "200").status == 3
    assert docker("exec", second, "cuda-probe", "alloc", "150").status == 0
    assert {entry["memory_used_bytes"] for entry in node.json("ps")} == {7000 * MIB, 8000 * MIB}
