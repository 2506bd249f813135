"""Making files for somebody else: a container's root user is another user of the host in a user namespace.

What root makes in such a container's root folder would belong to nobody whom the container knows, and
on a file system that is mounted in the user namespace root cannot make anything (EOVERFLOW). Setting
the owner afterwards would have to name a file again that may be exchanged by then. With setfsuid(2)
each file belongs to the right user from its first instant.
"""

from __future__ import annotations

from xpu_runtime.linux import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class MakingFilesAs:
    """While it is entered this thread makes files as user `uid` and group `gid`, with root's rights."""

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
        syscalls.setfsuid(uid)  # takes the rights over others' files away
        syscalls.capset(capabilities)
