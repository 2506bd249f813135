"""Which mounts below a container's root folder are the container's own, and which are somebody else's.

A volume is a folder of the host, and what is made in it stays there when the container is gone. A link of
the image (`/etc -> /host/etc`) leads into one as well as a path does. So the descriptor of a folder is
asked for its mount before anything is made in it. Where a mount is shared (`-v A:B:rshared`), what is
mounted on it appears on the host too, so that nothing is mounted there.
"""

from __future__ import annotations

import errno
import os

from xpu_runtime.linux import mountinfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.linux.mountinfo import MountEntry

# Where a file is a handle of the kernel's. A link into them could have us make a cgroup, or mount over what
# the low-level runtime writes an LSM label to (runc's CVE-2019-19921).
_KERNEL_FILE_SYSTEMS = (
    *("proc", "sysfs", "cgroup", "cgroup2", "securityfs", "selinuxfs", "debugfs", "tracefs"),
    *("bpf", "configfs", "pstore", "efivarfs", "fusectl", "binfmt_misc"),
)
#: File systems that keep nothing once they are unmounted.
_ENDS_WITH_ITS_MOUNT = ("tmpfs", "ramfs")


class RootMounts:
    """The mounts that lie below the folder `root` (a descriptor), as they are seen from this mount namespace.

    `host_devices` are the file systems (MountEntry.device) that the host has mounted: a tmpfs that is none
    of them was mounted by the low-level runtime for this container and ends with it, so it is the container's
    own, and so is the mount that the root folder itself lies on. Without them only the latter is.
    """

    def __init__(self, root: int, host_devices: frozenset[str] | None) -> None:
        self._folder = root
        self._root = mountinfo.id_of(root)
        self._host_devices = host_devices
        self._known: dict[int, MountEntry] = {}
        self._attached: set[int] = set()

    def attached(self, fd: int) -> None:
        """The mount of `fd` has been attached by us."""
        self._attached.add(mountinfo.id_of(fd))

    def of(self, fd: int) -> MountEntry:
        """The mount that `fd` lies on; OSError if it has left the mount namespace."""
        return self._entry(mountinfo.id_of(fd))

    def is_own(self, fd: int) -> bool:
        """Whether what is made where `fd` lies is the container's: neither the host's nor anybody else's."""
        number = mountinfo.id_of(fd)
        if number == self._root or number in self._attached:
            return True
        if self._host_devices is None:
            return False
        # The runtime mounts whatever the spec names: a disk or an overlay outlives the container.
        entry = self._entry(number)
        return entry.kind in _ENDS_WITH_ITS_MOUNT and entry.device not in self._host_devices

    def place(self, fd: int) -> str:
        """Where the mount that `fd` lies on is attached, as a path in the container."""
        top = os.readlink(f"/proc/self/fd/{self._folder}").rstrip("/")
        point = self.of(fd).point
        return point[len(top) :] if point.startswith(f"{top}/") else "/"

    def refuse_to_make(self, folder: int) -> None:
        """OSError (EXDEV, ELOOP) if nothing is to be made in the folder."""
        self.refuse_kernel_files(folder)
        if not self.is_own(folder):
            raise OSError(
                errno.EXDEV,
                f"it lies on the volume at {self.place(folder)}, and nothing is written into a volume",
            )

    def refuse_to_mount(self, target: int) -> None:
        """OSError (EXDEV, ELOOP) if nothing is to be mounted on the file or folder."""
        self.refuse_kernel_files(target)
        if self.of(target).shared:
            raise OSError(
                errno.EXDEV,
                f"it lies on the shared mount at {self.place(target)}, and what is mounted there would "
                "appear on the host too",
            )

    def refuse_kernel_files(self, fd: int) -> None:
        """OSError (ELOOP) if `fd` lies on a file system of the kernel's own handles."""
        if self.of(fd).kind in _KERNEL_FILE_SYSTEMS:
            raise OSError(errno.ELOOP, "it leads into a file system of the kernel, such as /proc")

    def _entry(self, number: int) -> MountEntry:
        if number not in self._known:
            self._known = mountinfo.read()
        try:
            return self._known[number]
        except KeyError:
            raise OSError(errno.ELOOP, "it lies on a mount that is gone") from None
