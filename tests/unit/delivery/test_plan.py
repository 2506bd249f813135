"""A plan: built from values, looked up in an image once, carried out on any target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xpu_runtime.delivery import in_root, plan
from xpu_runtime.delivery.contribution import Contribution, InImage
from xpu_runtime.delivery.operations import ImageFile, Link, Mount, Operation, Target
from xpu_runtime.errors import ApplyError, DeviceError
from xpu_runtime.ledger.grants import Holding, Slice
from xpu_runtime.linux.ldcache import Entry
from xpu_runtime.linux.rootfs import Root
from xpu_runtime.vendors.inventory import Device, Driver, Inventory, Library, Node

CUDA = Library("lib", "/host/libcuda.so.580", "libcuda.so.580", "compute", ("libcuda.so.1",))
SMI = Library("bin", "/host/nvidia-smi", "nvidia-smi", "utility")
CARD = Device("0", "GPU-0", "a card", 1 << 30, (Node("/dev/nvidia0", 195, 0),), "nvidia")
DRIVER = Driver("nvidia", common_nodes=(("", Node("/dev/nvidiactl", 195, 255)),), libraries=(CUDA, SMI))
NODE = Inventory("/", False, (CARD,), (DRIVER,), ())
GRANTED = (Slice("0", "GPU-0", 1 << 30, True, None, Holding()),)


class Recorder(Target):
    """Writes down which steps are taken."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []

    def device(self, node: Node) -> None:
        self.steps.append(("device", node.path))

    def mount(self, source: str, destination: str, *, executable: bool, writable: bool) -> None:
        self.steps.append(("mount", source, destination, executable, writable))

    def image_file(self, source: str, destination: str) -> None:
        self.steps.append(("image_file", source, destination))

    def link(self, path: str, target: str) -> None:
        self.steps.append(("link", path, target))

    def linker_cache(self, entries: tuple[Entry, ...], *, needed: bool) -> None:
        self.steps.append(("linker_cache", [entry.soname for entry in entries], needed))


def steps(operations: list[Operation]) -> list[tuple[Any, ...]]:
    target = Recorder()
    for operation in operations:
        operation.apply(target)
    return target.steps


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libc.so.6").touch()
    (tmp_path / "usr/bin").mkdir()
    return tmp_path


def test_each_operation_carries_itself_out_and_says_what_it_does(image: Path) -> None:
    planned = plan.build(NODE, GRANTED, ("compute", "utility"))
    with Root(str(image)) as root:
        operations = planned.in_image(root, None)
    assert steps(operations) == [
        ("device", "/dev/nvidiactl"),
        ("device", "/dev/nvidia0"),
        ("mount", "/host/libcuda.so.580", "/usr/lib64/libcuda.so.580", True, False),
        ("link", "/usr/lib64/libcuda.so.1", "libcuda.so.580"),
        ("mount", "/host/nvidia-smi", "/usr/bin/nvidia-smi", True, False),
        ("linker_cache", ["libcuda.so.1", "libcuda.so.580"], False),
    ]
    assert [operation.describe().partition(" ")[0] for operation in operations] == [
        "make", "make", "mount", "link", "mount", "write",
    ]  # fmt: skip


def test_only_requested_parts_are_planned_and_without_a_device_no_node() -> None:
    assert plan.build(NODE, GRANTED, ("utility",)).files == (SMI,)
    assert plan.build(NODE, (), ("compute",)) == plan.Plan((), (CUDA,), "/")
    with pytest.raises(DeviceError, match="GPU-0 was granted and is gone"):
        plan.build(NODE.replace(devices=()), GRANTED, ("compute",))


class Other(Contribution):
    """Puts another libcuda in the driver's place, and covers one of the image's."""

    def files(self, asked: list[Library], every: tuple[Library, ...]) -> list[Library]:
        return [*asked, Library("page", "/host/page", "/run/page", "")]

    def look(self, root: Root, spec: dict[str, Any]) -> InImage:
        return OtherInImage()


class OtherInImage(InImage):
    def instead_of(self, file: Library) -> Operation | None:
        return ImageFile("/opt/libcuda.so.620", "/run/real") if file == CUDA else None

    def covers(self, folder: str, files: tuple[Library, ...], planned: list[Operation]) -> list[Operation]:
        return [Mount("/host/ours", "/opt/libcuda.so.620")]

    def cache(self, entries: list[Entry]) -> list[Entry]:
        return []


def test_a_contribution_adds_files_and_sees_the_image_only_where_its_programs_are_known(image: Path) -> None:
    planned = plan.build(NODE, (), ("compute",), (Other(),))
    page = ("mount", "/host/page", "/run/page", False, False)
    with Root(str(image)) as root:
        assert page in steps(planned.in_image(root, None))
        assert steps(planned.in_image(root, {})) == [
            ("image_file", "/opt/libcuda.so.620", "/run/real"),
            page,
            ("mount", "/host/ours", "/opt/libcuda.so.620", True, False),
        ]


class FullDisk(in_root.InRoot):
    def mount(self, source: str, destination: str, *, executable: bool, writable: bool) -> None:
        raise OSError(28, "No space left on device")


def test_if_a_step_fails_the_ones_before_are_undone_and_the_reason_is_told(image: Path) -> None:
    with Root(str(image)) as root, pytest.raises(ApplyError, match=r"mount /x at /y.*the disk is full"):
        in_root.carry_out([Link("/usr/lib64/a", "b"), Mount("/x", "/y")], FullDisk(root))
    assert not (image / "usr/lib64/a").is_symlink()
