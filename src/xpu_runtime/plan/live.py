"""A plan carried out in a container that is being created: mounts, links, the loader's cache, device nodes.

Called from a prestart or createRuntime hook: the container's namespaces and cgroup exist, its root
folder and its volumes are mounted in its mount namespace, and its init waits. The host's files are
copied as detached mounts first; then this process enters the container's mount namespace and attaches
them. In spec mode too, where the low-level runtime has the device rules: what lies in a volume, and
what a link of the image leads to, is certain only here, by descriptors.
"""

from __future__ import annotations

import errno
import os
import stat

from xpu_runtime import paths
from xpu_runtime.devices.inventory import Inventory
from xpu_runtime.errors import ApplyError
from xpu_runtime.ledger.grants import Slice
from xpu_runtime.linux import cgroups, files, mountinfo, mounts, proc, syscalls
from xpu_runtime.linux.credentials import MakingFilesAs
from xpu_runtime.linux.rootfs import Root
from xpu_runtime.plan import build, perform
from xpu_runtime.plan.operations import DeviceNode, Link, Mount, Operation, OwnFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.oci.spec import Spec

_NODE_MODE = stat.S_IFCHR | 0o666


def carry_out(
    found: Inventory,
    slices: tuple[Slice, ...],
    capabilities: tuple[str, ...],
    pid: int,
    rootfs: str,
    pages: str | None,
    spec: Spec,
    *,
    allow: bool = True,
) -> None:
    """Gives the container whose init is `pid` its devices and driver files; else ApplyError, all undone.

    `pages` and `spec` as for build.build. Without `allow` its device cgroup has the rules already.
    """
    if os.path.samefile(f"/proc/{pid}/ns/mnt", "/proc/self/ns/mnt"):
        raise ApplyError(
            f"process {pid} has no mount namespace of its own: what it got, the whole host would get",
            "give the container a mount namespace, or set mode: spec in the configuration",
        )
    nodes = build.device_nodes(found, slices, capabilities)
    added = _allow(pid, nodes) if allow else []
    try:
        copies = Copies(pid)
        try:
            for library in build.wanted(found, capabilities, pages):
                copies.add(library.source)
            if copies.bind_nodes:
                for node in nodes:
                    copies.add(_source(node, found.root))
            copies.enter()
            with MakingFilesAs(*copies.root_user), perform.open_root(rootfs, copies.host_devices) as root:
                operations = build.build(found, slices, capabilities, root, pages, spec)
                _carry_out_in(root, operations, copies, found.root)
        finally:
            copies.close()
    except BaseException:
        _disallow(pid, added)
        raise


class Copies:
    """Detached copies of the host's files, and the way into a container's mount namespace and back."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._fds: dict[str, int] = {}
        self._attached: set[str] = set()
        self._host = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._run_dir = os.open(paths.run_dir(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.host_devices = mountinfo.devices()
        #: In a user namespace nobody can make a device node that can be opened: the host's is mounted.
        self.bind_nodes = not os.path.samefile(f"/proc/{pid}/ns/user", "/proc/self/ns/user")
        self.root_user = proc.root_user(pid) if self.bind_nodes else (0, 0)

    def add(self, source: str) -> None:
        """Copies the mount of a file or folder of the host, once; before `enter`."""
        if source in self._fds:
            return
        try:
            self._fds[source] = mounts.clone(source)
        except OSError as error:
            raise ApplyError(f"cannot copy the mount of {source}: {error.strerror}") from error

    def enter(self) -> None:
        """Enters the container's mount namespace; ApplyError if that fails."""
        try:
            mounts.enter_mount_namespace(self._pid)
        except OSError as error:
            raise ApplyError(
                f"cannot enter the mount namespace of process {self._pid}: {error.strerror}"
            ) from error

    def take(self, source: str) -> int:
        """A copy that can be attached, the caller's to close: an image may have two places for one file."""
        if source in self._attached:
            return mounts.copy(self._fds[source])
        self._attached.add(source)
        return os.dup(self._fds[source])

    def attach_bytes(self, root: Root, path: str, data: bytes) -> None:
        """Mounts a file with `data` at `path`, read-only; it keeps no name on the host, and ends there."""
        name = files.create_aside(self._run_dir, "mounted", data, 0o644)
        try:
            syscalls.setns(self._host, syscalls.CLONE_NEWNS)
            try:
                fd = mounts.clone(os.path.join(paths.run_dir(), name))
            finally:
                self.enter()
            _attach(root, path, fd, noexec=True)
        finally:
            os.unlink(name, dir_fd=self._run_dir)  # not before: the kernel attaches no file without a name

    def close(self) -> None:
        """Goes back to the host's mount namespace, and drops what was not attached."""
        syscalls.setns(self._host, syscalls.CLONE_NEWNS)
        os.close(self._host)
        os.close(self._run_dir)
        for fd in self._fds.values():
            os.close(fd)


