"""AMD's GPUs through the entry points, on a made-up tree of sysfs: a container's devices and refusals.

There is no card behind the device nodes: whether the device cgroup allows one shows in how opening it fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.amd import DRM, GIB, KFD, Tree

from ..conftest import Bundles, Node
from ..inside import ALLOWED, DENIED, may_mknod, open_devices, openings

FIRST, SECOND = "GPU-00000000000000a1", "GPU-00000000000000a2"
GPU0, GPU1, COMPUTE = f"{DRM}:128", f"{DRM}:129", f"{KFD[0]}:{KFD[1]}"
NVIDIA0 = "195:0"
LIST_DEV = [
    "sh",
    "-c",
    "ls /dev /dev/dri /dev/nvidia* 2>/dev/null; stat -c '%n %a %t:%T' /dev/kfd /dev/dri/*",
]


def cards(root: Path) -> Tree:
    tree = Tree(root)
    tree.gpu(64 * GIB, name="AMD Instinct MI210", unique_id=0xA1)
    tree.gpu(64 * GIB, name="AMD Instinct MI210", unique_id=0xA2)
    return tree


@pytest.fixture(params=["hook", "spec"])
def amd(node: Node, request: pytest.FixtureRequest) -> Tree:
    """A node with two of AMD's GPUs and no other, in either mode."""
    root = node.folder / "root"
    node.configure(f"mode: {request.param}\ndriver: {{root: {root}}}")
    return cards(root)


@pytest.fixture
def both(node: Node) -> Tree:
    """A node with a simulated NVIDIA card, and two of AMD's GPUs that lie below the same driver root."""
    node.sim("1xT4")
    return cards(node.run_dir / "sim" / "root")


def visible(done: Any) -> set[str]:
    """The words that a container printed."""
    return set(done.stdout.split())


def test_a_container_gets_a_whole_gpu(node: Node, bundles: Bundles, amd: Tree) -> None:
    bundle = bundles("XPU_COUNT=1", args=["sleep", "60"])
    container = node.start(bundle)
    (row,) = node.json("ps")
    assert (row["device_index"], row["device_uuid"]) == (0, FIRST)
    assert row["memory_bytes"] is None  # no limit: it has all of the device
    assert node.grants()[0].slices[0].memory_bytes == 64 * GIB
    assert (row["memory_backend"], row["state"]) == (None, "running")
    assert row["memory_used_bytes"] is None  # it is not known
    assert "  used     -\n" in node.xpu("inspect", container).stdout
    listed = node.oci("exec", container, *LIST_DEV)
    assert {"kfd", "dri", "renderD128", "/dev/kfd", "666"} <= visible(listed), listed.stderr
    assert "renderD129" not in visible(listed)
    assert f"{DRM:x}:80" in visible(listed)
    refused = node.run(bundles("XPU_VISIBLE_DEVICES=0"))
    assert refused.returncode != 0
    assert f"held by container {container[:12]}" in refused.stderr
    node.remove(container)
    assert node.grants() == []


def test_the_device_cgroup_has_the_granted_gpus_nodes_and_no_others(
    node: Node, bundles: Bundles, amd: Tree
) -> None:
    command = open_devices(GPU0, GPU1, COMPUTE)
    done = node.run(bundles("XPU_VISIBLE_DEVICES=1", args=command, change=may_mknod))
    assert openings(done.stdout) == {GPU0: DENIED, GPU1: ALLOWED, COMPUTE: ALLOWED}, done.stderr
    done = node.run(bundles(f"XPU_VISIBLE_DEVICES={FIRST}", args=command, change=may_mknod))
    assert openings(done.stdout) == {GPU0: ALLOWED, GPU1: DENIED, COMPUTE: ALLOWED}, done.stderr
    done = node.run(bundles("XPU_COUNT=2", args=command, change=may_mknod))
    assert openings(done.stdout) == {GPU0: ALLOWED, GPU1: ALLOWED, COMPUTE: ALLOWED}, done.stderr


