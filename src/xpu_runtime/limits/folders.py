"""The folder of a grant on the host, for backends' files such as pages of memory.

A tmpfs of its own: a container that enlarges a file in it fills only that tmpfs. It belongs to the grant and
goes with it, also after a start was killed. Removing it is on the path of every container's end: this module
imports nothing heavy, and knows no backend.
"""

from __future__ import annotations

import os

from xpu_runtime import paths
from xpu_runtime.errors import ApplyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.ledger.grants import Grant

_KIND = "tmpfs"
#: Added to backends' sizes: the rest of the files' last blocks, the root folder, marks.
_SLACK = 60 << 10
_INODES = 16
_COMPLETE = "complete"


def of(grant: Grant) -> str:
    """The grant's folder on the host, which no other grant ever had.

    A grant that is not booked (number 0, `xpu explain`) has none, and is told as `GRANT`.
    """
    if not grant.id:
        return paths.in_run_dir(paths.GRANT_FOLDERS, "GRANT")
    return paths.in_run_dir(paths.GRANT_FOLDERS, grant.name)


def create(grant: Grant, size: int) -> None:
    """Makes the folder, empty and of `size` bytes; ApplyError, and nothing is left, if that fails."""
    place = of(grant)
    remove(place)
    from xpu_runtime.linux import syscalls

    try:
        # A file there can be writable for every user of the container: other users of the host must not reach
        # it.
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        os.mkdir(place, mode=0o755)
        options = f"size={size + _SLACK},nr_inodes={_INODES},mode=0755"
        syscalls.mount(
            "xpu", place, _KIND, syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC, options
        )
    except OSError as error:
        remove(place)
        raise ApplyError(f"cannot make the folder {place}: {error.strerror}") from error


def is_complete(place: str) -> bool:
    """Whether a grant's folder has all its files."""
    return os.path.exists(os.path.join(place, _COMPLETE))


def complete(grant: Grant) -> None:
    """Says that all is there; ApplyError."""
    try:
        os.close(os.open(os.path.join(of(grant), _COMPLETE), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ApplyError(f"cannot write to the folder {of(grant)}: {error.strerror}") from error


def unmount(place: str) -> None:
    """Unmounts `place`; no error if nothing is mounted there."""
    from xpu_runtime.linux import syscalls

    try:
        while True:  # a call that was killed can have left a mount below another
            syscalls.umount2(place, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
    except OSError:
        pass


def remove(place: str) -> None:
    """Removes a grant's folder; no error if it is not there. The container's own mounts of it stay."""
    unmount(place)
    try:
        os.rmdir(place)
    except OSError:
        pass


def left() -> list[str]:
    """Every grant's folder that is there."""
    top = paths.in_run_dir(paths.GRANT_FOLDERS)
    try:
        return [os.path.join(top, name) for name in os.listdir(top)]
    except OSError:
        return []