def _source(node: DeviceNode, driver_root: str) -> str:
    return os.path.join(driver_root, node.node.path.lstrip("/"))


def _allow(pid: int, nodes: list[DeviceNode]) -> list[cgroups.DeviceRule]:
    rules = [cgroups.DeviceRule("c", node.node.major, node.node.minor) for node in nodes]
    try:
        return cgroups.allow_devices(pid, rules)
    except OSError as error:
        raise ApplyError(
            f"cannot allow the devices in the cgroup of process {pid}: {error.strerror or error}",
            "set mode: spec in the configuration",
        ) from error


def _disallow(pid: int, rules: list[cgroups.DeviceRule]) -> None:
    try:
        cgroups.deny_devices(pid, rules)
    except (OSError, ApplyError):
        pass  # the container that could use them is about to be killed


def _carry_out_in(root: Root, operations: list[Operation], copies: Copies, driver_root: str) -> None:
    try:
        for operation in operations:
            try:
                _one(root, operation, copies, driver_root)
            except OSError as error:
                raise perform.failure(root, operation, error) from error
    except BaseException:
        root.undo()
        raise


def _one(root: Root, operation: Operation, copies: Copies, driver_root: str) -> None:
    if isinstance(operation, DeviceNode):
        _make_node(root, operation, copies, driver_root)
    elif isinstance(operation, Mount):
        _attach(
            root,
            operation.destination,
            copies.take(operation.source),
            read_only=not operation.writable,
            noexec=not operation.executable,
        )
    elif isinstance(operation, OwnFile):
        # Resolved inside the root, by descriptor: whatever the image has there, it is nothing of the host's.
        there = root.open(operation.source, os.O_PATH)
        try:
            fd = mounts.copy(there)
        finally:
            os.close(there)
        _attach(root, operation.destination, fd)
    elif isinstance(operation, Link):
        perform.make_link(root, operation)
    else:
        perform.write_linker_cache(root, operation, lambda path, data: copies.attach_bytes(root, path, data))


def _make_node(root: Root, operation: DeviceNode, copies: Copies, driver_root: str) -> None:
    node = operation.node
    if not copies.bind_nodes:
        root.make_node(node.path, _NODE_MODE, node.major, node.minor)
        return
    if root.exists(node.path):
        there = root.stat(node.path)
        if stat.S_ISCHR(there.st_mode) and there.st_rdev == os.makedev(node.major, node.minor):
            return
        raise OSError(errno.EEXIST, "something else is in the device's place", node.path)
    fd = copies.take(_source(operation, driver_root))
    _attach(root, node.path, fd, read_only=False, nodev=False, noexec=True)


def _attach(
    root: Root, path: str, fd: int, *, read_only: bool = True, nodev: bool = True, noexec: bool = False
) -> None:
    """Attaches the detached mount `fd`, and closes it."""
    try:
        mounts.attach(fd, root, path, read_only=read_only, nodev=nodev, noexec=noexec)
    finally:
        os.close(fd)
