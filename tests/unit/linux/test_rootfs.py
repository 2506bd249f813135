"""A container's root with hostile content: made files lie inside it, wherever a path leads."""

from __future__ import annotations

import errno
import gc
import os
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.namespaces import own_mount_namespace
from xpu_runtime.linux import syscalls
from xpu_runtime.linux.credentials import MakingFilesAs
from xpu_runtime.linux.rootfs import Root

from .conftest import tree

pytestmark = pytest.mark.timeout(60)


ESCAPES = [
    "../outside",
    "/../../outside",
    "../../../../../../../../../../{outside}",
    "/proc/self/root/{outside}",
    "{outside}",
]


def listed(root: Root, path: str) -> list[str]:
    folder = root.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return sorted(os.listdir(folder))
    finally:
        os.close(folder)


@pytest.mark.parametrize("escape", ESCAPES)
def test_no_link_leads_out(root: Root, inside: Path, outside: Path, escape: str) -> None:
    (inside / "way").symlink_to(escape.format(outside=str(outside).lstrip("/")))
    assert not root.exists("/way/secret")
    with pytest.raises(FileNotFoundError) as caught:
        root.read("/way/secret", 100)
    assert caught.value.filename == "/way/secret"
    before = tree(outside)
    os.close(root.make_dirs("/way/made"))
    os.close(root.make_file("/way/file"))
    root.write_file("/way/written", b"x")
    root.symlink("target", "/way/link")
    assert tree(outside) == before
    assert root.read("/way/written", 10) == b"x"


@pytest.mark.parametrize("escape", ["..", "../..", "/..", "etc/../..", "./..//.."])
def test_the_roots_parent_is_the_root(root: Root, escape: str) -> None:
    assert listed(root, escape) == ["etc"]
    assert os.path.samestat(root.stat(escape), os.fstat(root.fd))


def test_proc_of_the_host_inside_the_root_leads_nowhere(inside: Path, in_child: Callable[..., None]) -> None:
    (inside / "proc").mkdir()

    def look() -> None:
        own_mount_namespace()
        syscalls.mount("proc", str(inside / "proc"), "proc", 0)
        with Root(str(inside)) as root:
            for path in ("/proc/self/root/etc", "/proc/self/cwd", "/proc/self/fd/0"):
                with pytest.raises(OSError, match="Too many levels"):
                    os.close(root.open(path))
            with pytest.raises(OSError):
                root.make_dirs("/proc/self/root/made")

    in_child(look)


def test_nothing_is_made_in_a_file_system_of_the_kernel(inside: Path, in_child: Callable[..., None]) -> None:
    for name in ("proc", "group"):
        (inside / name).mkdir()
    (inside / "lib").symlink_to("/proc/self/attr")
    (inside / "opt").symlink_to("/group")

    def try_it() -> None:
        own_mount_namespace()
        syscalls.mount("none", str(inside / "proc"), "proc", 0)
        syscalls.mount("none", str(inside / "group"), "cgroup2", 0)
        with Root(str(inside)) as root:
            for call in (
                lambda: root.make_file("/lib/exec"),
                lambda: root.make_dirs("/lib"),
                lambda: root.make_dirs("/opt/xpu-test-must-not-be"),
                lambda: root.write_file("/opt/file", b""),
                lambda: root.symlink("x", "/opt/link"),
            ):
                with pytest.raises(OSError, match="file system of the kernel") as caught:
                    call()
                assert caught.value.filename
            assert root.read("/proc/self/status", 1 << 16)
        # Other cgroups come and go beside ours.
        assert not {"xpu-test-must-not-be", "file", "link"} & set(os.listdir(inside / "group"))

    in_child(try_it)


def test_links_that_go_round_in_circles_are_refused(root: Root, inside: Path) -> None:
    (inside / "a").symlink_to("b/x")
    (inside / "b").symlink_to("a/x")
    for call in (root.make_dirs, root.make_file, root.open):
        with pytest.raises(OSError, match="Too many levels"):
            call("/a/y")
    assert not root.exists("/a")


def test_links_that_name_each_other_without_end_are_refused(root: Root, inside: Path) -> None:
    # Each is dangling until the one before is made, and makes its path longer.
    (inside / "a").symlink_to("missing/../a/a")
    with pytest.raises(OSError) as caught:
        root.make_dirs("/a")
    assert caught.value.errno in (errno.ELOOP, errno.ENAMETOOLONG)


def test_the_missing_target_of_a_link_is_made_inside(root: Root, inside: Path) -> None:
    (inside / "usr").mkdir()
    (inside / "usr/lib64").symlink_to("/opt/lib")
    (inside / "opt").symlink_to("var/../srv")
    os.close(root.make_file("/usr/lib64/deep/libcuda.so.1"))
    assert (inside / "srv/lib/deep/libcuda.so.1").read_bytes() == b""


