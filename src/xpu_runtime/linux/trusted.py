"""Paths at which nobody but root, or the caller, can have put what is there.

A path is walked component by component, links too, and each folder on the way is looked at before anything
in it is: where others can write into none of them, nobody can make the path lead elsewhere afterwards. A file
system that is mounted read-only counts as fixed. Opens and lists nothing.
"""

from __future__ import annotations

import errno
import os
import stat

from xpu_runtime.linux import mountinfo

_MOST_LINKS = 40
#: Where a look can take for ever: a server that is away, a program that does not answer.
_MAY_HANG = ("nfs", "cifs", "smb", "fuse", "autofs", "ceph", "lustre", "afs")


class UntrustedError(Exception):
    """Somebody else can write to the path; says where."""


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
            raise UntrustedError(f"{host} can be written by others than root")
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(host)
        if target.startswith("/"):
            there = []
        rest = [*_words(target), *rest]
    return "/" + "/".join(there)


def may_hang(path: str) -> bool:
    """Whether `path` lies on a file system of others' making: to look there can take for ever."""
    points = [entry.point for kind in _MAY_HANG for entry in mountinfo.read(kind) if entry.point != "/"]
    return any(path == point or path.startswith(f"{point}/") for point in points)


def _words(path: str) -> list[str]:
    return [word for word in path.split("/") if word not in ("", ".")]


def _judge(host: str, *, leaf: bool) -> None:
    status = os.stat(host, follow_symlinks=False)
    # In the group root nobody else is.
    others = status.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if status.st_gid else 0))
    # In a folder with the sticky bit (/tmp) others can add files, and cannot replace what is root's.
    if status.st_mode & stat.S_ISVTX and not leaf:
        others = 0
    if (others or status.st_uid not in (0, os.geteuid())) and not _is_fixed(host):
        raise UntrustedError(f"{host} can be written by others than root")


def _is_fixed(host: str) -> bool:
    return bool(os.statvfs(host).f_flag & os.ST_RDONLY)
