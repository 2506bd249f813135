"""Undoing changes in folders that a hostile process may change at the same time.

Each change holds its folder and the file that was made by descriptor. If the name leads to another file by
the time of the undo, that file is left alone. Knows single changes only; rootfs.py keeps them in order.
"""

from __future__ import annotations

import errno
import os
import stat

from xpu_runtime.linux import files, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# The largest file whose content is kept in memory while its replacement may still be undone.
_REPLACED_LIMIT = 16 << 20


class Made:
    """A file made under a name; the open descriptor keeps its inode number from being reused."""

    def __init__(self, folder: int, name: str, made: int, restore: Callable[[int], None] | None) -> None:
        self._folder = os.dup(folder)
        self._name = name
        self._made = os.dup(made)
        self._restore = restore

    def is_it(self, there: os.stat_result) -> bool:
        return os.path.samestat(os.fstat(self._made), there)

    def became(self, made: int) -> None:
        """Records that we have replaced the file by `made`, which is what an undo must remove now."""
        os.dup2(made, self._made, inheritable=False)

    def undo(self) -> None:
        there = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        if not self.is_it(there):
            return
        if stat.S_ISDIR(there.st_mode):
            os.rmdir(self._name, dir_fd=self._folder)
            return
        os.unlink(self._name, dir_fd=self._folder)
        if self._restore is not None:
            self._restore(self._folder)

    def close(self) -> None:
        os.close(self._folder)
        os.close(self._made)


class Mounted:
    """A mount made in the root."""

    def __init__(self, mount: int) -> None:
        self._mount = os.dup(mount)

    def undo(self) -> None:
        syscalls.umount2(by_fd(self._mount), syscalls.MNT_DETACH)

    def close(self) -> None:
        os.close(self._mount)


def restorer(fd: int, old: os.stat_result, name: str, path: str) -> Callable[[int], None]:
    """A function that restores the file or link of `fd` in a folder; a file too large to keep is only
    removed."""
    if stat.S_ISLNK(old.st_mode):
        target = os.readlink("", dir_fd=fd)
        return lambda folder: os.symlink(target, name, dir_fd=folder)
    if stat.S_ISDIR(old.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(old.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    readable = os.open(by_fd(fd), os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = files.read_fd(readable, _REPLACED_LIMIT, path)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return lambda folder: os.unlink(name, dir_fd=folder)
    finally:
        os.close(readable)

    def restore(folder: int) -> None:
        owner = old.st_uid, old.st_gid
        temporary = files.create_aside(folder, name, data, stat.S_IMODE(old.st_mode), owner=owner)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)

    return restore


def by_fd(fd: int) -> str:
    """A path of an open descriptor, for calls that do not accept a descriptor opened with O_PATH."""
    return f"/proc/self/fd/{fd}"
