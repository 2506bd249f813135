"""The common part of both targets of a plan: links and the loader's cache, made in the container's root
folder.

A target is the container (container.py) or its spec (spec.py). Both carry a plan out here; if a step fails,
the changes in the root folder are undone. This module knows no grants and no backends.
"""

from __future__ import annotations

import errno
import os
import stat

from xpu_runtime.delivery.operations import Target
from xpu_runtime.errors import ApplyError
from xpu_runtime.linux import files, ldcache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from xpu_runtime.delivery.operations import Operation
    from xpu_runtime.linux.rootfs import Root

_CACHE = "/etc/ld.so.cache"
#: The size and the entries of an image's cache, which is read and sorted before its container starts. A
#: desktop with everything has 6,000 entries in 500 KiB. A larger cache is refused, as no honest image has
#: one: without its entries programs would fail and show no reason.
_MAX_CACHE = 2 << 20
_MAX_ENTRIES = 16384
#: Why a new cache cannot take the old one's place: it is in a volume, is one, or is on a read-only mount.
_NOT_OURS_TO_WRITE = (errno.EXDEV, errno.EBUSY, errno.EROFS)


class InRoot(Target):
    """A target with the container's root folder at hand."""

    def __init__(self, root: Root) -> None:
        self.root = root

    def cover(self, path: str, data: bytes) -> None:
        """Mounts a file with `data` at `path`, read-only."""
        raise NotImplementedError

    def link(self, path: str, target: str) -> None:
        # EEXIST means that the image has something other than a link there.
        if not self.root.symlink(target, path):
            there = self.root.stat(path, follow_symlinks=False)
            if not stat.S_ISLNK(there.st_mode):
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def linker_cache(self, entries: tuple[ldcache.Entry, ...], *, needed: bool) -> None:
        """Other entries of the image's cache stay.

        Written as a file, not mounted: a package manager in the container must be able to run ldconfig,
        which renames a new cache over this one. Only where the cache is not ours to write (/etc is a volume
        or read-only) the new one is mounted over it, and an ldconfig in the container fails: the cache might
        name another libcuda, which the loader would take first. Where there is no cache to cover, loaders
        look into their own folders.
        """
        # Ours replace those of the same name: a stub or another driver's library must not be found first.
        data = ldcache.build(ldcache.merge(_image_cache(self.root), entries))
        try:
            self.root.write_file(_CACHE, data, 0o644)
        except OSError as error:
            if error.errno not in _NOT_OURS_TO_WRITE:
                raise
            if self.root.exists(_CACHE):
                self.cover(_CACHE, data)
            elif needed:
                raise


def carry_out(operations: Iterable[Operation], target: InRoot) -> None:
    """Carries the operations out, in their order. If one fails, it raises ApplyError and undoes the changes
    in the target's root folder."""
    try:
        for operation in operations:
            try:
                operation.apply(target)
            except OSError as error:
                raise _failure(target.root, operation, error) from error
    except BaseException:
        target.root.undo()
        raise


def _failure(root: Root, operation: Operation, error: OSError) -> ApplyError:
    """The error of a step that failed, for people."""
    reason = error.strerror or str(error)
    todo = ""
    if error.errno == errno.EROFS:
        todo = _what_is_read_only(root, error)
    elif error.errno == errno.EXDEV:
        todo = "mount the volume elsewhere, or change the link in the image"
    elif error.errno == errno.ENOSYS:
        todo = "this needs Linux 5.6 or newer"
    elif error.errno == errno.ENOSPC:
        todo = "the disk is full"
    elif error.errno == errno.EFBIG:  # no other file is read whole
        todo = "remove the image's own, or run ldconfig in the image"
    elif error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.EINVAL):
        todo = "the image has something else at that place"
    return ApplyError(f"cannot {operation.describe()}: {reason}", todo)


def _what_is_read_only(root: Root, error: OSError) -> str:
    try:
        place = root.mountpoint_of(str(error.filename or "/"))
    except OSError:
        place = "/"
    if place == "/":
        return "the image's root is on a read-only file system, where no mountpoint can be made"
    return f"the mount at {place} is read-only, and no mountpoint can be made there"


def _image_cache(root: Root) -> list[ldcache.Entry]:
    """The entries of the image's cache, none where its loader has none; OSError EFBIG where it is huge."""
    try:
        fd = root.open(_CACHE)
    except OSError:
        return []
    try:
        if not ldcache.has_magic(os.pread(fd, ldcache.MAGIC_SIZE, 0)):
            return []
        return ldcache.parse(files.read_fd(fd, _MAX_CACHE, _CACHE), _MAX_ENTRIES)
    except ldcache.TooLarge as error:
        raise OSError(errno.EFBIG, str(error), _CACHE) from None
    except ValueError:
        return []  # its loader cannot use it either
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise OSError(errno.EFBIG, f"the image's has more than {_MAX_CACHE >> 20} MiB", _CACHE) from None
        return []
    finally:
        os.close(fd)


def open_root(path: str, host_devices: frozenset[str] | None = None) -> Root:
    """The container's root folder, as Root's arguments say; ApplyError if there is none."""
    from xpu_runtime.linux.rootfs import Root  # most starts in spec mode open none

    try:
        return Root(path, host_devices)
    except OSError as error:
        raise ApplyError(
            f"cannot open the container's root {path}: {os.strerror(error.errno or 0)}"
        ) from error
