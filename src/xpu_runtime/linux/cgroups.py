"""Where a process is in the cgroup hierarchies, and which devices it may open there.

Handles cgroup v1, v2 and hybrid hosts (cgroups(7)): a controller may be mounted anywhere, and a mount may
show only a subtree of the hierarchy. Nothing is cached: each call reads the mounts in the caller's mount and
cgroup namespace, which must be the host's. Knows devices only by their numbers.
"""

from __future__ import annotations

import errno
import os

from xpu_runtime.errors import ApplyError
from xpu_runtime.linux import files, mountinfo, proc
from xpu_runtime.linux.device_rule import DeviceRule
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_READ_LIMIT = 1 << 24
#: In place of the controller's name in the v2 hierarchy, whose membership has none.
_V2 = ""


class Hierarchy(Value):
    """A mounted cgroup hierarchy: a v2 one, or a v1 one with `controllers` ("name=systemd" is one too)."""

    version: int
    controllers: tuple[str, ...]
    root: str
    mountpoint: str


def mounted(of: tuple[str, ...] | None = None) -> list[Hierarchy]:
    """The hierarchies that are visible in this mount namespace: one mount may cover another (proc(5)).

    `of`: only those with one of these controllers (_V2: the v2 hierarchy). ApplyError for one that cannot
    be looked at: its processes may have slices.
    """
    found = []
    for each in mountinfo.read("cgroup2" if of == (_V2,) else "cgroup"):
        # The list also has a v1 mount's other options (rw, xattr), which are no controller's name.
        controllers = tuple(each.options.split(",")) if each.kind == "cgroup" else ()
        if of is not None and not set(of).intersection(controllers or (_V2,)):
            continue
        if _device(each.point) == each.device:
            found.append(Hierarchy(1 if controllers else 2, controllers, each.root, each.point))
    return found


def v1_controllers() -> tuple[str, ...]:
    """The controllers of each v1 hierarchy that this process is in, as the kernel writes them ("cpu,cpuacct",
    "name=systemd"), mounted or not."""
    return tuple(",".join(controllers) for controllers, _ in _memberships(os.getpid()) if controllers)


def v2_mountpoint() -> str | None:
    """Where cgroup v2 is mounted, on a hybrid host too; None where it is not."""
    return next((each.mountpoint for each in mounted((_V2,))), None)


def _paths(pid: int, hierarchies: list[Hierarchy]) -> dict[str, str]:
    """The absolute folder of `pid` for each v1 controller, and for _V2; ProcessLookupError if it is gone."""
    found = {}
    for controllers, path in _memberships(pid):
        for controller in controllers or (_V2,):
            folder = _folder(
                [each for each in hierarchies if controller in (each.controllers or (_V2,))], path
            )
            if folder:
                found[controller] = folder
    return found


def v2_folder(pid: int, not_of: int | None = None) -> str | None:
    """The absolute folder of `pid` in the v2 hierarchy; None if that is not mounted, or if the process
    `not_of` is in the same folder."""
    hierarchies = mounted((_V2,))
    folder = _paths(pid, hierarchies).get(_V2)
    if not_of is not None and folder == _paths(not_of, hierarchies).get(_V2):
        return None
    return folder


def devices_folder_v1(pid: int) -> str | None:
    """The absolute folder of `pid` in the v1 devices hierarchy; None if that is not mounted.
    ProcessLookupError also for a process that is ending."""
    return _paths_while_it_runs(pid, ("devices",)).get("devices")


def _paths_while_it_runs(pid: int, of: tuple[str, ...]) -> dict[str, str]:
    """As `_paths`, of these hierarchies; ProcessLookupError also for a process that is ending.

    In v1 hierarchies the kernel says of such a process, a zombie too, that it is in the root cgroup
    (proc_cgroup_show). A rule that was taken back from a container killed meanwhile would be taken from
    every process of the machine, and devices.list of the root does not even show it.
    """
    found = _paths(pid, mounted(of))
    if proc.is_ending(
        pid
    ):  # asked afterwards: a process that is not ending now was not ending while its cgroups were read
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}")
    return found


def has_processes(folder: str) -> bool:
    """Whether a process is in the cgroup `folder` or below it; a cgroup that is gone has none."""
    try:
        return "populated 1" in _lines(os.path.join(folder, "cgroup.events"))
    except FileNotFoundError:
        pass  # v1, the v2 root, or gone
    except OSError as error:
        if error.errno != errno.ENODEV:  # v2: removed while it was read
            raise
        return False
    return any(_members(folder))


def processes(folder: str) -> list[int]:
    """The processes in the cgroup `folder` and below it; none if it is gone."""
    return [int(line) for lines in _members(folder) for line in lines]


