"""What both ways of carrying out a plan share: steps inside the container's root folder."""

from __future__ import annotations

import errno
import os
import stat

from xpu_runtime.errors import ApplyError
from xpu_runtime.linux import ldcache
from xpu_runtime.linux.rootfs import Root
from xpu_runtime.plan.operations import Link, LinkerCache, Operation

_CACHE = "/etc/ld.so.cache"
_MAX_CACHE = 32 << 20


def failure(operation: Operation, error: OSError) -> ApplyError:
    """What a person needs to know of a step that failed."""
    reason = error.strerror or str(error)
    todo = ""
    if error.errno == errno.EROFS:
        todo = "the image's root is on a read-only file system, where no mountpoint can be made"
    elif error.errno == errno.ENOSYS:
        todo = "hook mode needs Linux 5.12 or newer; set mode: spec in the configuration"
    elif error.errno == errno.ENOSPC:
        todo = "the disk is full"
    elif error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.EINVAL):
        todo = "the image has something else at that place"
    return ApplyError(f"cannot {operation.describe()}: {reason}", todo)


def make_link(root: Root, operation: Link) -> None:
    """Makes the link; OSError EEXIST where the image has something else there, other than a link."""
    if not root.symlink(operation.target, operation.path):
        there = root.stat(operation.path, follow_symlinks=False)
        if not stat.S_ISLNK(there.st_mode):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), operation.path)


def write_linker_cache(root: Root, operation: LinkerCache) -> None:
    """Puts our libraries into the image's loader cache; what else it names stays.

    Written as a file, not mounted: a package manager in the container must be able to run ldconfig,
    which renames a new cache over this one.
    """
    try:
        old = ldcache.parse(root.read(_CACHE, _MAX_CACHE))
    except (OSError, ValueError):
        old = []  # none, or one that the image's own loader cannot use either
    # Ours replace those of the same name: a stub or another driver's library must not be found first.
    root.write_file(_CACHE, ldcache.build(ldcache.merge(old, operation.entries)), 0o644)


def open_root(path: str) -> Root:
    """The container's root folder; ApplyError if there is none."""
    try:
        return Root(path)
    except OSError as error:
        raise ApplyError(
            f"cannot open the container's root {path}: {os.strerror(error.errno or 0)}"
        ) from error
