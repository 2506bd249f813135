"""A second record of each running container's grant, on its cgroup, from which a lost ledger is made anew.

The ledger is a file, which can be removed or emptied while containers run; their memory would then be granted
twice. So the hook also writes the grant into an extended attribute `trusted.xpu.NUMBER` of the container's
cgroup folder (v2, or v1's devices hierarchy). It ends with the cgroup, lies in none of our folders, and can
be written only with CAP_SYS_ADMIN in the host's user namespace (xattr(7)); it is checked all the same when it
is read. Cost: about 20 µs for one write, and 10 µs for each cgroup when a ledger is made. Knows no backend
and no device.
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
    from collections.abc import Iterator, Sequence
    from typing import Any

    from xpu_runtime.linux.proc import Caller

_PREFIX = "trusted.xpu."
#: A record of its own for the quotas that a grant counts to, and for its pod's container, which is no name of
#: a quota: earlier versions know no other field in the grant's record.
_QUOTAS = "trusted.xpu-quotas."
_POD = "pod:"
_FORMAT = 1
#: The host's PID namespace (PROC_PID_INIT_INO in the kernel's proc_ns.h), which lasts as long as the boot.
_HOST = 0xEFFFFFFC
_TEXT, _NUMBER, _TEXT_OR_NONE = (str,), (int,), (str, type(None))
#: The types of a record's fields, as Grant and Slice have them.
_GRANT = (_NUMBER, _TEXT, _TEXT, _NUMBER, _NUMBER, _TEXT, _TEXT, _TEXT, (float,))
_SLICE = (_TEXT, _TEXT, _NUMBER, (bool,), (int, type(None)), *4 * (_TEXT_OR_NONE,))
_GONE = (errno.ENOENT, errno.ENODEV, errno.ENODATA)


def keep(
    grant: Grant,
    ledger: str,
    caller: Caller,
    quotas: Sequence[str] = (),
    of_pod: tuple[str, str] | None = None,
) -> None:
    """Records a grant of the ledger at path `ledger`, its quotas and its pod's container (UID, name) on the
    cgroup of its process. Does nothing if that is the caller's cgroup: the container then has none of its
    own."""
    folder = _folder(grant)
    if folder is not None and (grant.cgroup or folder != _folder_v1(caller.pid, caller.start_time)):
        _write(folder, grant, ledger, 0)
        counts_to = [*quotas, *([_POD + "/".join(of_pod)] if of_pod is not None else [])]
        if counts_to:
            try:
                os.setxattr(folder, _QUOTAS + str(grant.id), ",".join(counts_to).encode())
            except OSError:
                pass


def counts_to(grant: Grant) -> tuple[list[str], tuple[str, str] | None]:
    """The quotas that a running container's grant counts to, and the pod's container that it is of, by the
    record on its cgroup."""
    from xpu_runtime.request.request import is_name  # only where a ledger is made

    folder = _folder(grant)
    try:
        text = os.getxattr(folder, _QUOTAS + str(grant.id)).decode("ascii") if folder is not None else ""
    except (OSError, ValueError):
        return [], None
    words = text.split(",")
    pods = [word[len(_POD) :].partition("/") for word in words if word.startswith(_POD)]
    of_pod = next(((uid, container) for uid, _, container in pods if uid and container), None)
    return [word for word in words if is_name(word)], of_pod


def renew(grant: Grant, ledger: str) -> None:
    """Records a grant that has changed; does nothing where it has no record."""
    folder = _folder(grant)
    if folder is not None:
        _write(folder, grant, ledger, os.XATTR_REPLACE)


def _write(folder: str, grant: Grant, ledger: str, flags: int) -> None:
    record = [_FORMAT, *_home(ledger), proc.pid_namespace(), _plain(grant)]
    try:
        os.setxattr(folder, _PREFIX + str(grant.id), jsonlite.dumps(record).encode("ascii"), flags)
    except OSError:
        pass


def forget(grant: Grant) -> None:
    """Removes the records of a grant from its cgroup; no error where there are none."""
    folder = _folder(grant)
    if folder is not None:
        for kind in (_PREFIX, _QUOTAS):
            try:
                os.removexattr(folder, kind + str(grant.id))
            except OSError:
                pass


def has_processes(grant: Grant) -> bool:
    """Whether the grant's container still has a process."""
    return proc.is_alive(grant.pid, grant.start_time) or (
        bool(grant.cgroup) and cgroups.has_processes(grant.cgroup)
    )


def _home(ledger: str) -> tuple[str, int]:
    """The ledger's folder and the device of its file system."""
    folder = os.path.realpath(os.path.dirname(ledger))
    return folder, os.stat(folder).st_dev