def _members(folder: str) -> Iterator[list[str]]:
    """The lines of cgroup.procs of the cgroup `folder` and of each below it."""
    folders = [folder]
    while folders:
        here, lines = folders.pop(), []
        try:
            lines = _lines(os.path.join(here, "cgroup.procs"))
            with os.scandir(here) as entries:
                folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            # EOPNOTSUPP: a threaded cgroup; its processes are in the folder above.
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
                raise
        yield lines


class Allowed(Value):
    """The changes of `allow_devices`: `rules` were not there before."""

    version: int
    #: The cgroup's folder; "" if nothing was changed.
    folder: str
    rules: tuple[DeviceRule, ...]


def allow_devices(pid: int, rules: list[DeviceRule]) -> Allowed:
    """Allows the cgroup of `pid` to use the devices.

    On v1 by devices.allow; on v2 by replacing each device program that is attached to the cgroup. Doing it
    again changes nothing. ApplyError where it cannot be done, ProcessLookupError for a process that ends.
    """
    folders = _paths_while_it_runs(pid, ("devices", _V2))
    if "devices" in folders:
        return Allowed(1, folders["devices"], tuple(_change_v1(folders["devices"], rules, True)))
    folder = folders.get(_V2)
    if not folder:
        raise ApplyError(
            f"the device cgroup of process {pid} cannot be found",
            "mount /sys/fs/cgroup where the engine runs, whole and writable",
        )
    from xpu_runtime.linux import device_bpf  # rarely needed, and this is a container's start

    return Allowed(2, folder, tuple(device_bpf.allow(folder, rules)))


def deny_devices(allowed: Allowed) -> None:
    """Takes back the changes of `allow_devices`, in the same cgroup.

    Not in the process's present cgroup: a dead one is in the root cgroup (v1), where denying a device would
    deny it to the whole machine.
    """
    if not allowed.rules:
        return
    if allowed.version == 1:
        _change_v1(allowed.folder, list(allowed.rules), False)
        return
    from xpu_runtime.linux import device_bpf

    device_bpf.deny(allowed.folder, list(allowed.rules))


def _change_v1(folder: str, rules: list[DeviceRule], allow: bool) -> list[DeviceRule]:
    """The v1 device controller (admin-guide/cgroup-v1/devices.rst)."""
    control = os.path.join(folder, "devices.allow" if allow else "devices.deny")
    try:
        there = [line.split(" ") for line in _lines(os.path.join(folder, "devices.list"))]
        changed = [rule for rule in rules if allow is not _allowed_v1(there, rule)]
        fd = os.open(control, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for rule in changed:
                os.write(fd, str(rule).encode("ascii"))
        finally:
            os.close(fd)
    except OSError as error:
        raise ApplyError(
            f"{control} cannot be written: {error.strerror}",
            "the engine's own cgroup must allow the devices as well",
        ) from error
    return changed


def _allowed_v1(there: list[list[str]], rule: DeviceRule) -> bool:
    wanted = set(rule.access)
    for kind, numbers, access in there:
        if kind in ("a", rule.kind):
            major, _, minor = numbers.partition(":")
            if major in ("*", str(rule.major)) and minor in ("*", str(rule.minor)):
                wanted -= set(access)
    return not wanted


def _memberships(pid: int) -> list[tuple[tuple[str, ...], str]]:
    """(controllers, path) of each hierarchy that `pid` is in; v2 has no controllers."""
    try:
        lines = _lines(f"/proc/{pid}/cgroup")
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}") from None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        found.append((tuple(controllers.split(",")) if controllers else (), path))
    return found


def _folder(hierarchies: list[Hierarchy], path: str) -> str | None:
    """The folder at which `path` of a hierarchy is visible; a mount may show only a subtree."""
    for each in hierarchies:
        root = "" if each.root == "/" else each.root
        if path == root or path.startswith(root + "/"):
            return (each.mountpoint + path[len(root) :]).rstrip("/")
    return None


def _device(path: str) -> str:
    """The device of the file system at `path` as mountinfo writes it; "" if there is nothing."""
    try:
        device = os.stat(path).st_dev
    except OSError as error:
        # A mountpoint's path has no symlink: one that is on the way now is in a mount that covers it.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return ""
        todo = "do it as root" if os.geteuid() else f"mend what is mounted there, or `umount {path}`"
        raise ApplyError(f"the cgroups at {path} cannot be looked at: {error.strerror}", todo) from error
    return f"{os.major(device)}:{os.minor(device)}"


def _lines(path: str) -> list[str]:
    # By newlines only: a cgroup's name may contain other characters at which str.splitlines splits.
    return [line for line in os.fsdecode(files.read(path, _READ_LIMIT)).split("\n") if line]
