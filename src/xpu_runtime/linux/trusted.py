"""Paths whose files only root, or the caller, can have put there.

A path is walked component by component, links too, and each folder is checked before its content: if others
can write into none of them, nobody can make the path lead elsewhere afterwards. A read-only image counts as
fixed, regardless of its files' owners. Opens and lists nothing.
"""

from __future__ import annotations

import errno
import os
import stat

from xpu_runtime.linux import mountinfo, syscalls

_MOST_LINKS = 40
#: File systems that are made as a whole and never written. On another one a read-only mount proves nothing:
#: it may be mounted for writing elsewhere.
_IMAGES = ("squashfs", "erofs", "iso9660", "cramfs", "romfs")
#: Where a look can take for ever: a server that is away, a program that does not answer.
_MAY_HANG = ("nfs", "cifs", "smb", "fuse", "autofs", "ceph", "lustre", "afs")


class UntrustedError(Exception):
    """Somebody else can write to the path; the message says where."""


def real(path: str, root: str = "/") -> str:
    """Where `path`, which like the links on it is below the folder `root`, really is: a path below `root`.

    UntrustedError; OSError where there is nothing.
    """
    top = "" if root == "/" else root.rstrip("/")
    if top:
        real(top)
    rest, links = _words(path), 0
    there: list[str] = []
    _judge(top or "/", leaf=not rest)
    while rest:
        name = rest.pop(0)
        if name == "..":
            del there[-1:]
            continue
        host = "/".join([top, *there, name])
        status = os.lstat(host)
        if not stat.S_ISLNK(status.st_mode):
            _judge(host, leaf=not rest)
            there.append(name)
            continue
        if status.st_uid not in (0, os.geteuid()) and not _is_fixed(os.path.dirname(host)):
            raise UntrustedError(f"users other than root can write to {host}")
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(host)
        if target.startswith("/"):
            there = []
        rest = [*_words(target), *rest]
    return "/" + "/".join(there)


def may_hang(path: str) -> bool:
    """Whether `path` lies on a network or FUSE file system, where a look can hang."""
    path = "/" + "/".join(_words(path))
    points = [
        each.point for each in mountinfo.read() if each.kind.startswith(_MAY_HANG) and each.point != "/"
    ]
    return any(path == point or path.startswith(f"{point}/") for point in points)


def _words(path: str) -> list[str]:
    return [word for word in path.split("/") if word not in ("", ".")]


def _judge(host: str, *, leaf: bool) -> None:
    status = os.stat(host, follow_symlinks=False)
    # The group root has no other members; but with an ACL these bits are the most that its entries may allow.
    alone = status.st_gid == 0 and not _has_acl(host)
    others = status.st_mode & (stat.S_IWOTH | (0 if alone else stat.S_IWGRP))
    # In a folder with the sticky bit (/tmp) others can add files, and cannot replace root's.
    if status.st_mode & stat.S_ISVTX and not leaf:
        others = 0
    if (others or status.st_uid not in (0, os.geteuid())) and not _is_fixed(host):
        raise UntrustedError(f"users other than root can write to {host}")


def _has_acl(host: str) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(host, follow_symlinks=False)
    except OSError as error:
        return error.errno != errno.EOPNOTSUPP  # the file system has none


def _is_fixed(host: str) -> bool:
    fd = os.open(host, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        entry = mountinfo.Table().get(syscalls.mount_id(fd))
    except OSError:
        return False
    finally:
        os.close(fd)
    return entry is not None and entry.kind in _IMAGES
