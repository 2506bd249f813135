"""The operations of a plan: small values, each of which can describe itself and carry itself out.

An operation knows its file or device, and not how it is made: it calls one step of a target, which is the
container itself or its spec. Nothing here may look into an image.
"""

from __future__ import annotations

from xpu_runtime.linux.ldcache import Entry
from xpu_runtime.value import Value
from xpu_runtime.vendors.inventory import Node


class Target:
    """The steps that operations are made of; each raises OSError where it fails."""

    def device(self, node: Node) -> None:
        """Makes the container's node of a device."""
        raise NotImplementedError

    def mount(self, source: str, destination: str, *, executable: bool, writable: bool) -> None:
        """Mounts the host's `source` at `destination`."""
        raise NotImplementedError

    def image_file(self, source: str, destination: str) -> None:
        """Mounts the image's `source` at `destination`, read-only."""
        raise NotImplementedError

    def link(self, path: str, target: str) -> None:
        """Makes a symbolic link, or keeps the image's own one."""
        raise NotImplementedError

    def linker_cache(self, entries: tuple[Entry, ...], *, needed: bool) -> None:
        """Puts these libraries in front of the image's own in the loader's cache."""
        raise NotImplementedError


class Operation(Value):
    """One thing that a container gets."""

    def apply(self, target: Target) -> None:
        """Carries the operation out; OSError if that fails."""
        raise NotImplementedError

    def describe(self) -> str:
        """The operation in one line, for people."""
        raise NotImplementedError


class DeviceNode(Operation):
    """A character device that the container may open: the node, and the rule of its device cgroup.

    The node's mode is 0666, unlike the host's perhaps: the grant decides about access, and the container's
    user need not be in the host's video group.
    """

    node: Node

    def apply(self, target: Target) -> None:
        target.device(self.node)

    def describe(self) -> str:
        return f"make device {self.node.path} ({self.node.major}:{self.node.minor})"


class Mount(Operation):
    """A bind mount of a file or folder of the driver's or of ours, read-only unless it is `writable`."""

    source: str
    destination: str
    executable: bool = True
    writable: bool = False

    def apply(self, target: Target) -> None:
        target.mount(self.source, self.destination, executable=self.executable, writable=self.writable)

    def describe(self) -> str:
        return f"mount {self.source} at {self.destination}"


class ImageFile(Operation):
    """A bind mount of a file that the image itself has, at another place in it, read-only.

    It shows the file at `source` as it was before mounts over it. Only a container with a mount namespace of
    its own can get one: in a spec it would have a path of the host, which others could change.
    """

    source: str
    destination: str

    def apply(self, target: Target) -> None:
        target.image_file(self.source, self.destination)

    def describe(self) -> str:
        return f"mount the image's {self.source} at {self.destination}"


class Link(Operation):
    """A symbolic link in the container, such as a library's SONAME."""

    path: str
    target: str

    def apply(self, target: Target) -> None:
        target.link(self.path, self.target)

    def describe(self) -> str:
        return f"link {self.path} to {self.target}"


class LinkerCache(Operation):
    """Our libraries in the container's /etc/ld.so.cache, in front of its own entries.

    `needed`: no loader looks by itself into the folder that they are in.
    """

    entries: tuple[Entry, ...]
    needed: bool = False

    def apply(self, target: Target) -> None:
        target.linker_cache(self.entries, needed=self.needed)

    def describe(self) -> str:
        many = len(self.entries)
        return f"write {many} {'library' if many == 1 else 'libraries'} into /etc/ld.so.cache"
