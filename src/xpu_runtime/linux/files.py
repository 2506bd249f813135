"""Files that are never half-written: replaced by a rename, read up to a limit, locked by flock(2).

They are for our own files and those of the bundle, in folders that only root can write to. Files inside a
container's root may be hostile, and go through `rootfs.Root`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from typing_extensions import Self


#: Seconds to wait for a lock, by default.
_WAIT_S = 60.0


def write_atomic(
    path: str,
    data: bytes,
    mode: int = 0o644,
    *,
    fsync: bool = False,
    owner: tuple[int, int] | None = None,
    before: Callable[[str], None] | None = None,
) -> None:
    """Makes `path` a file with `data`, or leaves the old file: a reader sees one or the other.

    A symlink at `path` is replaced, not followed. `mode` is set regardless of the umask. With `fsync` the
    file and its name have reached the disk on return. `owner` is as in create_aside. `before` is called with
    the temporary path of the new file; if it raises, nothing is changed. OSError with `path` in it, such as
    ENOSPC.
    """
    folder, name = os.path.split(path)
    folder_fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        temporary = create_aside(folder_fd, name, data, mode, fsync, owner)
        try:
            if before is not None:
                before(os.path.join(folder, temporary))
            os.rename(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        except BaseException:
            os.unlink(temporary, dir_fd=folder_fd)
            raise
        if fsync:
            os.fsync(folder_fd)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
    finally:
        os.close(folder_fd)


def rewrite(path: str, data: bytes) -> None:
    """Replaces the content of the file at `path`, or of the target of a symlink there, in one step.

    Owner, mode and extended attributes (including ACLs and the security label) are kept as far as permitted.
    OSError EBUSY, with nothing changed, where a rename would cut off another hard link or a mount on the
    file; `overwrite` is for these.
    """
    if os.path.islink(path):
        path = os.path.realpath(path)
    there = os.stat(path)
    if there.st_nlink > 1:
        raise OSError(errno.EBUSY, "it has another hard link", path)
    mode = stat.S_IMODE(there.st_mode)
    write_atomic(path, data, mode, before=lambda copy: _copy_attributes(path, there, copy))


def _copy_attributes(path: str, there: os.stat_result, copy: str) -> None:
    mine = os.stat(copy)
    try:
        if (there.st_uid, there.st_gid) != (mine.st_uid, mine.st_gid):
            os.chown(copy, there.st_uid, there.st_gid)
            os.chmod(copy, stat.S_IMODE(there.st_mode))
        for name in os.listxattr(path):
            os.setxattr(copy, name, os.getxattr(path, name))
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENODATA):
            raise


def overwrite(path: str, data: bytes) -> None:
    """Writes `data` into the file itself. A reader meanwhile, and a kill, see only the beginning of it."""
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, 0)
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)


def temporary_name(name: str) -> str:
    """A name for a temporary file beside `name`, different for each process, thread and call."""
    return f".{name[:200]}.{os.urandom(6).hex()}"


def create_aside(
    folder_fd: int,
    name: str,
    data: bytes,
    mode: int,
    fsync: bool = False,
    owner: tuple[int, int] | None = None,
) -> str:
    """Makes a new file with `data` beside `name`, and returns its name. On an error no file is left.

    `owner` is a user id and a group id, by default the caller's.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    temporary = temporary_name(name)
    fd = os.open(temporary, flags, 0o600, dir_fd=folder_fd)
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
        os.unlink(temporary, dir_fd=folder_fd)
        raise
    finally:
        os.close(fd)
    return temporary


def read(path: str, limit: int) -> bytes:
    """The bytes of a regular file; OSError EFBIG where it has more than `limit`, EINVAL for another kind of
    file.

    A FIFO is not opened: that would let its writer go on, and closing it would kill the writer by SIGPIPE.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return read_fd(fd, limit, path)
    finally:
        os.close(fd)


def read_fd(fd: int, limit: int, path: str) -> bytes:
    """`read` for a descriptor that was opened with O_NONBLOCK; `path` is for the error only."""
    there = os.fstat(fd)
    if not stat.S_ISREG(there.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    if there.st_size > limit:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", path)
    # Files of /proc have st_size 0, and a file may grow while it is read.
    chunks = []
    left = limit + 1
    while left and (chunk := os.read(fd, min(left, 1 << 20))):
        chunks.append(chunk)
        left -= len(chunk)
    if not left:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", path)
    return b"".join(chunks)


class Lock:
    """An exclusive flock(2) on a file, which is made if it is missing; the kernel drops it when its holder
    dies.

    Each `with` opens the file again, so that threads of one process exclude each other as well. TimeoutError
    after `wait_s` seconds.
    """

    def __init__(self, path: str, wait_s: float = _WAIT_S) -> None:
        self.path = path
        self._wait_s = wait_s
        self._fd = -1

    def __enter__(self) -> Self:
        until = time.monotonic() + self._wait_s
        try:
            while not self._take(until):
                pass
        except TimeoutError:
            raise TimeoutError(
                errno.ETIMEDOUT, f"locked by another process for {self._wait_s:.0f} s", self.path
            ) from None
        return self

    def is_held(self) -> bool:
        """Whether it still excludes others: whether the locked file is the one at the path."""
        return self._fd >= 0 and _is_at(self._fd, self.path)

    def _take(self, until: float) -> bool:
        """Locks the file at the path; False if there is another file at the path by then."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        try:
            _flock(fd, until)
            if not _is_at(fd, self.path):
                os.close(fd)
                return False
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing is not enough: a child that was forked meanwhile has the descriptor as well.
        fd, self._fd = self._fd, -1
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)  # or this process would wait for itself


def _is_at(fd: int, path: str) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def _flock(fd: int, until: float) -> None:
    """flock(2), which has no time limit of its own; TimeoutError at `until`."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    left = until - time.monotonic()
    if left > 0:
        try:
            _flock_with_alarm(fd, left)
        except ValueError:  # only the main thread can set a signal handler
            _flock_by_polling(fd, until)
        return
    raise TimeoutError


def _flock_with_alarm(fd: int, seconds: float) -> None:
    # Waits in the kernel's queue, which is served in order: a process that polls may never get the lock.
    try:
        import _signal
    except ImportError:
        import signal as _signal

    waits = True

    def ring(*_: object) -> None:
        if waits:
            raise TimeoutError

    before = _signal.signal(_signal.SIGALRM, ring)
    mask = _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGALRM])
    try:
        try:
            # Repeated, as a signal just before the call would not interrupt it.
            _signal.setitimer(_signal.ITIMER_REAL, seconds, 0.2)
            fcntl.flock(fd, fcntl.LOCK_EX)
        finally:
            waits = False
            _signal.setitimer(_signal.ITIMER_REAL, 0)
    finally:
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        _signal.signal(_signal.SIGALRM, before)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def _flock_by_polling(fd: int, until: float) -> None:
    while time.monotonic() < until:
        time.sleep(0.005)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            continue
    raise TimeoutError


def without_umask(make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls `make` with umask 0. A chmod afterwards could hit a file that was put in its place."""
    old = os.umask(0)
    try:
        return make(*arguments, **options)
    finally:
        os.umask(old)