def _folder(grant: Grant) -> str | None:
    """The cgroup folder for the record: that of the limit, or that of the process."""
    return grant.cgroup or _folder_v1(grant.pid, grant.start_time)


def _folder_v1(pid: int, start_time: int) -> str | None:
    try:
        folder = cgroups.devices_folder_v1(pid)
    except ProcessLookupError:
        return None
    # One that has died is in the root cgroup, where a record would stay, and its grant with it.
    return folder if proc.is_alive(pid, start_time) else None


def running(ledger: str, pid_namespace: int) -> list[Grant]:
    """The grants of all running containers that the ledger at path `ledger` made; LedgerError where one was
    made from another PID namespace or by another version."""
    home, home_device = _home(ledger)
    found = {}
    for folder, where, device, namespace, grant in _records():
        if where != home:
            continue
        if grant is None:
            if cgroups.has_processes(folder):
                raise _of_another_version(folder)
        elif namespace == pid_namespace:
            if proc.is_alive(grant.pid, grant.start_time) or cgroups.has_processes(folder):
                found[grant.id] = grant
        elif device == home_device and cgroups.has_processes(folder):
            # On another file system the same path is another ledger, as for an engine inside a container.
            raise foreign(f"container {grant.container_id} got its slice from", namespace, pid_namespace)
    return sorted(found.values(), key=lambda grant: grant.id)


def of_other_ledgers(ledger: str) -> list[tuple[str, Grant]]:
    """The grants of running containers that other ledgers than that at path `ledger` made, each with its
    ledger's folder."""
    home = _home(ledger) if os.path.isdir(os.path.dirname(ledger)) else None
    found = [
        (where, grant)
        for folder, where, device, _, grant in _records()
        if grant is not None and (where, device) != home and cgroups.has_processes(folder)
    ]
    return sorted(found, key=lambda each: (each[0], each[1].id))


def _records() -> Iterator[tuple[str, str, Any, Any, Grant | None]]:
    """Of each record the cgroup folder, the ledger's folder and its device, the PID namespace and the grant;
    no grant: the record is in another version's format."""
    for folder, name in _written():
        try:
            kind, where, *rest = jsonlite.loads(os.getxattr(folder, name).decode("ascii"))
            if type(kind) is not int or type(where) is not str:
                continue
            # These two are the same in every format.
            device, namespace, grant = None, None, None
            if kind == _FORMAT:
                device, namespace, plain = rest
                grant = _grant(plain)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            continue
        except (ValueError, TypeError, SystemError):
            continue  # not written by us
        yield folder, where, device, namespace, grant


def _written() -> Iterator[tuple[str, str]]:
    """(cgroup folder, name) of each of our attributes."""
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
    """Raises unless the folder is gone: os.walk would silently skip one that may hold containers."""
    if error.errno not in _GONE:
        raise error


def _of_another_version(folder: str) -> LedgerError:
    return LedgerError(
        f"the ledger must be made anew, and the container in {folder} got its slice from another "
        "version of this runtime, whose record of it is not known here",
        "install that version again, or stop that container",
    )


def foreign(what: str, theirs: int, ours: int, ledger: str = "") -> LedgerError:
    """The error for a process in another PID namespace than the containers. `what` is the subject of the
    sentence; `ledger` is the path of the ledger, if the error is about it."""
    todo = "do this on the host itself; in a pod, with hostPID: true"
    if theirs != _HOST:
        todo = "do this in the namespace where they were started"
        if ledger:
            # An engine in a container whose /run survives its restart could otherwise never start one again.
            todo += f"; if that has ended, and the containers with it, remove {ledger}: it is made anew"
    return LedgerError(
        f"{what} another PID namespace (pid:[{theirs}]; this is pid:[{ours}]), so its running "
        "containers cannot be seen from here",
        todo,
    )


def _plain(grant: Grant) -> list[Any]:
    *fields, _ = grant.as_dict().values()
    return [*fields, [slice_.row() for slice_ in grant.slices]]


def _grant(plain: list[Any]) -> Grant:
    """The grant in a record; ValueError or TypeError if it is malformed.

    A container with CAP_SYS_ADMIN can write anything there, which must not stop other containers.
    """
    *fields, slices = plain
    rows = tuple(Slice.of_row(_typed(each, _SLICE)) for each in slices)
    return Grant(*[*_typed(fields, _GRANT), rows])


def _typed(values: list[Any], types: tuple[tuple[type, ...], ...]) -> list[Any]:
    if len(values) != len(types):
        raise ValueError(f"{len(values)} values, not {len(types)}")
    for value, allowed in zip(values, types):
        if type(value) not in allowed:
            raise TypeError(f"{value!r} is none of {allowed}")
        if type(value) is int and not 0 <= value < 1 << 63:  # SQLite's largest integer
            raise ValueError(f"{value} is out of range")
    return values
