"""Files made for a step of a build go at its end, and others' files stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xpu_runtime.delivery import build_step_files
from xpu_runtime.linux.rootfs import Root

#: No process has this number.
GONE = 1 << 22


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XPU_RUN_DIR", str(tmp_path / "run"))
    folder = tmp_path / "root"
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/ld.so.cache").write_bytes(b"the image's\xff")
    (folder / "etc/ld.so.cache").chmod(0o640)
    (folder / "lib").mkdir()
    (folder / "lib/libcuda.so").symlink_to("stubs/libcuda.so")
    return folder


def tree(root: Path) -> dict[str, object]:
    """Everything below a folder."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
    return found


def start(root: Path) -> None:
    """A start's files, recorded for the end."""
    with Root(str(root)) as opened:
        os.close(opened.make_file("/lib/libcuda.so.1"))
        os.close(opened.make_file("/usr/lib/xpu/libcuda.real.so"))
        assert opened.symlink("libcuda.so.1", "/lib/libcuda.so")
        opened.write_file("/etc/ld.so.cache", b"first")
        opened.write_file("/etc/ld.so.cache", b"with ours")
        build_step_files.write("step-1", str(root), GONE, opened.made())


def test_all_made_files_go_and_replaced_ones_come_back(root: Path) -> None:
    before = tree(root)
    start(root)
    assert (root / "etc/ld.so.cache").read_bytes() == b"with ours"
    build_step_files.take_away("step-1")
    assert tree(root) == before
    assert list((root.parent / "run/builds").iterdir()) == []
    build_step_files.take_away("step-1")
    assert tree(root) == before


def test_a_file_of_no_bytes_comes_back_as_it_was(root: Path) -> None:
    (root / "etc/ld.so.cache").write_bytes(b"")
    before = tree(root)
    start(root)
    build_step_files.take_away("step-1")
    assert tree(root) == before


def test_files_that_the_step_has_put_there_stay(root: Path) -> None:
    start(root)
    for name in ("etc/ld.so.cache", "lib/libcuda.so.1"):
        (root / "new").write_bytes(b"the step's")
        (root / "new").rename(root / name)
    (root / "usr/lib/xpu/another").write_bytes(b"x")
    build_step_files.take_away("step-1")
    assert (root / "etc/ld.so.cache").read_bytes() == b"the step's"
    assert (root / "lib/libcuda.so.1").read_bytes() == b"the step's"
    assert [path.name for path in (root / "usr/lib/xpu").iterdir()] == ["another"]
    assert (root / "lib/libcuda.so").readlink() == Path("stubs/libcuda.so")


def test_a_link_that_the_step_has_put_in_a_folder_s_place_leads_nowhere_else(root: Path) -> None:
    start(root)
    outside = root.parent / "outside"
    outside.mkdir()
    (root / "lib/libcuda.so.1").rename(outside / "libcuda.so.1")  # the inode that was made
    (root / "lib").rename(root / "was-lib")
    (root / "lib").symlink_to(outside)
    build_step_files.take_away("step-1")
    assert [path.name for path in outside.iterdir()] == ["libcuda.so.1"]


def later(path: Path) -> None:
    """The time of a change that is not within the same tick of the clock as a start's."""
    when = path.lstat().st_mtime_ns + 10**9
    os.utime(path, ns=(when, when), follow_symlinks=False)


def test_a_file_of_the_step_stays_though_it_has_the_inode_s_number_of_ours(root: Path) -> None:
    start(root)
    # As `rm /etc/ld.so.cache; ldconfig`, and busybox's `ln -sf`: ext4 gives the number to the next file.
    (root / "etc/ld.so.cache").unlink()
    (root / "etc/ld.so.cache").write_bytes(b"the step's")
    later(root / "etc/ld.so.cache")
    (root / "lib/libcuda.so").unlink()
    (root / "lib/libcuda.so").symlink_to("libcuda.so.535")
    later(root / "lib/libcuda.so")
    build_step_files.take_away("step-1")
    assert (root / "etc/ld.so.cache").read_bytes() == b"the step's"
    assert (root / "lib/libcuda.so").readlink() == Path("libcuda.so.535")


def test_a_file_of_ours_that_the_step_has_written_to_stays(root: Path) -> None:
    start(root)
    (root / "etc/ld.so.cache").write_bytes(b"the step's")  # as `cp`
    later(root / "etc/ld.so.cache")
    build_step_files.take_away("step-1")
    assert (root / "etc/ld.so.cache").read_bytes() == b"the step's"


def test_a_try_that_was_killed_is_made_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(root)
    start(root)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Root, "unmake", killed)
        build_step_files.take_away("step-1")
    build_step_files.take_away("step-1")
    assert tree(root) == before


@pytest.mark.parametrize("container", ["../../etc", "", "a/b", "x" * 300])
def test_an_id_that_is_no_file_s_name_has_no_file(root: Path, container: str) -> None:
    build_step_files.write(container, str(root), GONE, [["/", "etc", 1, 0, None]])
    assert not (root.parent / "run").exists()
    build_step_files.take_away(container)
