"""What the ledger is made anew from: the grant of each running container, written on its cgroup as well.

The ledger is a file, which can be removed or emptied while containers run; then their memory would be
granted twice. So the hook writes the grant into an extended attribute `trusted.xpu.NUMBER` of the
container's own cgroup folder (v2, or v1's devices hierarchy). It ends with the cgroup, needs no cleaning up,
lies in no folder of ours, and only CAP_SYS_ADMIN of the host's user namespace can write it (xattr(7)). One
write takes some 20 µs, reading them all some 10 µs a cgroup, once for each ledger that is made.
"""

from __future__ import annotations

import errno
import os

from xpu_runtime import jsonlite
from xpu_runtime.ledger.grants import Grant, Slice
from xpu_runtime.ledger.waiting import LedgerError
from xpu_runtime.linux import cgroups, proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_PREFIX = "trusted.xpu."
_FORMAT = 1
#: The host's PID namespace (PROC_PID_INIT_INO in the kernel's proc_ns.h), which does not end.
_HOST = 0xEFFFFFFC
_TEXT, _NUMBER, _TEXT_OR_NONE = (str,), (int,), (str, type(None))
#: The types of a record's fields, as Grant and Slice have them.
_GRANT = (_NUMBER, _TEXT, _TEXT, _NUMBER, _NUMBER, _TEXT, _TEXT, _TEXT, (float,))
_SLICE = (_TEXT, _TEXT, _NUMBER, (bool,), (int, type(None)), *4 * (_TEXT_OR_NONE,))
_GONE = (errno.ENOENT, errno.ENODEV, errno.ENODATA)


def keep(grant: Grant, ledger: str) -> None:
    """Writes a grant of the ledger at that path on the cgroup of its process; nothing where the container has
    no cgroup of its own."""
    folder = _folder(grant)
    if folder is None:
        return
    record = [_FORMAT, *_home(ledger), proc.pid_namespace(), _plain(grant)]
    try:
        os.setxattr(folder, _PREFIX + str(grant.id), jsonlite.dumps(record).encode("ascii"))
    except OSError:
        pass


def forget(grant: Grant) -> None:
    """Takes the grant off its cgroup; no error where it is not there."""
    folder = _folder(grant)
    if folder is not None:
        try:
            os.removexattr(folder, _PREFIX + str(grant.id))
        except OSError:
            pass


def _home(ledger: str) -> tuple[str, int]:
    """The ledger's folder and the device of its file system."""
    folder = os.path.realpath(os.path.dirname(ledger))
    return folder, os.stat(folder).st_dev


def _folder(grant: Grant) -> str | None:
    """Where the grant is written: the folder of its limit, or that of its process."""
    if grant.cgroup:
        return grant.cgroup
    try:
        folder = cgroups.devices_folder_v1(grant.pid)
        return None if folder == cgroups.devices_folder_v1(os.getpid()) else folder
    except ProcessLookupError:
        return None


def running(ledger: str, pid_namespace: int) -> list[Grant]:
    """The grants from the ledger at that path of all containers that run; LedgerError where they have been
    given out from another PID namespace."""
    home, home_device = _home(ledger)
    found = {}
    for folder, number in _written():
        try:
            record = jsonlite.loads(os.getxattr(folder, number).decode("ascii"))
            kind, where, device, namespace, plain = record
            grant = _grant(plain) if (kind, where) == (_FORMAT, home) else None
        except OSError as error:
            if error.errno not in _GONE:
                raise
            continue
        except (ValueError, TypeError, SystemError):
            continue  # not written by us
        if grant is None:
            continue
        if namespace == pid_namespace:
            if proc.is_alive(grant.pid, grant.start_time) or cgroups.has_processes(folder):
                found[grant.id] = grant
        elif device == home_device and cgroups.has_processes(folder):
            # The same name elsewhere, as in a container with an engine of its own, is another folder.
            raise foreign(f"container {grant.container_id} has a slice", namespace, pid_namespace)
    return sorted(found.values(), key=lambda grant: grant.id)


def _written() -> Iterator[tuple[str, str]]:
    """Each cgroup folder with the name of each attribute of ours on it."""
    for each in cgroups.mounted():
        if each.version == 2 or "devices" in each.controllers:
            for folder, _, _ in os.walk(each.mountpoint, onerror=_unless_gone):
                try:
                    names = os.listxattr(folder)
                except OSError as error:
                    if error.errno not in (*_GONE, errno.ENOTSUP):
                        raise
                    continue
                for name in names:
                    if name.startswith(_PREFIX):
                        yield folder, name


def _unless_gone(error: OSError) -> None:
    """A folder that cannot be listed may hold containers: os.walk alone would step over it."""
    if error.errno not in _GONE:
        raise error


def foreign(what: str, theirs: int, ours: int, ledger: str = "") -> LedgerError:
    """The error of who is in another PID namespace than the containers; `ledger`: its path if it says so."""
    todo = "do this on the host itself; in a pod, with hostPID: true"
    if theirs != _HOST:
        todo = "do this where they were started"
        if ledger:
            # Else an engine in a container, whose /run outlives a restart of that, could start nothing again.
            todo += f"; if that has ended, and they with it, remove {ledger}: it is made anew"
    return LedgerError(
        f"{what} of another PID namespace (pid:[{theirs}], here is pid:[{ours}]): which of its containers "
        "still run cannot be told from here",
        todo,
    )


def _plain(grant: Grant) -> list[Any]:
    *fields, _ = grant.as_dict().values()
    return [*fields, [part.row() for part in grant.slices]]


def _grant(plain: list[Any]) -> Grant:
    """ValueError or TypeError for what is no grant.

    A container with CAP_SYS_ADMIN can write anything there, which must not stop the node's other containers.
    """
    *fields, slices = plain
    parts = tuple(Slice.of_row(_typed(each, _SLICE)) for each in slices)
    return Grant(**dict(zip(Grant._fields, [*_typed(fields, _GRANT), parts], strict=True)))


def _typed(values: list[Any], types: tuple[tuple[type, ...], ...]) -> list[Any]:
    for value, allowed in zip(values, types, strict=True):
        if type(value) not in allowed:
            raise TypeError(f"{value!r} is none of {allowed}")
        if type(value) is int and not 0 <= value < 1 << 63:  # what SQLite holds
            raise ValueError(f"{value} is out of range")
    return values
