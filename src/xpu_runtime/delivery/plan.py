"""From a grant to a plan: the operations that turn it into a working container.

A plan is built once, from values. Where its files go depends on the image, into which `Plan.in_image` looks;
everything else is pure. It knows neither its target nor the backends of the limits.
"""

from __future__ import annotations

import os
import stat

from xpu_runtime.delivery.operations import DeviceNode, Link, LinkerCache, Mount, Operation
from xpu_runtime.errors import DeviceError
from xpu_runtime.ledger.grants import Slice
from xpu_runtime.linux import ldcache
from xpu_runtime.value import Value
from xpu_runtime.vendors.inventory import Driver, Inventory, Library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.delivery.contribution import Contribution
    from xpu_runtime.linux.rootfs import Root
    from xpu_runtime.oci.spec import Spec

_MULTIARCH = f"{os.uname().machine}-linux-gnu"
#: Folders that dynamic loaders search by themselves, and thus also without a cache.
_LIB_FOLDERS = (f"/usr/lib/{_MULTIARCH}", "/usr/lib64", "/usr/lib")
_LIB32_FOLDERS = ("/usr/lib/i386-linux-gnu", "/usr/lib32", "/usr/lib")
_BIN_FOLDERS = ("/usr/bin", "/usr/local/bin", "/bin")
#: Where libraries and programs go when a volume lies over every folder that they should go to.
_ELSEWHERE = "/opt/xpu"
_FLAGS = ldcache.flags_for(os.uname().machine)
_FLAGS_32 = ldcache.flags_for("i386")


class Layout(Value):
    """Where things go in one image."""

    lib: str = _LIB_FOLDERS[0]
    lib32: str = _LIB32_FOLDERS[0]
    bin: str = _BIN_FOLDERS[0]
    #: Whether `lib` is none of the folders that this image's loader searches without a cache.
    needs_cache: bool = False


def layout_of(root: Root) -> Layout:
    """The layout of the image in `root`: libraries go into the folder of its C library, or where that would
    be.

    Nothing is written into a volume: if one covers a folder, the next folder is taken.
    """
    lib, needs_cache = _folder(root, _LIB_FOLDERS)
    lib32, _ = _folder(root, _LIB32_FOLDERS)
    programs = next((folder for folder in _BIN_FOLDERS if root.takes_files(folder)), f"{_ELSEWHERE}/bin")
    return Layout(lib, lib32, programs, needs_cache)


def _folder(root: Root, folders: tuple[str, ...]) -> tuple[str, bool]:
    """The folder for libraries, and whether loaders find them there by the cache only."""
    for folder in folders:
        # /lib is a link to usr/lib in new images, a folder of its own in old ones.
        if root.exists(f"{folder}/libc.so.6") or root.exists(f"{folder.removeprefix('/usr')}/libc.so.6"):
            best = folder
            break
    else:
        best = next((folder for folder in folders if root.exists(folder)), folders[0])
    if root.takes_files(best):
        return best, False
    others = (folder for folder in folders if root.exists(folder) and root.takes_files(folder))
    return next(others, f"{_ELSEWHERE}/lib"), True


class Plan(Value):
    """The parts of one container's plan that do not depend on its image."""

    nodes: tuple[DeviceNode, ...]
    #: The host's files that are mounted.
    files: tuple[Library, ...]
    #: The folder of the host's own device nodes.
    driver_root: str
    contributions: tuple[Contribution, ...] = ()

    def in_image(self, root: Root, spec: Spec | None) -> list[Operation]:
        """All operations, for the image in `root`, which is looked at here and nowhere else.

        `spec` says which programs run there; None: that is not known yet (`xpu explain` without a bundle).
        """
        layout = layout_of(root)
        views = [] if spec is None else [each.look(root, spec) for each in self.contributions]
        operations: list[Operation] = list(self.nodes)
        entries: list[ldcache.Entry] = []
        for file in self.files:
            instead = [operation for view in views if (operation := view.instead_of(file)) is not None]
            if instead:
                operations += instead
            elif file.kind in ("lib", "lib32"):
                folder, flags = (layout.lib, _FLAGS) if file.kind == "lib" else (layout.lib32, _FLAGS_32)
                operations += _library(file, folder, root)
                # `libcuda.so` too, as ldconfig does: an image's cache may name another, such as a stub.
                names = sorted({file.name, *file.links})
                entries += [ldcache.Entry(name, f"{folder}/{name}", flags) for name in names]
            elif file.kind == "bin":
                operations.append(Mount(file.source, f"{layout.bin}/{file.name}"))
            else:
                executable, writable = file.kind == "aside", file.kind == "shared"
                operations.append(Mount(file.source, file.name, executable, writable))
        for view in views:
            operations += view.covers(layout.lib, self.files, operations)
            entries = view.cache(entries)
        if entries:
            operations.append(LinkerCache(tuple(entries), layout.needs_cache))
        return operations


def build(
    inventory: Inventory,
    slices: tuple[Slice, ...],
    capabilities: tuple[str, ...],
    contributions: tuple[Contribution, ...] = (),
) -> Plan:
    """The plan for a container with these slices and driver capabilities; DeviceError if a device is gone."""
    every = tuple(library for driver in _drivers_of(inventory, slices) for library in driver.libraries)
    files = [library for library in every if library.capability in ("", *capabilities)]
    for contribution in contributions:
        files = contribution.files(files, every)
    nodes = _device_nodes(inventory, slices, capabilities)
    return Plan(tuple(nodes), tuple(files), inventory.root, contributions)


def _drivers_of(inventory: Inventory, slices: tuple[Slice, ...]) -> list[Driver]:
    """The drivers of the granted devices; of a container that asks for libraries only, all that there are."""
    granted = {slice_.device_uuid for slice_ in slices}
    vendors = {device.vendor for device in inventory.devices if device.uuid in granted}
    return [driver for driver in inventory.drivers if driver.vendor in vendors or not slices]


def _device_nodes(
    inventory: Inventory, slices: tuple[Slice, ...], capabilities: tuple[str, ...]
) -> list[DeviceNode]:
    """The nodes of the granted devices and those that all devices share; none for no device."""
    if not slices:
        return []
    nodes = [
        node
        for driver in _drivers_of(inventory, slices)
        for capability, node in driver.common_nodes
        if capability in ("", *capabilities)
    ]
    by_uuid = {device.uuid: device for device in inventory.devices}
    for slice_ in slices:
        device = by_uuid.get(slice_.device_uuid)
        if device is None or not device.nodes:
            raise DeviceError(
                f"device {slice_.device_uuid} was granted and is gone", "see `xpu devices`, then start again"
            )
        nodes += device.nodes
    return [DeviceNode(node) for node in dict.fromkeys(nodes)]


def _library(library: Library, folder: str, root: Root) -> list[Operation]:
    operations: list[Operation] = [Mount(library.source, f"{folder}/{library.name}")]
    for link in library.links:
        path = f"{folder}/{link}"
        if _is_file(root, path):
            # The image brings a file of that name (a stub, another driver's library): cover it.
            operations.append(Mount(library.source, path))
        else:
            operations.append(Link(path, library.name))
    return operations


def _is_file(root: Root, path: str) -> bool:
    try:
        return stat.S_ISREG(root.stat(path, follow_symlinks=False).st_mode)
    except OSError:
        return False
