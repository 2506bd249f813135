"""Foreign mounts in a container's root: volumes and shared mounts."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.namespaces import own_mount_namespace
from xpu_runtime.linux import mountinfo, mounts, syscalls
from xpu_runtime.linux.rootfs import Root


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.fixture
def with_mounts(inside: Path, outside: Path) -> Callable[[], frozenset[str]]:
    """Mounts a volume, a shared one, a tmpfs and an overlay in the caller's namespace; returns the host's
    files."""

    def mount() -> frozenset[str]:
        own_mount_namespace()
        host = mountinfo.devices()
        for name in ("volume", "shared", "own space", "overlay"):
            (inside / name).mkdir()
        for name in ("volume", "shared"):
            subprocess.run(["mount", "--bind", outside, inside / name], check=True)
        subprocess.run(["mount", "--make-shared", inside / "shared"], check=True)
        syscalls.mount("none", str(inside / "own space"), "tmpfs", 0)
        # It is none of the host's, and outlives its mount all the same.
        upper, work = inside / "own space/upper", inside / "own space/work"
        upper.mkdir()
        work.mkdir()
        options = f"lowerdir={outside},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "none", inside / "overlay"], check=True)
        (inside / "link").symlink_to("/volume/deep")
        return host

    return mount


def test_nothing_is_made_in_a_volume(
    inside: Path, outside: Path, with_mounts: Callable[[], frozenset[str]], in_child: Callable[..., None]
) -> None:
    def change() -> None:
        host = with_mounts()
        before = contents(outside)
        with Root(str(inside), host) as root:
            calls: list[Callable[[], object]] = [
                lambda: root.make_dirs("/volume/new"),
                lambda: root.make_dirs("/link/new"),
                lambda: root.make_file("/volume/new"),
                lambda: root.write_file("/volume/secret", b"mine"),
                lambda: root.symlink("x", "/volume/new"),
                lambda: root.make_node("/shared/new", stat.S_IFCHR, 195, 0),
                lambda: root.make_file("/overlay/new"),
            ]
            for call in calls:
                with pytest.raises(
                    OSError, match=r"it lies on the volume at /(volume|shared|overlay)"
                ) as caught:
                    call()
                assert caught.value.errno == errno.EXDEV
                assert caught.value.filename
            os.close(root.make_file("/volume/secret"))  # it is there
            assert not root.symlink("x", "/volume/secret")
            os.close(root.make_file("/own space/new"))
            assert [root.takes_files(path) for path in ("/etc/x/y", "/own space", "/volume/x", "/link")] == [
                *(True, True, False),
                True,  # as far as it is there
            ]
            assert root.mountpoint_of("/own space/a/b") == "/own space"
            assert root.mountpoint_of("/etc/a") == "/"
        with Root(str(inside)) as root, pytest.raises(OSError, match="volume at /own space"):
            root.make_file("/own space/newer")  # it is not known whose that is
        assert contents(outside) == before

    in_child(change)


def test_nothing_is_mounted_where_it_would_reach_another_mount_namespace(
    inside: Path, outside: Path, with_mounts: Callable[[], frozenset[str]], in_child: Callable[..., None]
) -> None:
    def change() -> None:
        host = with_mounts()
        clone = mounts.clone("/etc/hostname")
        with Root(str(inside), host) as root:
            with pytest.raises(OSError, match="it lies on the shared mount at /shared") as caught:
                mounts.attach(clone, root, "/shared/secret", nodev=True)
            assert caught.value.filename == "/shared/secret"
            mounts.attach(clone, root, "/volume/secret", nodev=True)
        assert (outside / "secret").read_text() == "secret"
        assert (inside / "volume/secret").read_text() == Path("/etc/hostname").read_text()

    in_child(change)
