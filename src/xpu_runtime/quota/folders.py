"""The folder that each grant of the `library` backend has on the host: its quota page and its usage page.

A tmpfs of its own, so that a container which makes its usage page larger fills nothing but that. Its
end is on the path of every container's end: nothing heavy is imported here.
"""

from __future__ import annotations

import os

from xpu_runtime import paths
from xpu_runtime.errors import ApplyError
from xpu_runtime.linux import syscalls
from xpu_runtime.quota import pages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.ledger.grants import Grant

_TOP = "slices"
_KIND = "tmpfs"
#: Beside the pages: the rest of their last blocks, and the root folder.
_SLACK = 64 << 10
_INODES = 6


def of(grant: Grant) -> str:
    """The grant's folder on the host. No other grant ever had it, nor one of a ledger that was removed."""
    return paths.in_run_dir(_TOP, f"{grant.id}-{int(grant.created * 1000)}")


def create(grant: Grant) -> None:
    """Makes the grant's pages, unless they are there; ApplyError, and nothing is left, if that fails."""
    place = of(grant)
    if os.path.exists(os.path.join(place, pages.QUOTA)):  # made last
        return
    remove(place)
    from xpu_runtime.quota import library

    # A limit that something else holds may change there without our knowing.
    entries = tuple(
        pages.Entry(part.device_uuid, part.memory_bytes if part.held_by(library.NAME) else None)
        for part in grant.slices
    )
    size = pages.usage_size(len(entries)) + _SLACK
    try:
        # Nobody else on the host may write a container's usage page, which its own users may.
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        os.mkdir(place, mode=0o755)
        options = f"size={size},nr_inodes={_INODES},mode=0755"
        syscalls.mount(
            "xpu", place, _KIND, syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC, options
        )
        pages.create(place, grant.container_id, entries)
    except (OSError, ValueError) as error:
        remove(place)
        reason = getattr(error, "strerror", None) or str(error)
        raise ApplyError(f"cannot make the quota page in {place}: {reason}") from error


def remove(place: str) -> None:
    """Removes a grant's folder; no error if it is not there. The container's own mounts of it stay."""
    try:
        while True:  # one that was mounted over another by a call that was killed
            syscalls.umount2(place, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
    except OSError:
        pass
    try:
        os.rmdir(place)
    except OSError:
        pass


def left() -> list[str]:
    """Every grant's folder that is there."""
    top = paths.in_run_dir(_TOP)
    try:
        return [os.path.join(top, name) for name in os.listdir(top)]
    except OSError:
        return []
