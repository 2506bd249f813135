"""Hosts differ in mounted cgroups: the main job works on each, or doctor says which to mount.

The views are mount namespaces: v1 with v2 beside it, each alone, and none.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from ..conftest import Bundles, Node

NONE = "mount -t tmpfs -o mode=755 none /sys/fs/cgroup"
V2 = "mount -t cgroup2 none /sys/fs/cgroup"
#: Each hierarchy on its own, as a host without systemd has them.
V1 = f"""{NONE}
for each in cpu cpuacct cpuset memory devices freezer blkio pids; do
    mkdir /sys/fs/cgroup/$each; mount -t cgroup -o $each none /sys/fs/cgroup/$each
done
mkdir /sys/fs/cgroup/systemd; mount -t cgroup -o none,name=systemd none /sys/fs/cgroup/systemd"""
BOTH = f"{V1}; mkdir /sys/fs/cgroup/unified; mount -t cgroup2 none /sys/fs/cgroup/unified"
V2_ASIDE = f"{NONE}; mkdir /sys/fs/cgroup/unified; mount -t cgroup2 none /sys/fs/cgroup/unified"
LAYOUTS = {"both": BOTH, "v1 alone": V1, "v2 alone": V2}


def of_cgroups(node: Node) -> str:
    lines = node.xpu("doctor", check=False).stdout.splitlines()
    found = [number for number, line in enumerate(lines) if " cgroups: " in line]
    return "\n".join(lines[found[0] : found[0] + 2])


def starts(node: Node, bundles: Bundles) -> bool:
    """Whether a container can be started, and a program in it afterwards."""
    bundle = bundles("XPU_MEM=4G", args=["sleep", "1000"])
    try:
        container = node.start(bundle)
    except AssertionError:
        assert node.json("ps") == []
        return False
    done = node.oci("exec", container, "true")
    node.remove(container)
    return done.returncode == 0


def main_job(node: Node, bundles: Bundles) -> None:
    done = node.run(bundles("XPU_MEM=4G", "XPU_CORES=30", args=["cuda-probe", "alloc", "3000", "2000"]))
    assert done.stdout.splitlines()[:2] == [
        "allocating 3000 MiB: CUDA_SUCCESS",
        "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY",
    ], done.stderr
    bundle = bundles("XPU_MEM=4G", args=["cuda-probe", "alloc", "1000", "--hold"])
    container = node.start(bundle)
    (entry,) = node.json("ps")
    assert (entry["container_id"], entry["state"]) == (container, "running")
    done = node.oci("exec", container, "sh", "-c", "head -c 1 /dev/nvidia1 2>&1")
    assert "nvidia1" in done.stdout  # the other card: not there, or not to be opened
    node.remove(container)
    assert node.json("ps") == []


@pytest.mark.parametrize("driver", ["2xT4-R580", "2xT4"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_main_job_works_on_each_layout(
    node: Node, bundles: Bundles, layout: str, driver: str, any_mode: str
) -> None:
    with node.own_mounts(LAYOUTS[layout]):
        node.sim(driver)
        assert of_cgroups(node).startswith(("ok", "warning"))
        main_job(node, bundles)


#: Those in which no container can start, until something is mounted.
WRONG = {
    "none": NONE,
    "no sysfs": "umount -l /sys",
    "v2 where runc does not look": V2_ASIDE,
    "v2, read-only": f"{V2}; mount -o remount,bind,ro /sys/fs/cgroup",
    "v1, and not all": f"{V1}; umount /sys/fs/cgroup/systemd /sys/fs/cgroup/memory",
}


@pytest.mark.parametrize("layout", WRONG.values(), ids=WRONG)
def test_if_no_container_can_start_doctor_says_what_to_mount_and_that_helps(
    node: Node, bundles: Bundles, layout: str
) -> None:
    with node.own_mounts(layout):
        node.sim("1xT4-R580")
        assert not starts(node, bundles)
        said = of_cgroups(node)
        assert said.startswith("problem"), said
        (command,) = re.findall(r"(?:mkdir|mount -).*", said)
        subprocess.run([*node.view, "sh", "-ec", command], check=True)
        assert of_cgroups(node).startswith(("ok", "warning"))
        main_job(node, bundles)
