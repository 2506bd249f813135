"""Spec mode: a plan written into the bundle's spec before the low-level runtime starts.

Device nodes, their rules and mounts become parts of the spec, so that the runtime (and systemd behind
it) knows them; links and the loader's cache are made in the root folder, which the engine has mounted.
"""

from __future__ import annotations

import os

from xpu_runtime.devices.inventory import Inventory, Node
from xpu_runtime.ledger.grants import Slice
from xpu_runtime.linux.rootfs import Root
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.plan import build, perform
from xpu_runtime.plan.operations import DeviceNode, Link, LinkerCache, Mount, Operation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.oci.spec import Spec

_NODE_MODE = 0o666
_OPTIONS = ["bind", "nosuid", "nodev", "rprivate"]


def edit(
    spec: Spec,
    found: Inventory,
    slices: tuple[Slice, ...],
    capabilities: tuple[str, ...],
    rootfs: str,
    *,
    pages: str | None,
    systemd_cgroup: bool,
) -> Root:
    """Edits `spec` in memory and makes the links in `rootfs`; the Root that comes back can undo those.

    `pages` as for build.build.
    ApplyError, and nothing is left in the root folder, if a step fails.
    """
    root = perform.open_root(rootfs)
    try:
        bind_nodes = oci_spec.has_namespace(spec, "user")
        if systemd_cgroup:
            for wanted in build.device_nodes(found, slices, capabilities):
                _link_for_systemd(wanted.node, found.root)
        for operation in build.build(found, slices, capabilities, root, pages, spec):
            try:
                _one(spec, root, operation, found.root, bind_nodes)
            except OSError as error:
                raise perform.failure(operation, error) from error
    except BaseException:
        root.undo()
        root.close()
        raise
    return root


def _one(spec: Spec, root: Root, operation: Operation, driver_root: str, bind_nodes: bool) -> None:
    if isinstance(operation, DeviceNode):
        node = operation.node
        oci_spec.add_device_rule(spec, "c", node.major, node.minor, "rw")
        if not bind_nodes:
            oci_spec.add_device(spec, node.path, "c", node.major, node.minor, _NODE_MODE)
        else:
            # mknod is refused in a user namespace, and the runtime would bind from the same path of the
            # host, which is not where another driver root has its nodes.
            source = os.path.join(driver_root, node.path.lstrip("/"))
            oci_spec.add_mount(spec, node.path, source, ["bind", "rw", "nosuid", "noexec", "rprivate"])
    elif isinstance(operation, Mount):
        options = [*_OPTIONS, "rw" if operation.writable else "ro"]
        if not operation.executable:
            options.append("noexec")
        oci_spec.add_mount(spec, operation.destination, operation.source, options)
    elif isinstance(operation, Link):
        perform.make_link(root, operation)
    elif isinstance(operation, LinkerCache):
        perform.write_linker_cache(root, operation)


def _link_for_systemd(node: Node, driver_root: str) -> None:
    """systemd knows devices by /dev/char/MAJOR:MINOR, and drops the rule of one that has no such link.

    The NVIDIA driver registers no class device, so that udev makes none (runc issue 3708).
    """
    link = f"/dev/char/{node.major}:{node.minor}"
    try:
        if os.stat(link).st_rdev == os.makedev(node.major, node.minor):
            return
    except OSError:
        pass  # none, or one that leads nowhere: of a driver root that is gone
    aside = f"{link}.{os.getpid()}"
    try:
        os.makedirs("/dev/char", exist_ok=True)
        os.symlink(os.path.join(driver_root, node.path.lstrip("/")), aside)
        os.rename(aside, link)
    except OSError:
        pass  # where there is no systemd nobody reads it; where there is, /dev can be written
