"""What something other than the driver puts into a container, or in the place of the driver's files.

A backend of limits (limits/backend.py) that works inside the container has such a contribution. The plan asks
it at two times: for host files before an image is known, and once for what it makes of the image. Nothing
here knows which backends there are.
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
    """What a contribution makes of one image; this one makes nothing of it."""

    def instead_of(self, file: Library) -> Operation | None:
        """What comes in the place of the mount of `file`; None: the mount."""
        return None

    def covers(self, folder: str, files: tuple[Library, ...], planned: list[Operation]) -> list[Operation]:
        """What lies over the image's own files, beside `planned`; the plan's libraries go to `folder`."""
        return []

    def cache(self, entries: list[Entry]) -> list[Entry]:
        """The plan's entries for the loader's cache, as they are to be."""
        return entries


class Contribution:
    """Adds nothing; a backend's own says what it adds."""

    def files(self, asked: list[Library], every: tuple[Library, ...]) -> list[Library]:
        """The host's files that the container gets, made from those that it asked for; `every` is what the
        driver has."""
        return asked

    def look(self, root: Root, spec: Spec) -> InImage:
        """Looks into the image below `root` for the programs of `spec`; ApplyError if that cannot be done."""
        return InImage()
