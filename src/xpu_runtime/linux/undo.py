"""Undoing changes in folders that a hostile process may change at the same time.

Each change holds its folder and the file that was made by descriptor. If the name leads to another file by
the time of the undo, that file is left alone. `Changes` keeps them in order.
"""

from __future__ import annotations

import errno
import os
import stat

from xpu_runtime.linux import files, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The largest file whose content is kept in memory while its replacement may still be undone.
_REPLACED_LIMIT = 16 << 20
_ITSELF = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC  # the name in a folder itself, even if it is a link


class Made:
    """A file made under a name; the open descriptor keeps its inode number from being reused."""

    def __init__(self, folder: int, name: str, made: int, replaced: Replaced | None) -> None:
        self.folder = os.dup(folder)
        self.name = name
        self._made = os.dup(made)
        self.replaced = replaced

    def is_it(self, there: os.stat_result) -> bool:
        return os.path.samestat(os.fstat(self._made), there)

    def became(self, made: int) -> None:
        """Records that we have replaced the file by `made`, which an undo must remove from now on."""
        os.dup2(made, self._made, inheritable=False)

    def undo(self) -> None:
        if self.is_it(os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)):
            take_away(self.folder, self.name, self.replaced)

    def identity(self) -> tuple[int, int]:
        return identity(os.fstat(self._made))

    def close(self) -> None:
        os.close(self.folder)
        os.close(self._made)


def identity(there: os.stat_result) -> tuple[int, int]:
    """The identity of a made file once no descriptor holds it any more: the inode's number, which a later
    file may get (ext4 gives it to the next), and the time of the content's last change, in nanoseconds. The
    time is 0 for a folder, which changes with each file in it and is removed only if it is empty."""
    return there.st_ino, 0 if stat.S_ISDIR(there.st_mode) else there.st_mtime_ns


def take_away(folder: int, name: str, replaced: Replaced | None) -> None:
    """Removes the made file, and puts back the one that it replaced."""
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.rmdir(name, dir_fd=folder)
        return
    os.unlink(name, dir_fd=folder)
    if replaced is not None:
        replaced.restore(folder)


class Mounted:
    """A mount made in the root."""

    def __init__(self, mount: int) -> None:
        self._mount = os.dup(mount)

    def undo(self) -> None:
        syscalls.umount2(by_fd(self._mount), syscalls.MNT_DETACH)

    def close(self) -> None:
        os.close(self._mount)


class Replaced:
    """A replaced file or link; a file without `data` was too large to be kept."""

    def __init__(self, name: str, target: str | None, data: bytes | None, old: tuple[int, int, int]) -> None:
        self.name = name
        self.target = target
        self.data = data
        #: Its permissions and its owner.
        self.old = old

    def restore(self, folder: int) -> None:
        """Puts it back under its name, which is free."""
        if self.target is not None:
            os.symlink(self.target, self.name, dir_fd=folder)
        elif self.data is not None:
            mode, *owner = self.old
            temporary = files.create_aside(folder, self.name, self.data, mode, owner=(owner[0], owner[1]))
            os.rename(temporary, self.name, src_dir_fd=folder, dst_dir_fd=folder)


class Changes:
    """The changes below one root folder, in order."""

    def __init__(self) -> None:
        self._all: list[Made | Mounted] = []

    def made_at(self, folder: int, name: str, made: int) -> None:
        """Remembers a file that was made under a free name; both descriptors stay the caller's."""
        self._all.append(Made(folder, name, made, None))

    def attached(self, mount: int) -> None:
        """Remembers a mount; the descriptor stays the caller's."""
        self._all.append(Mounted(mount))

    def rename(self, folder: int, temporary: str, name: str, path: str) -> None:
        """Renames a file of ours to `name`, and remembers the replaced file; `path` is for the OSErrors."""
        earlier, old = self._replaced(folder, name, path)
        made = os.open(temporary, _ITSELF, dir_fd=folder)
        try:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            if earlier is not None:
                earlier.became(made)
            else:
                self._all.append(Made(folder, name, made, old))
        finally:
            os.close(made)

    def _replaced(self, folder: int, name: str, path: str) -> tuple[Made | None, Replaced | None]:
        """Our earlier change of that name, or the present file; both None if there is none."""
        try:
            fd = os.open(name, _ITSELF, dir_fd=folder)
        except FileNotFoundError:
            return None, None
        try:
            there = os.fstat(fd)
            for change in self._all:
                if isinstance(change, Made) and change.is_it(there):
                    return change, None
            return None, _kept(fd, there, name, path)
        finally:
            os.close(fd)

    def made(self, root: int) -> list[Any]:
        """The files made on the root folder's own mount, as JSON's values for Root.unmake."""
        own = syscalls.mount_id(root)
        top = os.readlink(by_fd(root)).rstrip("/")
        return [
            [
                os.readlink(by_fd(each.folder)).removeprefix(top) or "/",
                each.name,
                *each.identity(),
                None
                if (old := each.replaced) is None
                else [old.target, None if old.data is None else old.data.hex(), old.old],
            ]
            for each in self._all
            if isinstance(each, Made) and syscalls.mount_id(each.folder) == own
        ]

    def undo(self) -> None:
        """Takes all back, the last first; a change that cannot be undone stays."""
        while self._all:
            change = self._all.pop()
            try:
                change.undo()
            except OSError:
                pass
            change.close()

    def close(self) -> None:
        """Closes the descriptors; nothing can be undone any more."""
        while self._all:
            self._all.pop().close()


def _kept(fd: int, old: os.stat_result, name: str, path: str) -> Replaced:
    """The file or link of `fd`, kept; OSError for anything else."""
    permissions = stat.S_IMODE(old.st_mode), old.st_uid, old.st_gid
    if stat.S_ISLNK(old.st_mode):
        return Replaced(name, os.readlink("", dir_fd=fd), None, permissions)
    if stat.S_ISDIR(old.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(old.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    readable = os.open(by_fd(fd), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return Replaced(name, None, files.read_fd(readable, _REPLACED_LIMIT, path), permissions)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return Replaced(name, None, None, permissions)
    finally:
        os.close(readable)


def is_so(folder: int, name: str, data: bytes, mode: int) -> bool:
    """Whether `name` is a file of ours with exactly this content and no other name: it need not be
    replaced."""
    try:
        fd = os.open(name, _ITSELF, dir_fd=folder)
    except OSError:
        return False
    try:
        there = os.fstat(fd)
        same = (stat.S_IFREG | mode, len(data), os.geteuid(), 1)
        return (there.st_mode, there.st_size, there.st_uid, there.st_nlink) == same and (
            files.read(by_fd(fd), len(data)) == data
        )
    except OSError:
        return False
    finally:
        os.close(fd)


def by_fd(fd: int) -> str:
    """A path of an open descriptor, for calls that do not accept a descriptor opened with O_PATH."""
    return f"/proc/self/fd/{fd}"
