"""The `dmem` backend on a made-up cgroup tree, in which plain files stand for the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import GIB
from xpu_runtime.errors import ApplyError, DeviceError
from xpu_runtime.ledger.grants import MEMORY, Grant, Holding, Slice
from xpu_runtime.limits.backend import HARD, SOFT
from xpu_runtime.limits.backends import dmem
from xpu_runtime.linux import cgroups
from xpu_runtime.request.request import Request
from xpu_runtime.vendors.inventory import Device, Driver, Inventory

REGION = "drm/0000:03:00.0/vram"
GPU = Device("0", "GPU-1", "AMD Instinct MI210", 64 * GIB, (), "amd", details=(("dmem", REGION),))
PARTITION = GPU.replace(uuid="GPU-2-0", details=())
FOUND = Inventory("/", False, (GPU, PARTITION), (Driver("amd", backends=("dmem",)),), ())
HELD = Holding("dmem", "hard", None, None)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The mountpoint of a cgroup v2 whose kernel has the controller and one card."""
    (tmp_path / "dmem.capacity").write_text(f"{REGION} {64 * GIB}\ndrm/0000:03:00.0/stolen 67108864\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    monkeypatch.setattr(cgroups, "v2_mountpoint", lambda: str(tmp_path))
    return tmp_path


@pytest.fixture
def cgroup(root: Path) -> Path:
    """A container's cgroup, to which the controller is passed on."""
    folder = root / "docker" / "c1"
    folder.mkdir(parents=True)
    (folder / "dmem.max").write_text(f"{REGION} max\n")
    (folder / "dmem.current").write_text(f"{REGION} {3 * GIB}\n")
    return folder


def grant(cgroup: Path | str) -> Grant:
    part = Slice("0", GPU.uuid, 4 * GIB, True, None, HELD)
    return Grant(1, "c1", "/b", 1, 1, str(cgroup), "running", "hook", 0.0, (part,))


def unavailable(device: Device) -> str | None:
    return dmem.BACKEND.unavailable(FOUND, device)


def test_it_offers_to_hold_memory_of_a_device_whose_region_the_kernel_has(root: Path) -> None:
    assert dmem.BACKEND.offer(MEMORY, FOUND, GPU, Request()).strength == HARD


def test_it_is_soft_for_a_container_that_could_write_to_its_cgroup(root: Path) -> None:
    offer = dmem.BACKEND.offer(MEMORY, FOUND, GPU, Request(can_lift="the container has CAP_SYS_ADMIN"))
    assert offer.strength == SOFT
    assert offer.reason.startswith("the container has CAP_SYS_ADMIN, and could lift")


def test_it_says_why_it_cannot_hold_a_limit(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unavailable(PARTITION) == "the kernel has no region of GPU 0's memory alone"
    (root / "dmem.capacity").write_text("drm/0000:04:00.0/vram0 1073741824\n")
    assert unavailable(GPU) == f"the kernel's dmem.capacity does not list {REGION}"
    (root / "dmem.capacity").unlink()
    assert unavailable(GPU) == "the kernel has no dmem cgroup controller (Linux 6.14 or newer can)"
    monkeypatch.setattr(cgroups, "v2_mountpoint", lambda: None)
    assert unavailable(GPU) == "the kernel holds limits on cgroup v2 only, which is not mounted here"


def test_a_limit_is_imposed_shown_changed_and_lifted(cgroup: Path) -> None:
    held = grant(cgroup)
    dmem.BACKEND.impose(FOUND, held)
    assert (cgroup / "dmem.max").read_text() == f"{REGION} {4 * GIB}"
    shown = dmem.BACKEND.in_force(FOUND, held, 0, MEMORY)
    assert shown is not None
    assert (shown.limit, shown.used) == (4 * GIB, 3 * GIB)
    with dmem.BACKEND.open(FOUND, held) as change:
        assert change.in_use(0, MEMORY) == 3 * GIB
        change.set(0, MEMORY, 6 * GIB)
    assert (cgroup / "dmem.max").read_text() == f"{REGION} {6 * GIB}"
    assert dmem.BACKEND.must_lift(held)
    dmem.BACKEND.lift(FOUND, held, lambda: True)
    assert (cgroup / "dmem.max").read_text() == f"{REGION} {6 * GIB}"
    dmem.BACKEND.lift(FOUND, held, lambda: False)
    assert (cgroup / "dmem.max").read_text() == f"{REGION} max"


def test_a_change_is_not_for_the_next_cgroup_of_the_same_name(cgroup: Path) -> None:
    """The cgroup of a container that was started again meanwhile."""
    with dmem.BACKEND.open(FOUND, grant(cgroup)) as change:
        cgroup.rename(cgroup.with_name("before"))
        cgroup.mkdir()
        (cgroup / "dmem.max").write_text(f"{REGION} 7")
        with pytest.raises(DeviceError, match="container c1 has ended"):
            change.set(0, MEMORY, 6 * GIB)
    assert (cgroup / "dmem.max").read_text() == f"{REGION} 7"


def test_the_controller_is_passed_on_to_a_container_whose_runtime_has_not_done_so(root: Path) -> None:
    folder = root / "docker" / "c1"
    folder.mkdir(parents=True)
    (root / "docker" / "cgroup.subtree_control").touch()
    # The kernel would make the files; here none appear, and the limit must not pass for held.
    with pytest.raises(ApplyError, match=r"dmem\.max"):
        dmem.BACKEND.impose(FOUND, grant(folder))
    assert (root / "cgroup.subtree_control").read_text() == "+dmem"
    assert (root / "docker" / "cgroup.subtree_control").read_text() == "+dmem"


def test_a_limit_that_the_kernel_leaves_as_it_was_is_an_error(cgroup: Path) -> None:
    (cgroup / "dmem.max").unlink()
    (cgroup / "dmem.max").symlink_to("/dev/null")
    with pytest.raises(ApplyError, match="the kernel did not take"):
        dmem.set_limit(str(cgroup), REGION, 1 << 30)


def test_a_container_without_a_cgroup_of_its_own_gets_no_limit(root: Path) -> None:
    with pytest.raises(ApplyError, match="no cgroup v2 folder"):
        dmem.BACKEND.impose(FOUND, grant(""))
    assert not dmem.BACKEND.must_lift(grant(""))


def test_a_limit_of_a_device_that_is_gone_or_without_its_region_is_not_held(cgroup: Path) -> None:
    (part,) = grant(cgroup).slices
    for left, told in (((PARTITION,), "is no longer there"), ((GPU.replace(details=()),), "has no region")):
        with pytest.raises(DeviceError, match=f"device {part.device_uuid} {told}"):
            dmem.BACKEND.impose(FOUND.replace(devices=left), grant(cgroup))
    assert (cgroup / "dmem.max").read_text() == f"{REGION} max\n"


def test_values_that_cannot_be_read_are_not_known(cgroup: Path) -> None:
    (cgroup / "dmem.current").unlink()
    assert dmem.BACKEND.in_force(FOUND, grant(cgroup), 0, MEMORY) is None
