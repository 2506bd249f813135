"""The users that can have put a file at a path: each folder and link on the way is judged."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from xpu_runtime.linux import mountinfo, trusted
from xpu_runtime.linux.mountinfo import MountEntry


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").touch()
    return tmp_path


def test_links_are_followed_and_stay_below_the_root(folder: Path) -> None:
    (folder / "a/link").symlink_to("/a/b")
    (folder / "a/up").symlink_to("../../../../a/b/file")
    assert trusted.real("/a/link/file", str(folder)) == "/a/b/file"
    assert trusted.real("/a/up", str(folder)) == "/a/b/file"
    assert trusted.real(f"{folder}/a/b/../b/file") == f"{folder.resolve()}/a/b/file"


@pytest.mark.parametrize("who", ["mode", "owner"])
@pytest.mark.parametrize("where", ["a", "a/b", "a/b/file"])
def test_a_path_that_others_can_write_is_named(folder: Path, where: str, who: str) -> None:
    if who == "mode":
        (folder / where).chmod(0o777)
    else:
        os.chown(folder / where, 1000, 1000)
    with pytest.raises(
        trusted.UntrustedError, match=f"^users other than root can write to {folder}/{where}$"
    ):
        trusted.real(f"{folder}/a/b/file")


def test_the_group_root_is_root_and_another_is_not(folder: Path) -> None:
    (folder / "a").chmod(0o775)
    assert trusted.real(f"{folder}/a/b/file")
    os.chown(folder / "a", 0, 50)
    with pytest.raises(trusted.UntrustedError, match=r"can write to .*/a$"):
        trusted.real(f"{folder}/a/b/file")


def test_a_folder_that_a_link_passes_through_is_judged(folder: Path) -> None:
    (folder / "others").mkdir()
    (folder / "others/on").symlink_to(folder / "a/b")
    (folder / "link").symlink_to("others/on/file")
    assert trusted.real(f"{folder}/link") == f"{folder}/a/b/file"
    (folder / "others").chmod(0o777)
    with pytest.raises(trusted.UntrustedError, match=r"can write to .*/others$"):
        trusted.real(f"{folder}/link")


def test_in_a_sticky_folder_roots_files_are_fixed_and_the_folder_itself_is_not(folder: Path) -> None:
    (folder / "a").chmod(0o1777)
    assert trusted.real(f"{folder}/a/b/file")
    with pytest.raises(trusted.UntrustedError):
        trusted.real(f"{folder}/a")
    (folder / "a/link").symlink_to("b/file")
    os.chown(folder / "a/link", 1000, 1000, follow_symlinks=False)
    with pytest.raises(trusted.UntrustedError, match=r"can write to .*/a/link$"):
        trusted.real(f"{folder}/a/link")


def test_a_read_only_mount_of_a_users_folder_is_not_fixed(folder: Path) -> None:
    """The user writes into the folder at its writable mount."""
    os.chown(folder / "a", 1000, 1000)
    program = f"from xpu_runtime.linux import trusted; print(trusted.real('{folder}/a/b/file'))"
    script = f"""mount --bind {folder}/a {folder}/a; mount -o remount,bind,ro {folder}/a; exec "$@" """
    words = ["unshare", "-m", "sh", "-ec", script, "sh", sys.executable, "-c", program]
    done = subprocess.run(words, env={"PYTHONPATH": "src"}, capture_output=True, text=True)
    assert f"users other than root can write to {folder}/a" in done.stderr


@pytest.mark.parametrize(("kind", "fixed"), [("squashfs", True), ("erofs", True), ("ext4", False)])
def test_a_read_only_image_is_fixed_with_any_owner_of_its_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, fixed: bool
) -> None:
    os.chown(folder / "a", 1000, 1000)
    entry = MountEntry("0:1", kind, "ro", "/", str(folder), False)
    monkeypatch.setattr(mountinfo.Table, "get", lambda *_: entry)
    if fixed:
        assert trusted.real(f"{folder}/a/b/file") == f"{folder}/a/b/file"
    else:
        with pytest.raises(trusted.UntrustedError):
            trusted.real(f"{folder}/a/b/file")


def test_a_path_that_an_acl_lets_somebody_write_is_not_roots_alone(folder: Path) -> None:
    # version 2; user::rwx, user:65534:rwx, group::r-x, mask::rwx, other::r-x (acl(5), posix_acl_xattr.h)
    entries = [
        (1, 7, 0xFFFFFFFF),
        (2, 7, 65534),
        (4, 5, 0xFFFFFFFF),
        (16, 7, 0xFFFFFFFF),
        (32, 5, 0xFFFFFFFF),
    ]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *each) for each in entries)
    os.setxattr(folder / "a", "system.posix_acl_access", acl)
    assert (folder / "a").stat().st_mode & 0o777 == 0o775
    with pytest.raises(trusted.UntrustedError, match=r"can write to .*/a$"):
        trusted.real(f"{folder}/a/b/file")


def test_links_without_an_end_are_an_error(folder: Path) -> None:
    (folder / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        trusted.real(f"{folder}/loop")
    with pytest.raises(FileNotFoundError):
        trusted.real(f"{folder}/a/missing")


def test_a_file_system_of_others_making_may_hang(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = MountEntry("0:1", "fuse.sshfs", "", "/", "/home/user", False)
    monkeypatch.setattr(mountinfo, "read", lambda: [entry])
    assert trusted.may_hang("/home/user/bin") and trusted.may_hang("//home/./user")
    assert not trusted.may_hang("/home/user2")
