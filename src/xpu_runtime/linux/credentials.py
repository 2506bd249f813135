"""Making files as another user: in a user namespace a container's root is another user of the host.

A file that the host's root makes in such a container's root folder has an owner that the container does not
know, and on a file system that is mounted in the user namespace the host's root cannot make files at all
(EOVERFLOW). Changing the owner afterwards is a race, as the name may lead to another file by then. With
setfsuid(2) each file has the right owner from the start. Knows no container: the ids are the caller's.
"""

from __future__ import annotations

from xpu_runtime.linux import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class MakingFilesAs:
    """A context in which this thread makes files as user `uid` and group `gid`, and keeps root's rights."""

    def __init__(self, uid: int, gid: int) -> None:
        self._ids = uid, gid

    def __enter__(self) -> None:
        self._become(*self._ids)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._become(0, 0)

    def _become(self, uid: int, gid: int) -> None:
        if self._ids == (0, 0):
            return
        capabilities = syscalls.capget()
        syscalls.setfsgid(gid)
        syscalls.setfsuid(uid)  # drops the capabilities over files of other users
        syscalls.capset(capabilities)