def test_the_mountpoint_for_a_link_is_its_target(root: Root, inside: Path) -> None:
    (inside / "libcuda.so.1").symlink_to("/etc/hostname")
    fd = root.make_file("/libcuda.so.1")
    assert os.fstat(fd).st_ino == (inside / "etc/hostname").stat().st_ino
    os.close(fd)
    (inside / "dangling").symlink_to("/etc/new")
    os.close(root.make_file("/dangling"))
    assert (inside / "etc/new").is_file()


def test_folders_and_files_get_their_modes_whatever_the_umask_is(root: Root, inside: Path) -> None:
    old = os.umask(0o077)
    try:
        os.close(root.make_dirs("/a/b", 0o755))
        os.close(root.make_file("/a/c", 0o644))
        root.write_file("/a/d", b"", 0o664)
        root.make_node("/a/null", stat.S_IFCHR | 0o666, 1, 3)
    finally:
        os.umask(old)
    modes = {
        name: stat.S_IMODE((inside / name).stat().st_mode) for name in ("a", "a/b", "a/c", "a/d", "a/null")
    }
    assert modes == {"a": 0o755, "a/b": 0o755, "a/c": 0o644, "a/d": 0o664, "a/null": 0o666}


def test_a_file_that_is_so_already_stays_and_one_that_only_looks_so_is_made_anew(
    root: Root, inside: Path
) -> None:
    there = inside / "etc/cache"

    def is_made_anew(data: bytes = b"same") -> bool:
        before = there.lstat().st_ino, there.lstat().st_ctime_ns
        root.write_file("/etc/cache", data)
        assert there.read_bytes() == data and stat.S_IMODE(there.lstat().st_mode) == 0o644
        assert stat.S_ISREG(there.lstat().st_mode) and there.stat().st_nlink == 1
        return before != (there.lstat().st_ino, there.lstat().st_ctime_ns)

    root.write_file("/etc/cache", b"same")
    assert not is_made_anew()
    assert is_made_anew(b"else") and is_made_anew(b"same")
    there.chmod(0o4644)
    assert is_made_anew()
    os.chown(there, 1000, 0)
    assert is_made_anew()
    os.link(there, inside / "etc/other-name")
    assert is_made_anew()
    there.rename(inside / "etc/elsewhere")
    there.symlink_to("elsewhere")
    assert is_made_anew()
    assert not is_made_anew()


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero: reading it never ends


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("make", [make_fifo, make_device, make_socket])
def test_something_that_is_no_file_is_neither_read_nor_replaced_nor_waited_for(
    root: Root, inside: Path, make: Callable[[Path], None]
) -> None:
    make(inside / "etc/ld.so.cache")
    for call in (
        lambda: root.read("/etc/ld.so.cache", 10),
        lambda: root.write_file("/etc/ld.so.cache", b"x"),
    ):
        with pytest.raises(OSError, match="regular file") as caught:
            call()
        assert caught.value.filename == "/etc/ld.so.cache"
    assert root.exists("/etc/ld.so.cache")
    assert not (inside / "etc/ld.so.cache").is_file()


