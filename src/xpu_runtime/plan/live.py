"""Hook mode: a plan carried out in a container that is being created.

Called from a prestart or createRuntime hook: the container's namespaces and cgroup exist, its root
folder is mounted inside its mount namespace, and its init waits. The host's files are copied as
detached mounts first; then this process enters the container's mount namespace and attaches them.
"""

from __future__ import annotations

import os
import stat

from xpu_runtime.devices.inventory import Inventory
from xpu_runtime.errors import ApplyError
from xpu_runtime.ledger.grants import Slice
from xpu_runtime.linux import cgroups, mounts, syscalls
from xpu_runtime.linux.rootfs import Root
from xpu_runtime.plan import build, perform
from xpu_runtime.plan.operations import DeviceNode, Link, Mount, Operation

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
) -> None:
    """Gives the container whose init is `pid` its devices and driver files; else ApplyError, all undone.

    `pages` and `spec` as for build.build.
    """
    if os.path.samefile(f"/proc/{pid}/ns/mnt", "/proc/self/ns/mnt"):
        raise ApplyError(
            f"process {pid} has no mount namespace of its own: what it got, the whole host would get",
            "give the container a mount namespace, or set mode: spec in the configuration",
        )
    added = _allow(pid, build.device_nodes(found, slices, capabilities))
    try:
        _in_mount_namespace(found, slices, capabilities, pid, rootfs, pages, spec)
    except BaseException:
        _disallow(pid, added)
        raise


def _in_mount_namespace(
    found: Inventory,
    slices: tuple[Slice, ...],
    capabilities: tuple[str, ...],
    pid: int,
    rootfs: str,
    pages: str | None,
    spec: Spec,
) -> None:
    clones: dict[str, int] = {}
    host = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for library in build.wanted(found, capabilities, pages):
            if library.source not in clones:
                clones[library.source] = _clone(library.source)
        try:
            mounts.enter_mount_namespace(pid)
        except OSError as error:
            raise ApplyError(
                f"cannot enter the mount namespace of process {pid}: {error.strerror}"
            ) from error
        try:
            with perform.open_root(rootfs) as root:
                _carry_out_in(root, build.build(found, slices, capabilities, root, pages, spec), clones)
        finally:
            syscalls.setns(host, syscalls.CLONE_NEWNS)
    finally:
        os.close(host)
        for fd in clones.values():
            os.close(fd)


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


def _clone(source: str) -> int:
    try:
        return mounts.clone(source)
    except OSError as error:
        raise ApplyError(f"cannot copy the mount of {source}: {error.strerror}") from error


def _carry_out_in(root: Root, operations: list[Operation], clones: dict[str, int]) -> None:
    attached: set[str] = set()
    try:
        for operation in operations:
            try:
                _one(root, operation, clones, attached)
            except OSError as error:
                raise perform.failure(operation, error) from error
    except BaseException:
        root.undo()
        raise


def _one(root: Root, operation: Operation, clones: dict[str, int], attached: set[str]) -> None:
    if isinstance(operation, DeviceNode):
        root.make_node(operation.node.path, _NODE_MODE, operation.node.major, operation.node.minor)
    elif isinstance(operation, Mount):
        _mount(root, operation, clones[operation.source], again=operation.source in attached)
        attached.add(operation.source)
    elif isinstance(operation, Link):
        perform.make_link(root, operation)
    else:
        perform.write_linker_cache(root, operation)


def _mount(root: Root, operation: Mount, clone: int, again: bool) -> None:
    """Attaches the clone, or where it is attached already (the image has files of its own under more than
    one of a library's names), a copy of it."""
    fd = mounts.copy(clone) if again else clone
    try:
        mounts.attach(
            fd,
            root,
            operation.destination,
            read_only=not operation.writable,
            nodev=True,
            noexec=not operation.executable,
        )
    finally:
        if again:
            os.close(fd)
