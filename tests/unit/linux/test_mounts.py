"""Mounts into the mount namespace of another process, as a container's hook makes them."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.namespaces import own_mount_namespace
from xpu_runtime.linux import mounts, syscalls
from xpu_runtime.linux.rootfs import Root


@pytest.fixture
def container(tmp_path: Path) -> Iterator[int]:
    """The pid of a process in a mount namespace of its own."""
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; exec sleep 1000"],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder of the host with a file and an executable."""
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "libcuda.so.1").write_text("driver")
    (folder / "run").write_text("#!/bin/sh\necho ran\n")
    (folder / "run").chmod(0o755)
    return folder


def options(path: Path, pid: int | str = "self") -> set[str]:
    """The options of the mount whose mountpoint is `path`; empty if there is none."""
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        if fields[4] == str(path):
            return {*fields[5].split(","), *fields[6 : fields.index("-")]}
    return set()


def test_later_files_are_made_in_a_mounted_folder(
    container: int, inside: Path, host: Path, in_child: Callable[..., None]
) -> None:
    """The folder below the mount stays as it was, with its earlier files."""
    (host / "own.conf").touch()
    folder, file = mounts.clone(str(host)), mounts.clone(str(host / "run"))

    def hook() -> None:
        mounts.enter_mount_namespace(container)
        with Root(str(inside)) as root:
            os.close(root.make_file("/etc/own/before"))
            mounts.attach(folder, root, "/etc/own", nodev=True, read_only=False)
            mounts.attach(file, root, "/etc/own/own.conf", nodev=True)
            assert (inside / "etc/own/own.conf").read_text().startswith("#!/bin/sh")
            os.close(root.make_file("/etc/own/after"))

    in_child(hook)
    os.close(folder)
    os.close(file)
    assert sorted(os.listdir(inside / "etc/own")) == ["before"]
    assert (host / "after").exists()


def test_a_file_of_the_host_appears_in_the_container_only(
    container: int, inside: Path, host: Path, in_child: Callable[..., None]
) -> None:
    clone = mounts.clone(str(host / "libcuda.so.1"))

    def hook() -> None:
        mounts.enter_mount_namespace(container)
        with Root(str(inside)) as root:
            mounts.attach(clone, root, "/usr/lib/libcuda.so.1", nodev=True)
            with pytest.raises(OSError, match="Read-only file system"):
                (inside / "usr/lib/libcuda.so.1").write_text("changed")

    in_child(hook)
    os.close(clone)
    there = Path(f"/proc/{container}/root{inside}/usr/lib/libcuda.so.1")
    assert there.read_text() == "driver"
    assert (inside / "usr/lib/libcuda.so.1").read_text() == ""  # on the host: the mountpoint
    target = inside / "usr/lib/libcuda.so.1"
    assert {"ro", "nosuid", "nodev"} <= options(target, container)
    assert not {"noexec"} & options(target, container)
    assert options(target) == set()


def test_a_folder_of_the_host_appears_with_the_attributes_named(
    container: int, inside: Path, host: Path, in_child: Callable[..., None]
) -> None:
    clone = mounts.clone(str(host))

    def hook() -> None:
        mounts.enter_mount_namespace(container)
        with Root(str(inside)) as root:
            mounts.attach(clone, root, "/opt/tools", read_only=False, nosuid=False, nodev=False, noexec=True)
            (inside / "opt/tools/made").write_text("x")
            with pytest.raises(PermissionError):
                subprocess.run([inside / "opt/tools/run"])

    in_child(hook)
    os.close(clone)
    assert (host / "made").read_text() == "x"
    assert {"rw", "noexec"} <= options(inside / "opt/tools", container)
    assert not {"nosuid", "nodev"} & options(inside / "opt/tools", container)


def test_undo_takes_mounts_and_mountpoints_away(
    container: int, inside: Path, host: Path, in_child: Callable[..., None]
) -> None:
    folder, file = mounts.clone(str(host)), mounts.clone(str(host / "run"))

    def hook() -> None:
        mounts.enter_mount_namespace(container)
        before = Path("/proc/self/mountinfo").read_text()
        with Root(str(inside)) as root:
            mounts.attach(folder, root, "/a/b", nodev=True)
            mounts.attach(file, root, "/a/c", nodev=True)
            with open(inside / "a/c"):  # busy: it is detached all the same
                root.undo()
            assert Path("/proc/self/mountinfo").read_text() == before
            assert os.listdir(inside) == []

    in_child(hook)
    os.close(folder)
    os.close(file)