def test_a_part_of_a_gpu_is_refused_where_the_kernel_cannot_hold_its_limit(node: Node, amd: Tree) -> None:
    # No kernel has a region of this card, which is not there.
    done = node.xpu("explain", "-e", "XPU_MEM=4G", check=False)
    assert done.returncode == 3
    assert "dmem" in done.stdout
    assert "enforcement.allow_unenforced does not list memory" in done.stdout
    assert "interposer" not in done.stdout
    done = node.xpu("explain", "-e", "XPU_CORES=30", check=False)
    assert done.returncode == 3
    assert "nothing on this node can hold a cap on cores" in done.stdout
    assert "enforcement.allow_unenforced does not list cores" in done.stdout
    done = node.xpu("explain", "-e", "XPU_MEM=4G", "-e", "XPU_ENFORCE=library", check=False)
    assert "library cannot hold limits of amd devices" in done.stdout


def test_compute_is_a_capability_of_amds_too(node: Node, bundles: Bundles, amd: Tree) -> None:
    words = ("XPU_COUNT=1", "XPU_CAPABILITIES=utility")
    done = node.run(bundles(*words, args=open_devices(GPU0, COMPUTE), change=may_mknod))
    assert openings(done.stdout) == {GPU0: ALLOWED, COMPUTE: DENIED}, done.stderr


def test_the_gpus_are_listed_and_explained(node: Node, amd: Tree) -> None:
    rows = node.json("devices")
    assert [(row["index"], row["uuid"], row["memory_bytes"]) for row in rows] == [
        (0, FIRST, 64 * GIB),
        (1, SECOND, 64 * GIB),
    ]
    assert all(row["healthy"] and not row["simulated"] for row in rows)
    used = [(row["memory_used_bytes"], row["utilization_percent"]) for row in rows]
    assert used == [(None, None), (None, None)]  # the tree has no such files
    amd.tells_use(128, 3 * GIB, 42)
    amd.tells_use(129, 1 << 50, 400)
    used = [(row["memory_used_bytes"], row["utilization_percent"]) for row in node.json("devices")]
    assert used == [(3 * GIB, 42), (64 * GIB, 100)]  # no more than there is
    told = node.xpu("devices").stdout
    assert "AMD Instinct MI210" in told and " 3G " in told and " 42% " in told
    assert "\namdgpu driver of Linux " in told
    explained = node.xpu("explain", "-v", "-e", "XPU_COUNT=1").stdout
    assert f"make device /dev/kfd ({COMPUTE})" in explained
    assert f"make device /dev/dri/renderD128 ({GPU0})" in explained


def test_a_change_of_the_tree_shows_in_the_next_listing(node: Node, amd: Tree) -> None:
    assert len(node.json("devices")) == 2
    amd.gpu(16 * GIB, unique_id=0xA3)
    assert len(node.json("devices")) == 3
    (amd.topology / "1/properties").write_text("")
    assert [row["healthy"] for row in node.json("devices")] == [False, True, True]


@pytest.mark.parametrize(
    ("condition", "granted"),
    [
        ("arch>=9.0", True),
        ("arch>=9.4", False),
        ("brand=instinct", True),
        ("vendor=amd", True),
        ("vendor!=amd", False),
        ("vendor=nvidia", False),
    ],
)
def test_a_requirement_is_compared_with_the_facts_of_a_gpu(
    node: Node, amd: Tree, condition: str, granted: bool
) -> None:
    done = node.xpu("explain", "-e", "XPU_COUNT=1", "-e", f"XPU_REQUIRE={condition}", check=False)
    assert done.returncode == (0 if granted else 3), done.stdout + done.stderr
    if not granted:
        assert f"requires {condition}, and has arch 9.0.10, brand instinct, vendor amd" in done.stdout


def test_a_requirement_of_an_unknown_fact_says_so(node: Node, amd: Tree) -> None:
    done = node.xpu("explain", "-e", "XPU_COUNT=1", "-e", "XPU_REQUIRE=cuda>=12.0,driver>=535", check=False)
    assert done.returncode == 3
    assert "vendor amd; its cuda and driver are not known" in done.stdout


