"""What spec mode writes into the bundle's spec before the low-level runtime starts.

Rules of the device cgroup become parts of the spec, so that the runtime (and systemd behind it) knows them.
Device nodes, mounts, links and the loader's cache are the hook's in this mode too (live.py): where the spec's
mounts and the image's links lead is certain only when the volumes are mounted. The runtime would make a node
in a volume at /dev/nvidia-caps, where it stays; and in a user namespace it cannot make a mountpoint in a
folder that belongs to the host's root. Only a container without a mount namespace of its own, into which no
hook could mount, has them in its spec (unshared.py).
"""

from __future__ import annotations

import os

from xpu_runtime.devices.inventory import Inventory, Node
from xpu_runtime.ledger.grants import Slice
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.plan import build, mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.oci.spec import Spec

_NODE_MODE = 0o666


def add_devices(
    spec: Spec,
    found: Inventory,
    slices: tuple[Slice, ...],
    capabilities: tuple[str, ...],
    *,
    systemd_cgroup: bool,
) -> None:
    """Adds the devices of `slices` to `spec`, in memory."""
    for wanted in build.device_nodes(found, slices, capabilities):
        node = wanted.node
        oci_spec.add_device_rule(spec, "c", node.major, node.minor, "rw")
        if systemd_cgroup:
            _link_for_systemd(node, found.root)
        if mode.mounts_are_in_spec(spec):
            oci_spec.add_device(spec, node.path, "c", node.major, node.minor, _NODE_MODE)


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