def test_a_mount_of_a_shared_folder_does_not_propagate(
    inside: Path, host: Path, in_child: Callable[..., None]
) -> None:
    def hook() -> None:
        own_mount_namespace()
        subprocess.run(["mount", "--bind", host, host], check=True)
        subprocess.run(["mount", "--make-shared", host], check=True)
        clone = mounts.clone(str(host))
        with Root(str(inside)) as root:
            mounts.attach(clone, root, "/x", nodev=True)
        assert not [option for option in options(inside / "x") if ":" in option]
        assert [option for option in options(host) if option.startswith("shared:")]

    in_child(hook)


def test_a_hostile_destination_stays_inside(
    container: int, inside: Path, host: Path, tmp_path: Path, in_child: Callable[..., None]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (inside / "usr").symlink_to(f"../../../../../..{outside}")
    (inside / "lib").symlink_to("/proc/self/root")
    clone = mounts.clone(str(host / "libcuda.so.1"))

    def hook() -> None:
        mounts.enter_mount_namespace(container)
        with Root(str(inside)) as root:
            mounts.attach(clone, root, "/usr/libcuda.so.1", nodev=True)
        assert (inside / str(outside).lstrip("/") / "libcuda.so.1").read_text() == "driver"

    in_child(hook)
    os.close(clone)
    assert list(outside.iterdir()) == []


def test_a_file_is_not_mounted_on_a_folder(inside: Path, host: Path, in_child: Callable[..., None]) -> None:
    (inside / "taken").mkdir()

    def hook() -> None:
        own_mount_namespace()
        with Root(str(inside)) as root:
            clone = mounts.clone(str(host / "run"))
            with pytest.raises(IsADirectoryError) as caught:
                mounts.attach(clone, root, "/taken", nodev=True)
            assert caught.value.filename == "/taken"

    in_child(hook)


def test_nothing_is_mounted_over_the_root_itself(
    inside: Path, host: Path, in_child: Callable[..., None]
) -> None:
    (inside / "opt").symlink_to("/")

    def hook() -> None:
        own_mount_namespace()
        with Root(str(inside)) as root, pytest.raises(OSError, match="root itself") as caught:
            mounts.attach(mounts.clone(str(host)), root, "/opt", nodev=True)
        assert caught.value.errno == errno.EBUSY

    in_child(hook)


def test_a_clone_of_nothing_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        mounts.clone(str(tmp_path / "none"))
    assert caught.value.filename == str(tmp_path / "none")


def test_a_device_node_of_the_host_works_where_the_mount_is_not_nodev(
    inside: Path, in_child: Callable[..., None]
) -> None:
    def hook() -> None:
        own_mount_namespace()
        with Root(str(inside)) as root:
            clone = mounts.clone("/dev/null")
            mounts.attach(clone, root, "/dev/null", read_only=False, nodev=False)
            (inside / "dev/null").write_text("gone")
            assert (inside / "dev/null").read_text() == ""

    in_child(hook)


def test_a_kernel_without_mount_setattr_gives_mounts_the_same_attributes(
    inside: Path, host: Path, in_child: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux 5.10, Debian 11's."""

    def absent(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(syscalls, "mount_setattr", absent)

    def hook() -> None:
        own_mount_namespace()
        subprocess.run(["mount", "--bind", "-o", "noatime,noexec", host, host], check=True)
        subprocess.run(["mount", "--make-shared", host], check=True)
        with Root(str(inside)) as root:
            mounts.attach(mounts.clone(str(host)), root, "/x", nodev=True)
            mounts.attach(
                mounts.clone(str(host / "run")), root, "/y", read_only=False, nodev=True, noexec=True
            )
            assert {"ro", "nosuid", "nodev", "noexec", "noatime"} <= options(inside / "x")
            assert {"rw", "nosuid", "nodev", "noexec", "noatime"} <= options(inside / "y")
            assert not [one for path in "xy" for one in options(inside / path) if ":" in one]
            root.undo()
            assert os.listdir(inside) == []

    in_child(hook)