def test_a_folder_in_a_files_place_is_an_error(root: Root) -> None:
    for call in (
        lambda: root.read("/etc", 10),
        lambda: root.write_file("/etc", b"x"),
        lambda: root.make_file("/etc"),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno in (errno.EISDIR, errno.EINVAL)


def test_a_file_in_a_folders_place_is_an_error(root: Root) -> None:
    for call in (
        lambda: root.make_dirs("/etc/hostname/x"),
        lambda: root.make_file("/etc/hostname/x"),
        lambda: root.write_file("/etc/hostname/x", b""),
        lambda: root.open("/etc/hostname", os.O_DIRECTORY),
    ):
        with pytest.raises(NotADirectoryError):
            call()
    assert not root.exists("/etc/hostname/x")


def test_a_huge_file_is_neither_read_nor_kept(root: Root, inside: Path) -> None:
    with open(inside / "etc/huge", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="more than 1048576 bytes"):
        root.read("/etc/huge", 1 << 20)
    root.write_file("/etc/huge", b"x")
    assert (inside / "etc/huge").read_bytes() == b"x"
    root.undo()
    assert not (inside / "etc/huge").exists()


def test_paths_that_name_no_file_are_refused(root: Root) -> None:
    for path in ("/", "", "/etc/..", "."):
        with pytest.raises(OSError, match="not the path of a file") as caught:
            root.write_file(path, b"")
        assert caught.value.errno == errno.EINVAL
    with pytest.raises(ValueError, match="NUL"):
        root.exists("/etc\0/x")


def test_a_symlink_is_made_once_and_replaces_only_a_symlink(root: Root, inside: Path) -> None:
    assert root.symlink("libcuda.so.1", "/usr/lib/libcuda.so")
    assert not root.symlink("libcuda.so.1", "/usr/lib/libcuda.so")
    assert root.symlink("libcuda.so.2", "/usr/lib/libcuda.so")
    assert os.readlink(inside / "usr/lib/libcuda.so") == "libcuda.so.2"
    assert not root.symlink("x", "/etc/hostname")
    assert not root.symlink("x", "/etc")
    assert (inside / "etc/hostname").read_text() == "box"


def test_a_node_is_made_once_and_never_takes_anothers_place(root: Root, inside: Path) -> None:
    assert root.make_node("/dev/nvidia0", stat.S_IFCHR | 0o666, 195, 0)
    assert not root.make_node("/dev/nvidia0", stat.S_IFCHR | 0o666, 195, 0)
    with pytest.raises(FileExistsError, match="something else"):
        root.make_node("/dev/nvidia0", stat.S_IFCHR | 0o666, 195, 1)
    (inside / "dev/nvidia1").symlink_to("nvidia0")
    with pytest.raises(FileExistsError):
        root.make_node("/dev/nvidia1", stat.S_IFCHR | 0o666, 195, 0)
    assert (inside / "dev/nvidia0").stat().st_rdev == os.makedev(195, 0)


def test_a_failed_call_leaves_no_descriptor_open(root: Root, inside: Path) -> None:
    make_fifo(inside / "etc/fifo")
    (inside / "a").symlink_to("b/x")
    (inside / "b").symlink_to("a/x")
    gc.collect()  # earlier tests may have left some in cycles
    calls: tuple[Callable[[], object], ...] = (
        lambda: root.read("/etc/fifo", 1),
        lambda: root.write_file("/etc/fifo", b""),
        lambda: root.write_file("/etc", b""),
        lambda: root.make_file("/etc"),
        lambda: root.make_dirs("/a/b"),
        lambda: root.make_dirs("/etc/hostname/x"),
        lambda: root.make_node("/etc/hostname", stat.S_IFCHR, 195, 0),
        lambda: root.read("/none", 1),
    )
    open_then = []
    for _ in range(2):  # folders are remembered at the first
        for call in calls:
            with pytest.raises(OSError):
                call()
        open_then.append(len(os.listdir("/proc/self/fd")))
    assert open_then[0] == open_then[1]
    root.close()
    assert len(os.listdir("/proc/self/fd")) < open_then[1] - 1


def test_a_read_only_root_refuses_every_change(inside: Path, in_child: Callable[..., None]) -> None:
    def change() -> None:
        own_mount_namespace()
        subprocess.run(["mount", "--bind", "-o", "ro", inside, inside], check=True)
        with Root(str(inside)) as root:
            for call in (
                lambda: root.make_dirs("/new"),
                lambda: root.make_file("/etc/new"),
                lambda: root.write_file("/etc/hostname", b""),
                lambda: root.symlink("x", "/etc/new"),
                lambda: root.make_node("/etc/new", stat.S_IFCHR, 195, 0),
            ):
                with pytest.raises(OSError, match="Read-only file system"):
                    call()
            assert root.read("/etc/hostname", 10) == b"box"

    in_child(change)


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, in_child: Callable[..., None]) -> None:
    def fill() -> None:
        own_mount_namespace()
        syscalls.mount("tmpfs", str(tmp_path), "tmpfs", 0, "size=64k")
        with Root(str(tmp_path)) as root:
            root.write_file("/cache", b"old")
            with pytest.raises(OSError, match="No space left"):
                root.write_file("/cache", bytes(1 << 20))
            assert root.read("/cache", 10) == b"old"
            assert listed(root, "/") == ["cache"]

    in_child(fill)


def test_root_can_make_files_for_another_user(inside: Path, in_child: Callable[..., None]) -> None:
    def make() -> None:
        inside.chmod(0o700)
        with Root(str(inside)) as root, MakingFilesAs(100_000, 100_001):
            os.close(root.make_file("/a/b"))
            root.symlink("x", "/a/link")
            root.write_file("/etc/hostname", b"new")
        for path in ("a", "a/b", "a/link", "etc/hostname"):
            there = (inside / path).lstat()
            assert (there.st_uid, there.st_gid) == (100_000, 100_001), path
        (inside / "root's").touch()
        assert (inside / "root's").stat().st_uid == 0

    in_child(make)
