"""The mount table: only requested lines are parsed, as a node may have thousands of mounts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from support.namespaces import own_mount_namespace
from xpu_runtime.linux import mountinfo, syscalls


def test_mounts_of_one_kind_are_told_by_their_type_and_not_by_their_names(
    tmp_path: Path, in_child: Callable[..., None]
) -> None:
    place = tmp_path / "a - cgroup2 b"
    place.mkdir()

    def look() -> None:
        own_mount_namespace()
        syscalls.mount("none", str(place), "tmpfs", 0)
        every = mountinfo.read()
        (made,) = (entry for entry in every if entry.point == str(place))
        fd = os.open(place, os.O_PATH)
        assert mountinfo.Table().get(syscalls.mount_id(fd)) == made
        os.close(fd)
        cgroups = [entry for entry in every if entry.kind in ("cgroup", "cgroup2")]
        assert cgroups
        assert mountinfo.read("cgroup") == cgroups

    in_child(look)


def test_devices_are_those_of_all_mounts() -> None:
    assert mountinfo.devices() == {entry.device for entry in mountinfo.read()}


def test_a_mount_that_is_not_there_is_not_found() -> None:
    assert mountinfo.Table().get(0) is None
