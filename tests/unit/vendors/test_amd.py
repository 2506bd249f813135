"""AMD's GPUs, as they are found in made-up trees of sysfs: whole ones, odd ones, and broken ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.amd import GIB, KFD, Tree, properties, write
from xpu_runtime.vendors.amd import VENDOR
from xpu_runtime.vendors.inventory import Device, Node
from xpu_runtime.vendors.vendor import Sensors


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def found(tree: Tree) -> tuple[Device, ...]:
    return VENDOR.discover(str(tree.root)).devices


def faults(tree: Tree) -> list[str]:
    return [device.fault or "" for device in found(tree)]


def test_a_gpu_is_described_in_the_words_of_rocm(tree: Tree, tmp_path: Path) -> None:
    tree.gpu(name="AMD Instinct MI210", unique_id=1801979520617338022, bus=0x63)
    write(tmp_path / "sys/module/amdgpu/version", "6.10.5")
    discovered = VENDOR.discover(str(tmp_path))
    (device,) = discovered.devices
    assert device.index == "0"
    # rocminfo's Uuid, which ROCR_VISIBLE_DEVICES takes too.
    assert device.uuid == "GPU-1901ead3a2ecd4a6"
    assert device.name == "AMD Instinct MI210"
    assert device.memory_bytes == 64 * GIB
    assert device.nodes == (Node("/dev/dri/renderD128", 226, 128),)
    assert device.fault is None
    assert dict(device.facts) == {"arch": "9.0.10", "brand": "instinct"}
    assert device.detail("dmem") == "drm/0000:63:00.0/vram"
    assert discovered.driver is not None
    assert discovered.driver.version == "6.10.5"
    assert discovered.driver.common_nodes == (("compute", Node("/dev/kfd", *KFD)),)
    assert discovered.driver.libraries == ()


def test_gpus_are_counted_as_rocm_counts_them_and_cpus_are_none(tree: Tree) -> None:
    for number in range(11):
        tree.gpu(unique_id=number + 1)
    assert [device.uuid[-2:] for device in found(tree)] == [f"{n:02x}" for n in range(1, 12)]
    assert [device.index for device in found(tree)] == [str(n) for n in range(11)]


def test_a_card_that_tells_neither_its_name_nor_a_number_has_those_of_its_place(tree: Tree) -> None:
    tree.gpu(8 * GIB, bus=3, gfx_target_version=110000)
    (device,) = found(tree)
    assert (device.name, device.uuid) == ("AMD GPU gfx1100", "GPU-pci-0000-03-00-0")


def test_the_number_of_an_older_kernel_is_the_pci_devices(tree: Tree, tmp_path: Path) -> None:
    tree.gpu()
    write(tmp_path / "sys/class/drm/renderD128/device/unique_id", "1901e1b8fc6864a6")
    assert found(tree)[0].uuid == "GPU-1901e1b8fc6864a6"


def test_partitions_of_one_gpu_are_devices_each_with_its_share(tree: Tree, tmp_path: Path) -> None:
    for partition in range(2):
        node = tree.gpu(192 * GIB, unique_id=7, bus=5, location_id=partition << 28 | 5 << 8)
        properties(node / "mem_banks/0/properties", {"heap_type": 1, "size_in_bytes": 96 * GIB})
    shutil.rmtree(tmp_path / "sys/class/drm/renderD129")  # there is no PCI device behind the second one
    devices = found(tree)
    assert [device.uuid for device in devices] == ["GPU-0000000000000007-0", "GPU-0000000000000007-1"]
    assert [device.memory_bytes for device in devices] == [96 * GIB, 96 * GIB]
    # Both are in one region of the kernel's: a limit there would hold for both.
    assert [device.detail("dmem") for device in devices] == ["", ""]


def test_cards_of_one_number_are_told_apart_by_their_addresses(tree: Tree) -> None:
    for bus in (3, 4):
        tree.gpu(unique_id=7, bus=bus)
    tree.gpu(unique_id=8, bus=5)
    uuids = [device.uuid for device in found(tree)]
    assert len(set(uuids)) == 3
    assert uuids[2] == "GPU-0000000000000008"


@pytest.mark.parametrize("content", (b"\xff\xfe kfd\n", "\u00b226 kfd\n".encode(), b"9" * 5000 + b" kfd\n"))
def test_a_damaged_list_of_majors_takes_no_device_away(tree: Tree, tmp_path: Path, content: bytes) -> None:
    tree.gpu()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_bytes(content)
    assert len(found(tree)) == 1


def test_kfd_reports_the_memory_of_processes(tree: Tree, tmp_path: Path) -> None:
    tree.gpu(unique_id=1)
    tree.gpu(unique_id=2)
    processes = tmp_path / "sys/class/kfd/kfd/proc"
    write(processes / "4711/vram_40001", 3 << 30)
    write(processes / "4711/vram_40002", 0)
    write(processes / "4712/vram_40001", "garbage")
    discovered = VENDOR.discover(str(tmp_path))
    assert discovered.driver is not None
    used = VENDOR.memory_by_process(discovered.driver, discovered.devices)
    assert used == {"GPU-0000000000000001": {4711: 3 << 30}, "GPU-0000000000000002": {4711: 0}}
    shutil.rmtree(processes)  # as with an older kernel, which does not report it
    assert VENDOR.memory_by_process(discovered.driver, discovered.devices) is None


def test_cards_tell_temperature_power_and_memory_and_partitions_nothing(tree: Tree, tmp_path: Path) -> None:
    for bus in (1, 2, 3, 3):
        tree.gpu(bus=bus)
    first, second = (tmp_path / f"sys/class/drm/renderD{minor}/device" for minor in (128, 129))
    write(first / "mem_info_vram_used", 3 * GIB)
    write(first / "hwmon/hwmon4/temp1_input", 41500)
    write(first / "hwmon/hwmon4/power1_average", 93_000_000)
    write(second / "hwmon/hwmon5/temp1_input", "garbage")
    write(second / "hwmon/hwmon5/power1_input", 7_000_000)  # as newer kernels have it
    discovered = VENDOR.discover(str(tmp_path))
    assert discovered.driver is not None
    told = VENDOR.sensors(discovered.driver, discovered.devices)
    assert list(told.values()) == [Sensors(3 * GIB, 41.5, 93), Sensors(None, None, 7)]
    shutil.rmtree(first)
    assert VENDOR.sensors(discovered.driver, discovered.devices)[found(tree)[0].uuid] == Sensors()


def test_missing_device_files_of_a_node_are_known_by_number(tmp_path: Path) -> None:
    tree = Tree(tmp_path, kfd=False)
    tree.gpu()
    shutil.rmtree(tmp_path / "dev")
    write(tmp_path / "proc/devices", "Character devices:\n226 drm\n509 kfd\n\nBlock devices:\n8 sd")
    discovered = VENDOR.discover(str(tmp_path))
    assert discovered.devices[0].nodes == (Node("/dev/dri/renderD128", 226, 128),)
    assert discovered.driver is not None
    assert discovered.driver.common_nodes == (("compute", Node("/dev/kfd", 509, 0)),)


def test_a_node_without_the_driver_says_so(tmp_path: Path) -> None:
    discovered = VENDOR.discover(str(tmp_path))
    assert discovered.devices == ()
    assert discovered.driver is None
    assert (
        discovered.missing == f"no AMD driver found: {tmp_path}/sys/class/kfd/kfd/topology/nodes is not there"
    )


def test_a_driver_without_a_gpu_says_so(tree: Tree, tmp_path: Path) -> None:
    assert VENDOR.discover(str(tmp_path)).missing == f"the AMD driver has no GPU in {tree.topology}"


def test_without_kfds_device_no_gpu_is_healthy(tmp_path: Path) -> None:
    tree = Tree(tmp_path, kfd=False)
    tree.gpu()
    assert faults(tree) == ["there is no /dev/kfd, through which programs compute"]


@pytest.mark.parametrize(
    "broken", ["", "garbage", "drm_render_minor", "drm_render_minor -1", "\0\xff" * 40_000]
)
def test_a_gpu_without_a_render_node_is_shown_and_not_healthy(tree: Tree, broken: str) -> None:
    node = tree.gpu(unique_id=1)
    tree.gpu(unique_id=2)
    (node / "properties").write_text(broken)
    first, second = found(tree)
    assert first.fault == f"{node}/properties names no render node"
    assert first.nodes == ()
    assert second.fault is None


@pytest.mark.parametrize("memory", ["0", "", "garbage", "-5", "9" * 30, str(1 << 60)])
def test_a_gpu_whose_memory_nobody_knows_is_shown_and_not_healthy(
    tree: Tree, tmp_path: Path, memory: str
) -> None:
    node = tree.gpu()
    (node / "mem_banks/0/properties").write_text(f"heap_type 1\nsize_in_bytes {memory}\n")
    (tmp_path / "sys/class/drm/renderD128/device/mem_info_vram_total").write_text(memory)
    assert faults(tree) == [f"{node} tells of no device memory"]
    assert found(tree)[0].memory_bytes == 0


def test_missing_files_leave_the_facts_of_the_others(tree: Tree, tmp_path: Path) -> None:
    node = tree.gpu(unique_id=5)
    shutil.rmtree(tmp_path / "sys/class/drm")
    assert found(tree)[0].memory_bytes == 64 * GIB
    shutil.rmtree(node / "mem_banks")
    assert faults(tree) == [f"{node} tells of no device memory"]
    (node / "gpu_id").unlink()
    assert found(tree) == ()


def test_a_name_that_is_no_number_is_no_node(tree: Tree) -> None:
    tree.gpu()
    (tree.topology / "two").mkdir()
    (tree.topology / "3").write_text("a file")
    (tree.topology / "4").symlink_to("4")
    assert len(found(tree)) == 1


def test_unprintable_characters_are_no_part_of_a_name(tree: Tree) -> None:
    tree.gpu(name="AMD \x1b[31mRadeon\tPRO" + "!" * 200)
    (device,) = found(tree)
    assert device.name == ("AMD [31mRadeonPRO" + "!" * 200)[:64]
    assert dict(device.facts)["brand"] == "radeon"
