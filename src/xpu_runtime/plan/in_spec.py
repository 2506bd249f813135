"""What spec mode writes into the bundle's spec before the low-level runtime starts.

Rules of the device cgroup and device nodes become parts of the spec, so that the runtime (and systemd
behind it) knows them. Mounts, links and the loader's cache are the hook's in this mode too (live.py): where
the spec's mounts and the image's links lead is certain only when the volumes are mounted, and in a user
namespace the runtime cannot make a mountpoint in a folder that belongs to the host's root. Only a
container without a mount namespace of its own, into which no hook could mount, has them in its spec.
"""

from __future__ import annotations

import errno
import os

from xpu_runtime.devices.inventory import Inventory, Node
from xpu_runtime.ledger.grants import Slice
from xpu_runtime.linux.rootfs import Root
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.plan import build, mode, perform
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
) -> Root | None:
    """Edits `spec` in memory. If a Root comes back, links were made in `rootfs`, and it can undo those.

    `pages` as for build.build.
    ApplyError, and nothing is left in the root folder, if a step fails.
    """
    nodes = build.device_nodes(found, slices, capabilities)
    for wanted in nodes:
        oci_spec.add_device_rule(spec, "c", wanted.node.major, wanted.node.minor, "rw")
        if systemd_cgroup:
            _link_for_systemd(wanted.node, found.root)
    if not mode.mounts_are_in_spec(spec):
        # In the image's own /dev, or in a volume, the runtime would make nodes wherever a link leads: there
        # the hook makes them, or says why not.
        if oci_spec.has_own_dev(spec) and not oci_spec.has_namespace(spec, "user"):
            for wanted in nodes:
                _add_device(spec, wanted.node)
        return None
    root = perform.open_root(rootfs)
    try:
        for operation in build.build(found, slices, capabilities, root, pages, spec):
            try:
                _one(spec, root, operation)
            except OSError as error:
                raise perform.failure(root, operation, error) from error
    except BaseException:
        root.undo()
        root.close()
        raise
    return root


def _add_device(spec: Spec, node: Node) -> None:
    oci_spec.add_device(spec, node.path, "c", node.major, node.minor, _NODE_MODE)


def _one(spec: Spec, root: Root, operation: Operation) -> None:
    if isinstance(operation, DeviceNode):
        _add_device(spec, operation.node)
    elif isinstance(operation, Mount):
        options = [*_OPTIONS, "rw" if operation.writable else "ro"]
        if not operation.executable:
            options.append("noexec")
        oci_spec.add_mount(spec, operation.destination, operation.source, options)
    elif isinstance(operation, Link):
        perform.make_link(root, operation)
    elif isinstance(operation, LinkerCache):
        perform.write_linker_cache(root, operation, _refuse_to_cover)


def _refuse_to_cover(path: str, data: bytes) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


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
