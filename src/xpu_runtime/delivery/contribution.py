"""Files of a backend in a container, beside those of the driver or in their place.

A backend of limits (limits/backend.py) that works inside the container has such a contribution. The plan asks
it twice: for host files before an image is known, and for its changes once the image is known. This module
names no backend.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.delivery.operations import Operation
    from xpu_runtime.linux.ldcache import Entry
    from xpu_runtime.linux.rootfs import Root
    from xpu_runtime.oci.spec import Spec
    from xpu_runtime.vendors.inventory import Library


class InImage:
    """A contribution's changes for one image; this one makes none."""

    def instead_of(self, file: Library) -> Operation | None:
        """The operations that replace the mount of `file`; None: the mount stays."""
        return None

    def covers(self, folder: str, files: tuple[Library, ...], planned: list[Operation]) -> list[Operation]:
        """Mounts over the image's own files, beside `planned`; the plan's libraries go to `folder`."""
        return []

    def cache(self, entries: list[Entry]) -> list[Entry]:
        """The plan's entries for the loader's cache, in their final form."""
        return entries


class Contribution:
    """Adds nothing; backends derive from it."""

    def files(self, asked: list[Library], every: tuple[Library, ...]) -> list[Library]:
        """The host's files for the container, made from those that it asked for; `every` are all of the
        driver's."""
        return asked

    def look(self, root: Root, spec: Spec) -> InImage:
        """Looks into the image below `root` for the programs of `spec`; ApplyError if that cannot be done."""
        return InImage()
