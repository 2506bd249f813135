"""Where a process is in real hierarchies, and which devices the v1 controller then lets it open."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.cgroups import Opener
from support.namespaces import own_mount_namespace
from xpu_runtime.errors import ApplyError
from xpu_runtime.linux import cgroups, syscalls
from xpu_runtime.linux.device_rule import DeviceRule


def test_the_folders_found_for_a_process_list_it(new_cgroup: Callable[[str], Path]) -> None:
    own = os.getpid()
    folders = [cgroups.devices_folder_v1(own), cgroups.v2_folder(own)]
    for folder in folders:
        assert folder is not None
        assert str(own) in Path(folder, "cgroup.procs").read_text().split(), folder


def test_a_process_that_is_gone_is_named() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(ProcessLookupError) as caught:
        cgroups.v2_folder(process.pid)
    assert str(process.pid) in str(caught.value)


def test_the_devices_folder_is_where_the_process_was_put(
    new_cgroup: Callable[[str], Path], sleeper: Callable[..., int]
) -> None:
    folder = new_cgroup("devices")
    assert cgroups.devices_folder_v1(sleeper(folder)) == str(folder)


def test_a_mount_that_shows_a_part_of_the_hierarchy_is_understood(
    new_cgroup: Callable[[str], Path],
    sleeper: Callable[..., int],
    tmp_path: Path,
    in_child: Callable[..., None],
) -> None:
    part = new_cgroup("unified")
    (part / "below").mkdir()
    inner, outer = sleeper(part / "below"), sleeper(part)
    place = tmp_path / "a folder\twith \\ odd characters"
    place.mkdir()

    def look() -> None:
        own_mount_namespace()
        subprocess.run(["mount", "--bind", part, place], check=True)
        syscalls.mount("none", "/sys/fs/cgroup", "tmpfs", 0)
        assert cgroups.v2_folder(inner) == str(place / "below")
        assert cgroups.v2_folder(outer) == str(place)
        assert cgroups.v2_folder(os.getppid()) is None
        assert cgroups.v2_folder(inner, not_of=outer) == str(place / "below")
        assert cgroups.v2_folder(inner, not_of=os.getppid()) == str(place / "below")
        assert cgroups.v2_folder(inner, not_of=inner) is None

    in_child(look)


def test_a_hierarchy_that_cannot_be_looked_at_is_named_and_not_left_out(
    new_cgroup: Callable[[str], Path], tmp_path: Path, in_child: Callable[..., None]
) -> None:
    part, place = new_cgroup("unified"), tmp_path / "closed/cgroup"
    place.mkdir(parents=True)

    def look() -> None:
        own_mount_namespace()
        subprocess.run(["mount", "--bind", part, place], check=True)
        assert str(place) in {each.mountpoint for each in cgroups.mounted()}
        place.parent.chmod(0o700)
        os.setresuid(65534, 65534, 65534)
        with pytest.raises(
            ApplyError, match=f"{place} cannot be looked at: Permission denied: do it as root"
        ):
            cgroups.mounted()

    in_child(look)


def test_hierarchies_that_another_mount_hides_are_not_there(in_child: Callable[..., None]) -> None:
    def look() -> None:
        own_mount_namespace()
        syscalls.mount("none", "/sys/fs/cgroup", "tmpfs", 0)
        assert cgroups.mounted() == []
        assert cgroups.v2_folder(os.getpid()) is None and cgroups.devices_folder_v1(os.getpid()) is None
        with pytest.raises(ApplyError, match="cannot be found: mount /sys/fs/cgroup"):
            cgroups.allow_devices(os.getpid(), [DeviceRule("c", 195, 0)])

    in_child(look)


def test_a_hierarchy_below_a_loop_of_symlinks_in_another_mount_is_not_there(
    tmp_path: Path, in_child: Callable[..., None]
) -> None:
    place = tmp_path / "covered/cgroup"
    place.mkdir(parents=True)

    def look() -> None:
        own_mount_namespace()
        before = cgroups.mounted()
        syscalls.mount("none", str(place), "cgroup2", 0)
        assert cgroups.mounted() != before
        syscalls.mount("none", str(place.parent), "tmpfs", 0)
        place.symlink_to("cgroup")
        assert cgroups.mounted() == before

    in_child(look)


def test_a_mountpoint_with_other_line_ends_in_its_name_hides_no_hierarchy(
    tmp_path: Path, in_child: Callable[..., None]
) -> None:
    place = tmp_path / "a\x0bfolder\x1c of\x85somebody's\u2028"
    place.mkdir()

    def look() -> None:
        own_mount_namespace()
        before = cgroups.mounted()
        syscalls.mount("none", str(place), "cgroup2", 0)
        assert before
        found = {each.mountpoint: each for each in cgroups.mounted()}
        assert found.pop(str(place)).version == 2
        assert list(found.values()) == before

    in_child(look)


def test_a_v2_mount_over_the_v1_ones_is_the_only_hierarchy(in_child: Callable[..., None]) -> None:
    def look() -> None:
        own_mount_namespace()
        syscalls.mount("none", "/sys/fs/cgroup", "cgroup2", 0)
        assert [(each.version, each.mountpoint) for each in cgroups.mounted()] == [(2, "/sys/fs/cgroup")]
        assert cgroups.devices_folder_v1(os.getpid()) is None
        assert str(cgroups.v2_folder(os.getpid())).startswith("/sys/fs/cgroup")

    in_child(look)


@pytest.mark.parametrize("hierarchy", ["devices", "unified"])
def test_a_cgroup_has_the_processes_of_those_below_it(
    hierarchy: str, new_cgroup: Callable[[str], Path], sleeper: Callable[..., int]
) -> None:
    folder = new_cgroup(hierarchy)
    (folder / "a").mkdir()
    (folder / "a/b").mkdir()
    assert not cgroups.has_processes(str(folder))
    sleeper(folder / "a/b")
    assert cgroups.has_processes(str(folder))
    assert not cgroups.has_processes(str(folder / "gone"))


def test_a_v1_cgroup_that_is_allowed_a_device_can_open_that_one_only(
    new_cgroup: Callable[[str], Path], sleeper: Callable[..., int], opens: Opener
) -> None:
    folder = new_cgroup("devices")
    (folder / "devices.deny").write_text("a")
    (folder / "devices.allow").write_text("c 1:3 rwm")
    pid = sleeper(folder)
    rules = [DeviceRule("c", 195, 0), DeviceRule("c", 1, 3)]
    assert opens(folder, 195, 0) == errno.EPERM
    added = cgroups.allow_devices(pid, rules)
    assert added.rules == (DeviceRule("c", 195, 0),)
    assert opens(folder, 195, 0) == errno.ENXIO
    assert opens(folder, 195, 1) == errno.EPERM
    assert opens(folder, 195, 0, mknod=True) == errno.EPERM
    assert cgroups.allow_devices(pid, rules).rules == ()
    cgroups.deny_devices(added)
    assert opens(folder, 195, 0) == errno.EPERM
    assert opens(folder, 1, 3) == 0


def test_devices_are_denied_in_the_cgroup_and_not_where_a_dead_process_is(
    new_cgroup: Callable[[str], Path], sleeper: Callable[..., int], opens: Opener
) -> None:
    folder, elsewhere = new_cgroup("devices"), new_cgroup("devices")
    for each in (folder, elsewhere):
        (each / "devices.deny").write_text("a")
    rule = DeviceRule("c", 195, 0)
    (elsewhere / "devices.allow").write_text(str(rule))
    pid = sleeper(folder)
    allowed = cgroups.allow_devices(pid, [rule])
    # As the kernel moves a dying process: its cgroup is then the root, which would be the machine's.
    (elsewhere / "cgroup.procs").write_text(str(pid))
    cgroups.deny_devices(allowed)
    assert opens(folder, 195, 0) == errno.EPERM
    assert opens(elsewhere, 195, 0) == errno.ENXIO


def test_a_process_that_is_ending_has_no_devices_cgroup_that_could_change() -> None:
    """v1 puts a zombie into the root cgroup: denying a device there would deny it to the whole machine."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        rules = [DeviceRule("c", 4094, 1_048_575)]  # no device has it
        with pytest.raises(ProcessLookupError):
            cgroups.devices_folder_v1(pid)
        with pytest.raises(ProcessLookupError):
            cgroups.allow_devices(pid, rules)
    finally:
        os.waitpid(pid, 0)


def test_a_v1_cgroup_that_is_denied_nothing_is_not_changed(
    new_cgroup: Callable[[str], Path], sleeper: Callable[..., int], opens: Opener
) -> None:
    folder = new_cgroup("devices")
    pid = sleeper(folder)
    assert cgroups.allow_devices(pid, [DeviceRule("c", 195, 0)]).rules == ()
    assert (folder / "devices.list").read_text() == "a *:* rwm\n"


def test_a_device_that_the_parent_cgroup_refuses_is_an_error_for_people(
    new_cgroup: Callable[[str], Path], sleeper: Callable[..., int]
) -> None:
    parent = new_cgroup("devices")
    (parent / "devices.deny").write_text("a")
    (parent / "child").mkdir()
    pid = sleeper(parent / "child")
    with pytest.raises(ApplyError, match=r"devices\.allow cannot be written: Operation not permitted"):
        cgroups.allow_devices(pid, [DeviceRule("c", 195, 0)])


def test_a_cgroup_that_went_away_is_an_error_for_people() -> None:
    with pytest.raises(ApplyError, match="cannot be written: No such file"):
        cgroups._change_v1("/sys/fs/cgroup/devices/xpu-test-never-was", [DeviceRule("c", 195, 0)], True)
