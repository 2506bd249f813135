"""The operations of a plan: small values, each saying in one line what it does.

live.py carries the list out in a live container. In spec mode in_spec.py writes the devices into the spec,
and unshared.py the rest for a container without a mount namespace of its own.
"""

from __future__ import annotations

from xpu_runtime.devices.inventory import Node
from xpu_runtime.linux.ldcache import Entry
from xpu_runtime.value import Value


class DeviceNode(Value):
    """A character device that the container may open: the node, and the rule of its device cgroup.

    The node is 0666 whatever the host's is: the grant decides who has the device, and the container's
    user need not be in the host's video group.
    """

    node: Node

    def describe(self) -> str:
        return f"make device {self.node.path} ({self.node.major}:{self.node.minor})"


class Mount(Value):
    """A bind mount of a file or folder of the driver's or of ours, read-only unless it is `writable`."""

    source: str
    destination: str
    executable: bool = True
    writable: bool = False

    def describe(self) -> str:
        return f"mount {self.source} at {self.destination}"


class OwnFile(Value):
    """A bind mount of a file that the container's own root folder has, at another place in it, read-only.

    It is what lies at `source` before anything is mounted over that.
    """

    source: str
    destination: str

    def describe(self) -> str:
        return f"mount the image's {self.source} at {self.destination}"


class Link(Value):
    """A symbolic link in the container, such as a library's SONAME."""

    path: str
    target: str

    def describe(self) -> str:
        return f"link {self.path} to {self.target}"


class LinkerCache(Value):
    """Our libraries in the container's /etc/ld.so.cache, in front of what it holds.

    `needed`: no loader looks by itself into the folder that they are in.
    """

    entries: tuple[Entry, ...]
    needed: bool = False

    def describe(self) -> str:
        return f"write {len(self.entries)} libraries into /etc/ld.so.cache"


Operation = DeviceNode | Mount | OwnFile | Link | LinkerCache
