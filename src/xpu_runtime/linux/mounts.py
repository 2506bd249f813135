"""Mounts into a container: copied on the host as detached mounts, attached by descriptor inside.

The intended order: `clone` the files in the host's mount namespace, `enter_mount_namespace`, open the
container's `Root` there, `attach` each clone. No path of the host is resolved after the container's namespace
is entered, and no path of the container by name. Needs Linux 5.6 (openat2(2)).
"""

from __future__ import annotations

import errno
import os
import stat

from xpu_runtime.linux import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.linux.rootfs import Root


# The flags of statvfs(3) that have the same values in mount(2) and mount_setattr(2): read-only, nosuid,
# nodev, noexec, noatime, nodiratime.
_KEPT = 1 | 2 | 4 | 8 | 1024 | 2048


def clone(path: str) -> int:
    """A descriptor of a detached copy of the file or folder `path` on this host, without submounts.

    Symlinks are followed. The mount vanishes with its descriptor unless it is attached.
    """
    flags = syscalls.OPEN_TREE_CLONE | syscalls.OPEN_TREE_CLOEXEC
    return syscalls.open_tree(syscalls.AT_FDCWD, path, flags)


def copy(mount_fd: int) -> int:
    """A descriptor of a detached copy of a clone that has been attached in this mount namespace."""
    flags = syscalls.OPEN_TREE_CLONE | syscalls.OPEN_TREE_CLOEXEC | syscalls.AT_EMPTY_PATH
    return syscalls.open_tree(mount_fd, "", flags)


def attach(
    mount_fd: int,
    root: Root,
    destination: str,
    *,
    read_only: bool = True,
    nosuid: bool = True,
    nodev: bool,
    noexec: bool = False,
) -> None:
    """Mounts a clone at `destination` in `root`, which makes a missing mountpoint, and can undo both.

    The mount gets the given attributes in addition to those of its origin, and is private.
    `mount_fd` stays the caller's to close. OSError if `destination` is a folder and the clone a file, or
    the other way round.
    """
    attributes = 0
    for wanted, attribute in (
        (read_only, syscalls.MOUNT_ATTR_RDONLY),
        (nosuid, syscalls.MOUNT_ATTR_NOSUID),
        (nodev, syscalls.MOUNT_ATTR_NODEV),
        (noexec, syscalls.MOUNT_ATTR_NOEXEC),
    ):
        if wanted:
            attributes |= attribute
    late = not _set(mount_fd, attributes)
    is_folder = stat.S_ISDIR(os.fstat(mount_fd).st_mode)
    target = root.make_dirs(destination) if is_folder else root.make_file(destination)
    try:
        if os.path.samestat(os.fstat(target), os.fstat(root.fd)):
            raise OSError(errno.EBUSY, "it leads to the container's root itself")
        root.mounts.refuse_to_mount(target)
        flags = syscalls.MOVE_MOUNT_F_EMPTY_PATH | syscalls.MOVE_MOUNT_T_EMPTY_PATH
        syscalls.move_mount(mount_fd, "", target, "", flags)
        root.mounted(mount_fd)
        if late:
            _remount(mount_fd, attributes)
    except OSError as error:
        raise OSError(error.errno, error.strerror, destination) from None
    finally:
        os.close(target)


def _set(mount_fd: int, attributes: int) -> bool:
    """Gives a detached mount its attributes; False if the kernel, before Linux 5.12, has no such call."""
    try:
        syscalls.mount_setattr(mount_fd, attr_set=attributes, propagation=syscalls.MS_PRIVATE)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return False
    return True


def _remount(mount_fd: int, attributes: int) -> None:
    """The same for an attached mount by mount(2), which replaces all attributes.

    The mount is briefly without them, but no process of the container runs yet.
    """
    kept = os.fstatvfs(mount_fd).f_flag & _KEPT
    path = f"/proc/self/fd/{mount_fd}"
    syscalls.mount("", path, "", syscalls.MS_PRIVATE)
    syscalls.mount("", path, "", syscalls.MS_REMOUNT | syscalls.MS_BIND | kept | attributes)


def enter_mount_namespace(pid: int) -> None:
    """Moves the calling thread into the mount namespace of `pid`."""
    fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(fd)
    finally:
        os.close(fd)


def enter(namespace: int) -> None:
    """The same, by a descriptor of the namespace."""
    # The kernel refuses it (EINVAL) to a thread that shares its root and current folder with others. NVML and
    # CUDA start threads in their caller.
    syscalls.unshare(syscalls.CLONE_FS)
    syscalls.setns(namespace, syscalls.CLONE_NEWNS)
