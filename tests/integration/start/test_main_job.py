"""The main job through the real runc: a slice is given, seen, held and given back."""

from __future__ import annotations

import json
import time

import pytest

from support import GIB, MIB

from ..conftest import Bundles, Node

#: A driver that holds memory limits itself, and those for which the interposers do.
DRIVERS = {"1xT4": ("driver", "hard"), "1xT4-R580": ("library", "soft"), "1xT4-R470": ("library", "soft")}


@pytest.fixture(autouse=True, params=DRIVERS)
def t4(node: Node, request: pytest.FixtureRequest) -> tuple[str, str]:
    """One T4 with each driver; the backend of memory then, and its strength."""
    node.sim(request.param)
    return DRIVERS[request.param]


def test_a_container_sees_a_card_of_its_slices_size(node: Node, bundles: Bundles) -> None:
    done = node.run(bundles("XPU_MEM=4G", "XPU_CORES=30", args=["nvidia-smi"]))
    assert done.returncode == 0, done.stderr
    assert "/   4096MiB" in done.stdout


def test_allocations_are_held_to_the_limit_and_the_program_goes_on(node: Node, bundles: Bundles) -> None:
    done = node.run(bundles("XPU_MEM=4G", args=["cuda-probe", "alloc", "3000", "2000", "500"]))
    assert done.stdout.splitlines()[:3] == [
        "allocating 3000 MiB: CUDA_SUCCESS",
        "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY",
        "allocating 500 MiB: CUDA_SUCCESS",
    ]
    assert done.returncode == 3


def test_a_running_container_is_listed_and_gone_after_its_end(
    node: Node, bundles: Bundles, t4: tuple[str, str]
) -> None:
    bundle = bundles("XPU_MEM=4G", "XPU_CORES=30", args=["cuda-probe", "alloc", "1000", "--hold"])
    container = node.start(bundle)
    while "MiB free" not in (bundle / "output").read_text():
        time.sleep(0.02)
    pid = json.loads(node.oci("state", container).stdout)["pid"]
    (entry,) = node.json("ps")
    created = entry.pop("created")
    assert time.strptime(created, "%Y-%m-%dT%H:%M:%SZ")
    assert entry == {
        "container_id": container,
        "name": None,
        "device_index": 0,
        "device_uuid": node.json("devices")[0]["uuid"],
        "memory_bytes": 4 * GIB,
        "memory_used_bytes": 1000 * MIB,
        "memory_unaccounted_bytes": 0 if t4[0] == "library" else None,
        "cores": 30,
        "cores_shared": "cap",
        "cores_got_percent": 0.0,
        "cores_unaccounted_percent": 0.0,
        "cores_sched": "fixed",
        "cores_priority": "normal",
        "memory_backend": t4[0],
        "memory_strength": t4[1],
        "cores_backend": "library",
        "cores_strength": "soft",
        "mode": "hook",
        "state": "running",
        "pid": pid,
    }
    node.remove(container)
    assert node.json("ps") == []
    assert node.json("devices")[0]["memory_granted_bytes"] == 0
