"""A container opens the devices of its grant and no others, even by nodes of its own: cgroup v1, v2, MIG."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import GIB

from ..conftest import Bundles, Node
from ..inside import ALLOWED, DENIED, may_mknod, open_devices, openings

GPU0, GPU1, CONTROL, MODESET = "195:0", "195:1", "195:255", "195:254"


@pytest.fixture
def v2_only(node: Node) -> Iterator[None]:
    """The node's commands see one cgroup hierarchy, a v2 one, and the low-level runtime uses it."""
    with node.own_mounts("mount -t cgroup2 none /sys/fs/cgroup"):
        yield


@pytest.fixture(params=["v1", "v2"])
def hierarchy(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    if version == "v2":
        request.getfixturevalue("v2_only")
    return version


def driver_numbers(node: Node) -> dict[str, str]:
    """major:minor of every node of the simulated driver, by its path below /dev."""
    dev = node.run_dir / "sim/root/dev"
    numbers = {}
    for path in dev.rglob("nvidia*"):
        found = path.stat()
        if found.st_rdev:
            numbers[str(path.relative_to(dev))] = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    return numbers


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_of_two_cards_only_the_granted_one_can_be_opened(
    node: Node, bundles: Bundles, hierarchy: str, mode: str
) -> None:
    node.configure(f"mode: {mode}")
    node.sim("2xT4")
    uvm = driver_numbers(node)["nvidia-uvm"]
    command = open_devices(GPU0, GPU1, CONTROL, uvm, MODESET)
    done = node.run(bundles("XPU_MEM=1G", "XPU_VISIBLE_DEVICES=0", args=command, change=may_mknod))
    assert done.returncode == 0, done.stderr
    assert openings(done.stdout) == {
        GPU0: ALLOWED,
        GPU1: DENIED,
        CONTROL: ALLOWED,
        uvm: ALLOWED,
        MODESET: DENIED,
    }


def test_a_program_started_later_in_the_container_is_held_too(
    node: Node, bundles: Bundles, hierarchy: str
) -> None:
    node.sim("2xT4")
    container = node.start(
        bundles("XPU_MEM=1G", "XPU_VISIBLE_DEVICES=1", args=["sleep", "1000"], change=may_mknod)
    )
    done = node.oci("exec", container, *open_devices(GPU0, GPU1))
    assert openings(done.stdout) == {GPU0: DENIED, GPU1: ALLOWED}, done.stderr


def test_a_container_that_asks_for_nothing_can_open_no_card(
    node: Node, bundles: Bundles, hierarchy: str
) -> None:
    node.sim("2xT4")
    done = node.run(bundles(args=open_devices(GPU0, GPU1, CONTROL), change=may_mknod))
    assert openings(done.stdout) == {GPU0: DENIED, GPU1: DENIED, CONTROL: DENIED}, done.stderr


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_any_user_of_the_container_may_open_its_device(node: Node, bundles: Bundles, mode: str) -> None:
    def as_nobody(spec: dict[str, Any]) -> None:
        spec["process"]["user"] = {"uid": 65534, "gid": 65534}

    node.configure(f"mode: {mode}")
    node.sim("2xT4")
    bundle = bundles("XPU_MEM=1G", args=["cat", "/dev/nvidia0"], change=as_nobody)
    (bundle / "rootfs").chmod(0o755)
    done = node.run(bundle)
    assert done.stderr == f"cat: can't open '/dev/nvidia0': {ALLOWED}\n"


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_of_a_cards_mig_devices_only_the_granted_one_is_seen_and_opened(
    node: Node, bundles: Bundles, mode: str
) -> None:
    node.configure(f"mode: {mode}")
    node.sim("2xA100-MIG")
    caps = {path: n for path, n in driver_numbers(node).items() if path.startswith("nvidia-caps/")}
    uuid = {device["index"]: device["uuid"] for device in node.json("devices")}
    command = open_devices(*caps.values(), GPU1)
    script = ["sh", "-c", 'nvidia-smi -L; find /dev/nvidia-caps -type c; echo; exec "$@"', "sh", *command]
    done = node.run(bundles("XPU_VISIBLE_DEVICES=0:0", args=script, change=may_mknod))
    assert done.returncode == 0, done.stderr
    seen, _, opened = done.stdout.partition("\n\n")
    assert [uuid["0:0"] in line for line in seen.splitlines() if "MIG-" in line] == [True]
    assert not any(other in seen for index, other in uuid.items() if index != "0:0")
    given = {line.removeprefix("/dev/") for line in seen.splitlines() if line.startswith("/dev/")}
    assert len(given) == 2
    assert openings(opened) == {
        GPU1: DENIED,
        **{numbers: ALLOWED if path in given else DENIED for path, numbers in caps.items()},
    }


def test_a_mig_device_is_granted_whole_without_its_name(node: Node, bundles: Bundles) -> None:
    node.sim("2xA100-MIG")
    bundle = bundles("XPU_POLICY=spread", args=["sleep", "1000"])
    container = node.start(bundle)
    (entry,) = node.json("ps")
    assert (entry["memory_backend"], entry["memory_strength"]) == ("mig", "hard")
    assert ", all cores of the device\n" in node.xpu("explain", "-e", "XPU_POLICY=spread").stdout
    turns = ", all cores of the device, in equal turns with its other slices\n"
    assert turns in node.xpu("explain", "-e", "XPU_MEM=1G").stdout
    listed = node.oci("exec", container, "nvidia-smi", "-L").stdout
    assert entry["device_uuid"] in listed
    assert listed.count("MIG-") == 1


def test_two_containers_never_get_the_same_mig_device(node: Node, bundles: Bundles) -> None:
    node.sim("2xA100-MIG")
    count = len(node.json("devices"))
    for _ in range(count):
        node.start(bundles("XPU_COUNT=1", args=["sleep", "1000"]))
    assert len({entry["device_uuid"] for entry in node.json("ps")}) == count
    refused = node.run(bundles("XPU_COUNT=1"))
    assert refused.returncode == 1
    assert "refused: no device has all of its memory free" in refused.stderr


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_none_gives_libraries_and_no_device(node: Node, bundles: Bundles, mode: str) -> None:
    node.configure(f"mode: {mode}")
    node.sim("2xT4")
    script = "ls /usr/lib/*/libcuda.so.1 /usr/lib/*/libnvidia-ml.so.1; ls /dev | grep nvidia; exit 0"
    done = node.run(bundles("XPU_VISIBLE_DEVICES=none", args=["sh", "-c", script]))
    assert [Path(line).name for line in done.stdout.splitlines()] == ["libcuda.so.1", "libnvidia-ml.so.1"]
    opened = node.run(bundles("XPU_VISIBLE_DEVICES=none", args=open_devices(GPU0, CONTROL), change=may_mknod))
    assert openings(opened.stdout) == {GPU0: DENIED, CONTROL: DENIED}


def test_two_devices_of_one_grant_have_limits_of_their_own(node: Node, bundles: Bundles) -> None:
    node.sim("4xT4")
    bundle = bundles("XPU_MEM=2G,5G", "XPU_COUNT=2", args=["sleep", "1000"], change=may_mknod)
    container = node.start(bundle)
    first, second = node.json("ps")
    assert (first["memory_bytes"], second["memory_bytes"]) == (2 * GIB, 5 * GIB)
    assert first["device_uuid"] != second["device_uuid"]
    info = node.oci("exec", container, "cuda-probe", "info").stdout
    assert sorted(line.split()[-2] for line in info.splitlines()) == ["2048", "5120"]
    numbers = {f"195:{minor}" for minor in range(4)}
    opened = openings(node.oci("exec", container, *open_devices(*numbers)).stdout)
    granted = {f"195:{entry['device_index']}" for entry in (first, second)}
    assert opened == {each: ALLOWED if each in granted else DENIED for each in numbers}


def test_a_slice_of_a_devices_memory_can_be_asked_on_each_of_a_list(node: Node, bundles: Bundles) -> None:
    node.sim("4xT4")
    done = node.run(bundles("XPU_MEM=25%", "XPU_VISIBLE_DEVICES=3,1", args=["cuda-probe", "info"]))
    assert done.stdout.splitlines() == [
        "device 0: 3840 MiB free of 3840 MiB",
        "device 1: 3840 MiB free of 3840 MiB",
    ], done.stderr