@pytest.mark.parametrize("variables", [("NVIDIA_VISIBLE_DEVICES=all",), ("XPU_COUNT=1", "CUDA_VERSION=12.4")])
def test_an_image_made_for_nvidias_gets_none_of_amds(
    node: Node, bundles: Bundles, amd: Tree, variables: tuple[str, ...]
) -> None:
    refused = node.run(bundles(*variables))
    assert refused.returncode != 0
    assert (
        "the image asks for NVIDIA devices, and this node has only amd ones; XPU_REQUIRE=vendor=amd"
        in refused.stderr
    )
    command = open_devices(GPU0, GPU1)
    done = node.run(bundles(*variables, "XPU_REQUIRE=vendor=amd", args=command, change=may_mknod))
    assert ALLOWED in openings(done.stdout).values(), done.stderr


def test_devices_listed_in_nvidias_variable_are_nvidias(node: Node, bundles: Bundles, amd: Tree) -> None:
    refused = node.run(bundles("NVIDIA_VISIBLE_DEVICES=0"))
    assert "NVIDIA_VISIBLE_DEVICES names '0', which is a device of amd" in refused.stderr
    done = node.run(bundles("CUDA_VERSION=12.4", "XPU_VISIBLE_DEVICES=0", args=LIST_DEV))
    assert "renderD128" in visible(done), done.stderr


def test_on_a_node_with_both_a_container_that_names_none_gets_the_first_vendors(
    node: Node, bundles: Bundles, both: Tree
) -> None:
    assert [row["index"] for row in node.json("devices")] == [0, 1, 2]
    command = open_devices(NVIDIA0, GPU0, GPU1)
    for words in (("XPU_MEM=4G",), ("XPU_VISIBLE_DEVICES=all",), ("NVIDIA_VISIBLE_DEVICES=all",)):
        done = node.run(bundles(*words, args=command, change=may_mknod))
        assert openings(done.stdout) == {NVIDIA0: ALLOWED, GPU0: DENIED, GPU1: DENIED}, done.stderr
    refused = node.run(bundles("XPU_COUNT=2"))
    assert refused.returncode != 0


def test_on_a_node_with_both_amds_are_asked_for_by_vendor(node: Node, bundles: Bundles, both: Tree) -> None:
    command = open_devices(NVIDIA0, GPU0, GPU1)
    words = ("XPU_VISIBLE_DEVICES=all", "XPU_REQUIRE=vendor=amd")
    done = node.run(bundles(*words, args=command, change=may_mknod))
    assert openings(done.stdout) == {NVIDIA0: DENIED, GPU0: ALLOWED, GPU1: ALLOWED}, done.stderr
    # And none of the other driver's files.
    done = node.run(bundles(*words, args=["sh", "-c", "find / -xdev -name 'libcuda*' -o -name nvidia-smi"]))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_on_a_node_with_both_one_of_each_is_had_where_the_interposers_hold_the_others_memory(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4-R580")
    cards(node.run_dir / "sim" / "root")
    node.configure("enforcement: {allow_unenforced: [memory]}")
    words = ("XPU_VISIBLE_DEVICES=0,2", "XPU_MEM=1G")
    done = node.run(bundles(*words, args=["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader"]))
    assert (done.returncode, done.stdout) == (0, "1024 MiB\n"), done.stderr


def test_on_a_node_with_both_a_container_can_list_one_of_each(
    node: Node, bundles: Bundles, both: Tree
) -> None:
    words = ("XPU_VISIBLE_DEVICES=0,2",)
    done = node.run(bundles(*words, args=open_devices(NVIDIA0, GPU0, GPU1, COMPUTE), change=may_mknod))
    assert openings(done.stdout) == {NVIDIA0: ALLOWED, GPU0: DENIED, GPU1: ALLOWED, COMPUTE: ALLOWED}
    listed = node.run(bundles(*words, args=["nvidia-smi", "-L"]))
    assert listed.stdout.count("GPU ") == 1, listed.stderr
