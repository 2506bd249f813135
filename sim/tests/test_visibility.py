"""The devices that a process sees: on the host all, elsewhere those whose nodes it may open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.device_programs import RETURN_0, RETURN_1, attach, one_device
from support.simulation import NO_DEVICE, NVML_NOT_LOADED, SUCCESS, Start, Up

#: Shell commands that make an empty /dev, and the nodes that every container with a device has.
EMPTY = "mount -t tmpfs t /dev"
CONTROL = f"{EMPTY}; mknod /dev/nvidiactl c 195 255"


def digits(uuids: list[str]) -> list[str]:
    """UUIDs in CUDA's form."""
    return [uuid.partition("-")[2].replace("-", "") for uuid in uuids]


def test_on_the_host_every_device_is_there(up: Up, process: Start) -> None:
    one = process(up("4xT4").root)
    uuids = one.count()
    assert len(uuids) == 4
    assert one.init() == SUCCESS
    assert one.devices() == digits(uuids)


def test_a_copy_of_the_hosts_mounts_is_the_host(up: Up, process: Start) -> None:
    """`podman build` calls runtimes from such a copy."""
    one = process(up("4xT4").root, setup="mount -t tmpfs t /mnt")
    assert len(one.count()) == 4


def test_elsewhere_a_device_is_there_if_its_node_is(up: Up, process: Start) -> None:
    root = up("4xT4").root
    uuids = process(root).count()
    one = process(root, setup=f"{CONTROL}; mknod /dev/nvidia1 c 195 1; mknod /dev/nvidia3 c 195 3")
    assert one.count() == [uuids[1], uuids[3]]
    assert one.nvml("nvmlDeviceGetMinorNumber", 1) == 3
    assert one.nvml("nvmlDeviceGetIndex", 1) == 1
    assert one.start(1) == SUCCESS
    assert one.devices() == digits([uuids[1], uuids[3]])
    assert one.alloc(1 << 30)[0] == SUCCESS
    observer = process(root)
    assert [observer.nvml("nvmlDeviceGetMemoryInfo", at)["used"] for at in range(4)] == [0, 0, 0, 1 << 30]


@pytest.mark.parametrize("setup", [EMPTY, f"{EMPTY}; mknod /dev/nvidia0 c 195 0"])
def test_without_the_control_node_there_is_no_driver(up: Up, process: Start, setup: str) -> None:
    one = process(up("1xT4").root, setup=setup)
    assert one.count() == {"error": NVML_NOT_LOADED}
    assert one.init() == NO_DEVICE


def test_without_a_device_node_there_is_a_driver_and_no_device(up: Up, process: Start) -> None:
    one = process(up("1xT4").root, setup=CONTROL)
    assert one.count() == []
    assert one.init() == NO_DEVICE


def test_a_node_that_the_device_cgroup_forbids_is_no_device(
    up: Up, process: Start, cgroup: Callable[..., Path]
) -> None:
    root = up("2xT4").root
    group = cgroup()
    attach(group, one_device(195, 1, it=RETURN_0, others=RETURN_1))
    # The nodes exist before the rule: it forbids opening the second.
    nodes = f"{CONTROL}; mknod /dev/nvidia0 c 195 0; mknod /dev/nvidia1 c 195 1"
    one = process(root, setup=f"{nodes}; echo $$ > {group}/cgroup.procs")
    assert one.count() == process(root).count()[:1]


def test_a_mig_device_needs_the_nodes_of_both_its_instances(up: Up, process: Start) -> None:
    state = up("2xA100-MIG")
    capabilities = Path(state.root, "proc/driver/nvidia/capabilities/gpu0/mig")
    major = next(
        line.split()[0]
        for line in Path(state.root, "proc/devices").read_text().splitlines()
        if line.endswith(" nvidia-caps")
    )

    def minor(path: str) -> str:
        return (capabilities / path).read_text().split()[1]

    def cap(path: str) -> str:
        return f"mknod /dev/nvidia-caps/nvidia-cap{minor(path)} c {major} {minor(path)}"

    mine = process(state.root).mig()
    base = f"{CONTROL}; mknod /dev/nvidia0 c 195 0; mkdir /dev/nvidia-caps"
    one = process(
        state.root, setup=f"{base}; {cap('gi7/access')}; {cap('gi7/ci0/access')}; {cap('gi1/access')}"
    )
    assert one.mig() == [mine[1]]
    assert one.start() == SUCCESS
    assert one.devices() == digits([mine[1]])
    none = process(state.root, setup=base)
    assert none.mig() == []
    assert none.init() == NO_DEVICE, "a card in MIG mode runs nothing by itself"


def test_cuda_visible_devices_chooses_and_orders(up: Up, process: Start) -> None:
    root = up("4xT4").root
    uuids = process(root).count()

    def seen(listed: str) -> list[str]:
        one = process(root, {"CUDA_VISIBLE_DEVICES": listed})
        if one.init() == NO_DEVICE:
            return []
        found: list[str] = one.devices()
        return found

    all_of_them = digits(uuids)
    assert seen("2") == [all_of_them[2]]
    assert seen("3,1") == [all_of_them[3], all_of_them[1]]
    assert seen(uuids[1]) == [all_of_them[1]]
    assert seen(uuids[1][:12].lower()) == [all_of_them[1]]
    assert seen("1,9,2") == [all_of_them[1]], "what comes behind an entry that names nothing is void"
    assert seen("0, 2 ") == [all_of_them[0], all_of_them[2]]
    assert seen("GPU-") == [], "a prefix must name one device"
    assert seen("") == seen("-1") == seen("none") == []


def test_cuda_takes_one_mig_device_and_no_other(up: Up, process: Start) -> None:
    root = up("2xA100-MIG").root
    observer = process(root)
    migs = observer.mig()
    gpu = observer.count()[0]

    def seen(environ: dict[str, str]) -> list[str]:
        one = process(root, environ)
        assert one.init() == SUCCESS
        found: list[str] = one.devices()
        return found

    assert seen({}) == digits(migs[:1])
    assert seen({"CUDA_VISIBLE_DEVICES": f"{migs[2]},{migs[1]}"}) == digits(migs[2:3])
    assert seen({"CUDA_VISIBLE_DEVICES": f"MIG-{gpu}/7/0"}) == digits(migs[1:2])


def test_a_process_sees_processes_of_its_own_pid_namespace_only(up: Up, process: Start) -> None:
    root = up("1xT4").root
    outside = process(root)
    outside.start()
    outside.alloc(1 << 30)
    nodes = f"{CONTROL}; mknod /dev/nvidia0 c 195 0"
    inside = process(root, setup=f'{nodes}; set -- unshare -pf --kill-child --mount-proc "$@"')
    inside.start()
    assert inside.alloc(2 << 20)[0] == SUCCESS
    listed = inside.nvml("nvmlDeviceGetComputeRunningProcesses")
    assert [(entry["pid"], entry["usedGpuMemory"]) for entry in listed] == [(inside.pid(), 2 << 20)]
    assert inside.pid() == 1
    assert len(outside.nvml("nvmlDeviceGetComputeRunningProcesses")) == 2
