"""A container's root folder, whose content may be hostile, as one object that holds it by descriptor.

Every path is resolved by openat2(2) with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS, so that no link and no
`..` leads out of it, and is used by the resulting descriptor, so that nothing can change between check and
use. Only regular files are opened for reading: opening a FIFO would block, and opening a device node may have
effects. A Root remembers what it makes, and `undo` removes exactly that. It makes files only on the
container's own mounts (rootmounts.py), with mode and owner from the start.
"""

from __future__ import annotations

import errno
import os
import stat

from xpu_runtime.linux import files, syscalls
from xpu_runtime.linux.rootmounts import RootMounts
from xpu_runtime.linux.undo import Changes, Replaced, by_fd, identity, is_so, take_away

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Self

_RESOLVE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_FOLDER = os.O_PATH | os.O_DIRECTORY
_ITSELF = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC  # the name in a folder itself, even if it is a link
# openat2(2) fails with EAGAIN if a rename on the system raced with a `..`; a repetition is likely to succeed.
_ATTEMPTS = 1000
# How many missing names and dangling links one path may have.
_MAX_MISSING = 100


class Root:
    """The folder `path` of this host as a root; OSError if it is not a folder.

    Paths are relative to the root, with or without a leading slash. OSErrors contain them.
    `host_devices` as for RootMounts.
    """

    def __init__(self, path: str, host_devices: frozenset[str] | None = None) -> None:
        self.path = path
        self.fd = os.open(path, _FOLDER | os.O_CLOEXEC)
        self._changes = Changes()
        #: Folders in which something was made, by path: most of a container's files are in two of them.
        self._folders: dict[str, int] = {}
        self.mounts = RootMounts(self.fd, host_devices)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all descriptors; the made files stay, and can no longer be undone."""
        self._changes.close()
        self._forget_folders()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def undo(self) -> None:
        """Removes the made files, in reverse order, except where another file is in the place by now. Never
        raises: a change that cannot be undone stays."""
        self._forget_folders()
        self._changes.undo()

    def made(self) -> list[Any]:
        """The files made on the root's own mount, as JSON's values for `unmake` of a later Root."""
        return self._changes.made(self.fd)

    def unmake(self, made: list[Any]) -> None:
        """Removes the files `made` by an earlier Root of the same folder, as its `undo` would have."""
        for folder, name, number, changed, old in reversed(made):
            try:
                fd = self._resolve(folder, _FOLDER)
                try:
                    there = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if self.mounts.is_own(fd) and identity(there) == (number, changed):
                        data = None if old is None or old[1] is None else bytes.fromhex(old[1])
                        take_away(fd, name, old and Replaced(name, old[0], data, tuple(old[2])))
                finally:
                    os.close(fd)
            except OSError:
                continue

    def mounted(self, mount: int) -> None:
        """Remembers a mount that was attached in the root; `mount` stays the caller's to close."""
        self._changes.attached(mount)
        self.mounts.attached(mount)
        if stat.S_ISDIR(os.fstat(mount).st_mode):
            self._forget_folders()  # one of them may be below it now

    # Reading

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor of an existing file or folder; EINVAL where it is neither and `flags` lacks O_PATH."""
        fd = self._resolve(path, os.O_PATH | flags & (os.O_DIRECTORY | os.O_NOFOLLOW))
        if flags & os.O_PATH:
            return fd
        try:
            if stat.S_IFMT(os.fstat(fd).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
                raise OSError(errno.EINVAL, "neither a regular file nor a folder", path)
            return os.open(by_fd(fd), flags & ~os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        """Whether `path` leads to a file of any kind; a dangling link does not."""
        try:
            os.close(self._resolve(path, os.O_PATH))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                return False
            raise
        return True

    def takes_files(self, folder: str) -> bool:
        """Whether files may be made below `folder`, which need not exist: whether it lies on one of the
        container's own mounts."""
        try:
            fd = self._deepest(folder, _FOLDER)
        except OSError:
            return False
        try:
            return self.mounts.is_own(fd)
        finally:
            os.close(fd)

    def mountpoint_of(self, path: str) -> str:
        """The mountpoint of the mount that `path`, or its deepest existing parent, lies on."""
        fd = self._deepest(path, os.O_PATH)
        try:
            return self.mounts.place(fd)
        finally:
            os.close(fd)

    def stat(self, path: str, follow_symlinks: bool = True) -> os.stat_result:
        fd = self._resolve(path, os.O_PATH | (0 if follow_symlinks else os.O_NOFOLLOW))
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def read(self, path: str, limit: int) -> bytes:
        """The bytes of a regular file; EFBIG where it has more than `limit`, EINVAL for another kind of
        file."""
        fd = self.open(path)
        try:
            return files.read_fd(fd, limit, path)
        finally:
            os.close(fd)

    # Making

    def make_dirs(self, path: str, mode: int = 0o755) -> int:
        """A descriptor (O_PATH) of the folder `path`, made where it is missing, with its parents.

        A dangling link is followed, and its target is made.
        """
        return self._make(path, mode, None)

    def make_file(self, path: str, mode: int = 0o644) -> int:
        """A descriptor (O_PATH) of `path`, made as an empty file where it is missing: a mountpoint.

        An existing file is left as it is; EISDIR if it is a folder.
        """
        fd = self._make_by_name(path, mode)
        if fd is None:
            fd = self._make(path, 0o755, mode)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return fd

    def symlink(self, target: str, path: str) -> bool:
        """Makes `path` a link to `target`; returns whether it did.

        A link with another target is replaced; anything else that exists stays.
        """
        folder, name = self._parent(path)
        old = _readlink(folder, name)
        if old == target or (old is None and _lstat(folder, name) is not None):
            return False
        self._refuse_to_make(folder, path)
        if old is None:
            os.symlink(target, name, dir_fd=folder)
            made = os.open(name, _ITSELF, dir_fd=folder)
            try:
                self._changes.made_at(folder, name, made)
            finally:
                os.close(made)
        else:
            temporary = files.temporary_name(name)
            os.symlink(target, temporary, dir_fd=folder)
            self._replace(folder, temporary, name, path)
        return True

    def make_node(self, path: str, mode: int, major: int, minor: int) -> bool:
        """Makes a device node; `mode` has S_IFCHR or S_IFBLK and the permissions. Returns whether it did.

        The same device under that name stays as it is; FileExistsError if something else is there.
        """
        device = os.makedev(major, minor)
        folder, name = self._parent(path)
        if (there := _lstat(folder, name)) is not None:
            if stat.S_IFMT(there.st_mode) == stat.S_IFMT(mode) and there.st_rdev == device:
                return False
            raise FileExistsError(errno.EEXIST, "something else is in the device's place", path)
        self._refuse_to_make(folder, path)
        files.without_umask(os.mknod, name, mode, device, dir_fd=folder)
        fd = os.open(name, _ITSELF, dir_fd=folder)
        try:
            made = os.fstat(fd)
            if stat.S_IFMT(made.st_mode) != stat.S_IFMT(mode) or made.st_rdev != device:
                raise OSError(errno.EAGAIN, "the new device node was exchanged", path)
            self._changes.made_at(folder, name, fd)
        finally:
            os.close(fd)
        return True

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Makes `path` a file with `data` by a rename; a link there is replaced, not followed. A file that is
        so already stays, as in a container that is started again: on ext4 a new one takes 1 ms.

        EINVAL if a FIFO, a device or a socket is there, EISDIR if it is a folder.
        """
        folder, name = self._parent(path)
        self._refuse_to_make(folder, path)
        if not is_so(folder, name, data, mode):
            self._replace(folder, files.create_aside(folder, name, data, mode), name, path)

    # Implementation

    def _resolve(self, path: str, flags: int) -> int:
        for _ in range(_ATTEMPTS):
            try:
                return syscalls.openat2(self.fd, path or ".", flags, resolve=_RESOLVE)
            except BlockingIOError:
                continue
        raise OSError(errno.EAGAIN, "its folders are being renamed all the time", path)

    def _deepest(self, path: str, flags: int) -> int:
        """A descriptor of `path`, or of its deepest existing parent."""
        while True:
            try:
                return self._resolve(path, flags)
            except FileNotFoundError:
                path = path.rstrip("/").rpartition("/")[0]

    def _parent(self, path: str) -> tuple[int, str]:
        """The folder of `path`, made where it is missing (not the caller's to close), and the last name,
        which is not resolved."""
        folder, _, name = path.rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            raise OSError(errno.EINVAL, "not the path of a file", path)
        if folder not in self._folders:
            self._folders[folder] = self.make_dirs(folder)
        return self._folders[folder], name

    def _forget_folders(self) -> None:
        for fd in self._folders.values():
            os.close(fd)
        self._folders.clear()

    def _make_by_name(self, path: str, file_mode: int) -> int | None:
        """As `_make` for a file whose last name is no link; otherwise None. It needs half as many system
        calls: a start makes a dozen files."""
        try:
            folder, name = self._parent(path)
            for missing in (True, False):
                try:
                    fd = os.open(name, _ITSELF, dir_fd=folder)
                    break
                except FileNotFoundError:
                    if not missing:
                        return None
                    self.mounts.refuse_to_make(folder)
                    self._make_one(folder, name, file_mode, 0)
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                os.close(fd)
                return None
            return self._checked(fd, path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    def _make(self, path: str, mode: int, file_mode: int | None) -> int:
        """The descriptor of `path`; missing folders are made, and the file itself if it has a mode."""
        try:
            here = self._resolve(path, _FOLDER if file_mode is None else os.O_PATH)
        except FileNotFoundError:
            return self._make_missing(path, mode, file_mode)
        return self._checked(here, path)

    def _checked(self, fd: int, path: str) -> int:
        """`fd`, unless it is a file of the kernel's: that is closed."""
        try:
            self.mounts.refuse_kernel_files(fd)
        except OSError as error:
            os.close(fd)
            raise OSError(error.errno, error.strerror, path) from None
        return fd

    def _make_missing(self, path: str, mode: int, file_mode: int | None) -> int:
        todo = names_in(path)
        done: list[str] = []
        missing = 0
        here = self._resolve("/", _FOLDER)
        try:
            while todo:
                name = todo.pop(0)
                as_file = file_mode is not None and not todo
                try:
                    there = self._resolve("/".join([*done, name]), os.O_PATH if as_file else _FOLDER)
                except FileNotFoundError:
                    missing += 1
                    if missing > _MAX_MISSING:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from None
                    target = _readlink(here, name)
                    if target is None:
                        self.mounts.refuse_to_make(here)
                        self._make_one(here, name, file_mode if as_file else None, mode)
                        todo.insert(0, name)
                        continue
                    todo[:0] = names_in(target)
                    if target.startswith("/"):
                        done = []
                    there = self._resolve("/".join(done) or "/", _FOLDER)
                else:
                    done.append(name)
                os.close(here)
                here = there
            self.mounts.refuse_kernel_files(here)
            return here
        except BaseException as error:
            os.close(here)
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, path) from None
            raise

    def _refuse_to_make(self, folder: int, path: str) -> None:
        try:
            self.mounts.refuse_to_make(folder)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    def _make_one(self, folder: int, name: str, file_mode: int | None, mode: int) -> None:
        """Makes a file or a folder; no error if another process has made it meanwhile."""
        try:
            if file_mode is None:
                files.without_umask(os.mkdir, name, mode, dir_fd=folder)
                fd = os.open(name, _FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                fd = files.without_umask(os.open, name, flags, file_mode, dir_fd=folder)
        except FileExistsError:
            return
        try:
            self._changes.made_at(folder, name, fd)
        finally:
            os.close(fd)

    def _replace(self, folder: int, temporary: str, name: str, path: str) -> None:
        """Renames `temporary` to `name`, and remembers the replaced file."""
        try:
            self._changes.rename(folder, temporary, name, path)
        except BaseException:
            try:
                os.unlink(temporary, dir_fd=folder)
            except FileNotFoundError:
                pass  # it has been renamed already
            raise


def names_in(path: str) -> list[str]:
    """The components of a path, including `..`."""
    return [name for name in path.split("/") if name not in ("", ".")]


def _readlink(folder: int, name: str) -> str | None:
    """The target of a link; None if `name` is something else or nothing."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _lstat(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
