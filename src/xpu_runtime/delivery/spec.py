"""A plan carried out on a bundle's spec, before the low-level runtime starts.

Rules of the device cgroup become parts of the spec, so that the runtime (and systemd behind it) knows them.
Device nodes, mounts, links and the loader's cache are the hook's in this mode too (container.py): where the
spec's mounts and the image's links lead is certain only once the volumes are mounted. The runtime would make
a node in a volume at /dev/nvidia-caps, where it stays; and in a user namespace it cannot make a mountpoint in
a folder that belongs to the host's root. Only a container without a mount namespace of its own, into which no
hook could mount, has them in its spec; links and the cache are made in its root folder then. The plan decides
the content; every backend and vendor is treated alike. NVIDIA's driver is named here only as a reason.
"""

from __future__ import annotations

import errno
import os

from xpu_runtime.delivery import in_root
from xpu_runtime.linux import files
from xpu_runtime.oci import spec as oci_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.delivery.plan import Plan
    from xpu_runtime.linux.rootfs import Root
    from xpu_runtime.oci.spec import Spec
    from xpu_runtime.vendors.inventory import Node

_NODE_MODE = 0o666
_OPTIONS = ["bind", "nosuid", "nodev", "rprivate"]


def add_rules(spec: Spec, plan: Plan, *, systemd_cgroup: bool) -> None:
    """Adds to `spec`, in memory, the rules that let the container open its devices."""
    for each in plan.nodes:
        node = each.node
        oci_spec.add_device_rule(spec, "c", node.major, node.minor, "rw")
        if systemd_cgroup:
            link_for_systemd(node, plan.driver_root)


def add_all(spec: Spec, plan: Plan, root: Root) -> None:
    """Adds the rest of the plan to `spec`, in memory, and makes links and cache in `root`; ApplyError if a
    step fails, with those undone."""
    in_root.carry_out(plan.in_image(root, spec), InSpec(root, spec))


class InSpec(in_root.InRoot):
    """The spec of a container that has no mount namespace of its own, and its root folder."""

    def __init__(self, root: Root, spec: Spec) -> None:
        super().__init__(root)
        self._spec = spec

    def device(self, node: Node) -> None:
        oci_spec.add_device(self._spec, node.path, "c", node.major, node.minor, _NODE_MODE)

    def mount(self, source: str, destination: str, *, executable: bool, writable: bool) -> None:
        options = [*_OPTIONS, "rw" if writable else "ro", *(() if executable else ("noexec",))]
        oci_spec.add_mount(self._spec, destination, source, options)

    def cover(self, path: str, data: bytes) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


def link_for_systemd(node: Node, driver_root: str) -> None:
    """systemd knows devices by /dev/char/MAJOR:MINOR, and drops the rule of one that has no such link.

    The NVIDIA driver registers no class device, so that udev makes none (runc issue 3708).
    """
    link = f"/dev/char/{node.major}:{node.minor}"
    try:
        if os.stat(link).st_rdev == os.makedev(node.major, node.minor):
            return
    except OSError:
        pass  # there is none, or a dangling one of a driver root that is gone
    aside = f"/dev/char/{files.temporary_name(os.path.basename(link))}"
    try:
        os.makedirs("/dev/char", exist_ok=True)
        os.symlink(os.path.join(driver_root, node.path.lstrip("/")), aside)
        os.rename(aside, link)
    except OSError:
        pass  # only systemd reads the link, and on its hosts /dev can be written
