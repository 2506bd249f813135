"""Files that are always whole: written aside and renamed, read up to a limit, locked by flock.

For files of ours and of the bundle, in folders that only root writes to. What lies inside a
container's root goes through `rootfs.Root`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


def write_atomic(path: str, data: bytes, mode: int = 0o644, fsync: bool = False) -> None:
    """Makes `path` a file with `data`, or leaves what was there: a reader sees the one or the other.

    A symlink at `path` is replaced, not followed. `mode` is set whatever the umask is. With `fsync` the
    file and its name have reached the disk on return. OSError with `path` in it, such as ENOSPC.
    """
    folder, name = os.path.split(path)
    folder_fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        write_at(folder_fd, name, data, mode, fsync)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
    finally:
        os.close(folder_fd)


def write_at(folder_fd: int, name: str, data: bytes, mode: int, fsync: bool = False) -> None:
    """`write_atomic` for a name in a folder that is open; the folder may belong to somebody hostile."""
    aside = create_aside(folder_fd, name, data, mode, fsync)
    try:
        os.rename(aside, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    except BaseException:
        os.unlink(aside, dir_fd=folder_fd)
        raise
    if fsync:
        os.fsync(folder_fd)


def create_aside(
    folder_fd: int,
    name: str,
    data: bytes,
    mode: int,
    fsync: bool = False,
    owner: tuple[int, int] | None = None,
) -> str:
    """A new file with `data` beside `name`; returns its own name. Leaves none behind on an error.

    `owner` is a user's and a group's id, if not the caller's.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # A name that no other writer has, whether a process, a thread, or one of an earlier life.
    aside = f".{name[:200]}.{os.urandom(6).hex()}"
    fd = os.open(aside, flags, 0o600, dir_fd=folder_fd)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        if owner is not None:
            os.fchown(fd, *owner)
        os.fchmod(fd, mode)
        if fsync:
            os.fsync(fd)
    except BaseException:
        os.unlink(aside, dir_fd=folder_fd)
        raise
    finally:
        os.close(fd)
    return aside


def read(path: str, limit: int) -> bytes:
    """The bytes of a regular file; OSError EFBIG where it has more than `limit`, EINVAL if it is no file.

    A FIFO is not opened: its writer would go on, and die of SIGPIPE when it is closed again.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return read_fd(fd, limit, path)
    finally:
        os.close(fd)


def read_fd(fd: int, limit: int, path: str) -> bytes:
    """`read` for a descriptor opened with O_NONBLOCK; `path` is for the error."""
    there = os.fstat(fd)
    if not stat.S_ISREG(there.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    if there.st_size > limit:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", path)
    # What /proc holds says that it has no bytes, and a file may grow while it is read.
    parts = []
    left = limit + 1
    while left and (part := os.read(fd, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    if not left:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", path)
    return b"".join(parts)


class Lock:
    """An exclusive flock on a file that is made where it is missing; dropped when its holder dies.

    Each `with` opens the file anew, so that threads of one process exclude each other as well.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> Self:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing is not enough where a child that was forked meanwhile has the descriptor too.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)
        self._fd = -1
