"""Which mounts below a container's root folder are its own, and which belong to the host or to volumes.

A volume is a folder of the host, and files made in it stay there when the container is gone. A path may lead
into one through a link of the image (`/etc -> /host/etc`). So the mount of a folder is looked up by
descriptor before a file is made in it. On a shared mount (`-v A:B:rshared`) a new mount would appear on the
host too, so nothing is mounted there. Only decides; makes nothing.
"""

from __future__ import annotations

import errno
import os

from xpu_runtime.linux import mountinfo, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.linux.mountinfo import MountEntry

# File systems whose files are interfaces of the kernel. A link into one could make us create a cgroup, or
# cover the file to which the low-level runtime writes an LSM label (runc's CVE-2019-19921).
_KERNEL_FILE_SYSTEMS = (
    *("proc", "sysfs", "cgroup", "cgroup2", "securityfs", "selinuxfs", "debugfs", "tracefs"),
    *("bpf", "configfs", "pstore", "efivarfs", "fusectl", "binfmt_misc"),
)
#: File systems whose content is gone when they are unmounted.
_ENDS_WITH_ITS_MOUNT = ("tmpfs", "ramfs")


class RootMounts:
    """The mounts below the folder `root` (a descriptor), as this mount namespace shows them.

    `host_devices` are the file systems (MountEntry.device) that the host has mounted. The container's own
    mounts are the one that the root folder lies on, and each tmpfs that is not among `host_devices`: the
    low-level runtime has mounted it for this container, and it ends with it. With None only the former is its
    own.
    """

    def __init__(self, root: int, host_devices: frozenset[str] | None) -> None:
        self._folder = root
        self._root = syscalls.mount_id(root)
        self._host_devices = host_devices
        self._table: mountinfo.Table | None = None
        self._attached: set[int] = set()

    def attached(self, fd: int) -> None:
        """Records that the mount of `fd` was attached by us."""
        self._attached.add(syscalls.mount_id(fd))

    def is_own(self, fd: int) -> bool:
        """Whether the mount that `fd` lies on is the container's own."""
        return self._is_own(syscalls.mount_id(fd))

    def _is_own(self, number: int) -> bool:
        if number == self._root or number in self._attached:
            return True
        if self._host_devices is None:
            return False
        # The runtime mounts anything that the spec names, and a disk or an overlay outlives the container.
        entry = self._entry(number)
        return entry.kind in _ENDS_WITH_ITS_MOUNT and entry.device not in self._host_devices

    def place(self, fd: int) -> str:
        """The mountpoint of the mount that `fd` lies on, as a path in the container."""
        top = os.readlink(f"/proc/self/fd/{self._folder}").rstrip("/")
        point = self._entry(syscalls.mount_id(fd)).point
        return point[len(top) :] if point.startswith(f"{top}/") else "/"

    def refuse_to_make(self, folder: int) -> None:
        """OSError (EXDEV, ELOOP) if no file may be made in the folder."""
        number = syscalls.mount_id(folder)
        self._refuse_kernel_files(number)
        if not self._is_own(number):
            raise OSError(
                errno.EXDEV,
                f"it lies on the volume at {self.place(folder)}, and nothing is written into a volume",
            )

    def refuse_to_mount(self, target: int) -> None:
        """OSError (EXDEV, ELOOP) if the file or folder must not be mounted on."""
        number = syscalls.mount_id(target)
        self._refuse_kernel_files(number)
        if self._entry(number).shared:
            raise OSError(
                errno.EXDEV,
                f"it lies on the shared mount at {self.place(target)}, and what is mounted there would "
                "appear on the host too",
            )

    def refuse_kernel_files(self, fd: int) -> None:
        """OSError (ELOOP) if `fd` lies on a file system that is an interface of the kernel."""
        self._refuse_kernel_files(syscalls.mount_id(fd))

    def _refuse_kernel_files(self, number: int) -> None:
        if self._entry(number).kind in _KERNEL_FILE_SYSTEMS:
            raise OSError(errno.ELOOP, "it leads into a file system of the kernel, such as /proc")

    def _entry(self, number: int) -> MountEntry:
        """OSError (ELOOP) if the mount is no longer in the mount namespace."""
        entry = None if self._table is None else self._table.get(number)
        if entry is None:  # it is newer
            self._table = mountinfo.Table()
            entry = self._table.get(number)
        if entry is None:
            raise OSError(errno.ELOOP, "it lies on a mount that is gone")
        return entry
