"""Files made in a container's root can be removed again, and files that others put there meanwhile stay."""

from __future__ import annotations

import functools
import gc
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from xpu_runtime.linux import files
from xpu_runtime.linux.rootfs import Root

from .conftest import tree

pytestmark = pytest.mark.timeout(60)


def change_much(root: Root) -> None:
    os.close(root.make_dirs("/new/folder"))
    os.close(root.make_file("/new/file"))
    os.close(root.make_file("/etc/hostname"))
    root.write_file("/etc/hostname", b"changed", 0o600)
    root.write_file("/etc/hostname", b"changed again")
    root.write_file("/etc/added", b"x")
    root.symlink("elsewhere", "/etc/link")
    root.symlink("elsewhere", "/etc/fresh")
    root.write_file("/etc/linked", b"no longer a link")
    root.make_node("/dev/nvidia0", stat.S_IFCHR | 0o666, 195, 0)


def test_undo_leaves_the_root_as_it_was(root: Root, inside: Path) -> None:
    (inside / "etc/hostname").chmod(0o640)
    os.chown(inside / "etc/hostname", 5, 6)
    (inside / "etc/link").symlink_to("hostname")
    (inside / "etc/linked").symlink_to("hostname")
    before = tree(inside)
    change_much(root)
    assert tree(inside) != before
    root.undo()
    assert tree(inside) == before
    assert ((inside / "etc/hostname").stat().st_uid, (inside / "etc/hostname").stat().st_gid) == (5, 6)


def test_undo_leaves_a_file_that_somebody_else_put_in_the_place(root: Root, inside: Path) -> None:
    change_much(root)
    (inside / "etc/hostname").unlink()
    (inside / "etc/hostname").write_text("theirs")
    (inside / "dev/nvidia0").rename(inside / "dev/moved")
    (inside / "dev/nvidia0").mkdir()
    (inside / "new/theirs").write_text("theirs")
    root.undo()
    assert (inside / "etc/hostname").read_text() == "theirs"
    assert (inside / "dev/nvidia0").is_dir()
    assert [path.name for path in (inside / "new").iterdir()] == ["theirs"]


def test_files_kept_for_undo_are_closed_with_the_root(inside: Path) -> None:
    gc.collect()  # earlier tests may have left some in cycles
    before = len(os.listdir("/proc/self/fd"))
    for finish in (Root.undo, Root.close):
        root = Root(str(inside))
        change_much(root)
        finish(root)
        root.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_names_swapped_while_we_work_never_lead_out(root: Root, inside: Path, outside: Path) -> None:
    """A thread exchanges a folder, a link out of the root and a way up, as fast as it can."""
    before = tree(outside)
    (inside / "real").mkdir()
    stop = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        real, target, following = inside / "real", inside / "target", inside / "next"
        while not stop.is_set():
            for link in (str(outside), "../../outside", f"/proc/self/root{outside}", "real"):
                steps: list[Callable[[], object]] = [
                    functools.partial(os.symlink, link, following),
                    lambda: os.rename(following, target),
                    lambda: os.unlink(target),
                    lambda: os.rename(real, target),
                    lambda: os.rename(target, real),
                ]
                for step in steps:
                    with suppress(OSError):
                        step()
                swaps += 1

    def changes_below(folder: str, number: int) -> list[Callable[[], object]]:
        return [
            lambda: os.close(root.make_dirs(f"{folder}/folder{number}/deep")),
            lambda: os.close(root.make_file(f"{folder}/file{number}")),
            lambda: root.write_file(f"{folder}/written{number}", b"x"),
            lambda: root.symlink("x", f"{folder}/link{number}"),
            lambda: root.make_node(f"{folder}/node{number}", stat.S_IFCHR, 195, 0),
        ]

    attacker = threading.Thread(target=swap)
    attacker.start()
    done = 0
    try:
        for number in range(400):
            for call in changes_below("/target", number):
                with suppress(OSError):
                    call()
                    done += 1
            with suppress(OSError):
                assert root.read("/target/secret", 10) != b"secret"
        root.undo()
    finally:
        stop.set()
        attacker.join()
    assert swaps > 100
    assert done > 100
    assert tree(outside) == before


# Files that are exchanged between making them and looking at them.


def test_a_folder_exchanged_after_it_was_made_keeps_its_mode(
    root: Root, inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (inside / "victim").mkdir(0o700)
    real = os.mkdir

    def mkdir(name: str, mode: int, *, dir_fd: int) -> None:
        real(name, mode, dir_fd=dir_fd)
        os.rename(name, "aside", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        os.rename("victim", name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", mkdir)
    os.close(root.make_dirs("/new", 0o755))
    assert stat.S_IMODE((inside / "new").stat().st_mode) == 0o700


def test_a_device_node_exchanged_after_it_was_made_is_none_of_ours(
    root: Root, inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.mknod

    def mknod(name: str, mode: int, device: int, *, dir_fd: int) -> None:
        real(name, mode, os.makedev(1, 3), dir_fd=dir_fd)

    monkeypatch.setattr(os, "mknod", mknod)
    with pytest.raises(OSError, match="the new device node was exchanged") as caught:
        root.make_node("/dev/nvidia0", stat.S_IFCHR | 0o666, 195, 0)
    assert caught.value.filename == "/dev/nvidia0"
    root.undo()
    assert (inside / "dev/nvidia0").stat().st_rdev == os.makedev(1, 3)  # another's, which stays


def test_a_file_exchanged_while_an_old_one_is_restored_keeps_its_owner(
    root: Root, inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(inside / "etc/hostname", 5, 6)
    victim = inside / "etc/victim"
    victim.write_text("another's")
    root.write_file("/etc/hostname", b"new")
    real = files.create_aside

    def create_aside(folder: int, *arguments: Any, **options: Any) -> str:
        name = real(folder, *arguments, **options)
        os.unlink(name, dir_fd=folder)
        os.link("victim", name, src_dir_fd=folder, dst_dir_fd=folder)
        return name

    monkeypatch.setattr(files, "create_aside", create_aside)
    root.undo()
    assert victim.stat().st_uid == 0
