"""From a grant to a plan: which operations turn it into a working container.

Pure but for a look into the container's root folder, which decides where its loader expects libraries.
"""

from __future__ import annotations

import os
import stat

from xpu_runtime.devices.inventory import Inventory, Library
from xpu_runtime.errors import DeviceError
from xpu_runtime.ledger.grants import Slice
from xpu_runtime.linux import ldcache
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.plan.operations import DeviceNode, Link, LinkerCache, Mount, Operation, OwnFile
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
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


class Layout(Value):
    """Where things go in one image."""

    lib: str = _LIB_FOLDERS[0]
    lib32: str = _LIB32_FOLDERS[0]
    bin: str = _BIN_FOLDERS[0]
    #: Whether `lib` is none of the folders that this image's loader searches without a cache.
    needs_cache: bool = False


def layout_of(root: Root) -> Layout:
    """The layout of the image in `root`: libraries go where its C library is, or would be.

    Nothing is written into a volume: where one lies over a folder, the next one is taken.
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


def wanted(found: Inventory, capabilities: tuple[str, ...], pages: str | None) -> list[Library]:
    """The driver files that a container with these capabilities gets; `pages` as for `build`."""
    asked = [library for library in found.libraries if library.capability in ("", *capabilities)]
    if pages is None:
        return asked
    from xpu_runtime.plan import wrapping

    return wrapping.wrap(asked, found.libraries, pages)


def device_nodes(
    found: Inventory, slices: tuple[Slice, ...], capabilities: tuple[str, ...]
) -> list[DeviceNode]:
    """The nodes of the granted devices and those that all devices share; none for no device."""
    if not slices:
        return []
    nodes = [node for capability, node in found.common_nodes if capability in ("", *capabilities)]
    by_uuid = {device.uuid: device for device in found.devices}
    for part in slices:
        device = by_uuid.get(part.device_uuid)
        if device is None or not device.nodes:
            raise DeviceError(
                f"device {part.device_uuid} was granted and is gone", "see `xpu devices`, then start again"
            )
        nodes += device.nodes
    return [DeviceNode(node) for node in dict.fromkeys(nodes)]


def build(
    found: Inventory,
    slices: tuple[Slice, ...],
    capabilities: tuple[str, ...],
    root: Root,
    pages: str | None,
    spec: Spec | None,
) -> list[Operation]:
    """The plan for a container whose root folder is `root`.

    `pages` is the host's folder with the grant's pages where the wrapper libraries hold its limit. Then
    what programs of `spec` would find instead of ours is covered (None: the image is not known yet).
    """
    layout = layout_of(root)
    operations: list[Operation] = list(device_nodes(found, slices, capabilities))
    entries = []
    libraries = wanted(found, capabilities, pages)
    search, newer = None, None
    if pages is not None and spec is not None:
        from xpu_runtime.plan import wrapping

        search = wrapping.look(root, spec)
        if oci_spec.has_namespace(spec, "mount"):  # else the low-level runtime would mount it, by its name
            newer = wrapping.newer_cuda(search, found, slices)
    for library in libraries:
        if newer is not None and library.name == wrapping.REAL_CUDA:
            operations.append(OwnFile(newer, library.name))
        elif library.kind in ("lib", "lib32"):
            folder = layout.lib if library.kind == "lib" else layout.lib32
            operations += _library(library, folder, root)
            flags = _FLAGS if library.kind == "lib" else ldcache.flags_for("i386")
            # `libcuda.so` too, as ldconfig does: an image's cache may name another, such as a stub.
            names = sorted({library.name, *library.links})
            entries += [ldcache.Entry(name, f"{folder}/{name}", flags) for name in names]
        elif library.kind == "bin":
            operations.append(Mount(library.source, f"{layout.bin}/{library.name}"))
        else:
            executable, writable = library.kind == "aside", library.kind == "shared"
            operations.append(Mount(library.source, library.name, executable, writable))
    if search is not None:
        operations += wrapping.over_the_images_own(search, layout.lib, libraries, operations)
    if search is not None and newer is not None:
        # Its parts are of its own version, and are asked for by the names that the driver's have.
        folder, names = os.path.dirname(newer), wrapping.beside(search, newer)
        entries = [entry for entry in entries if entry.soname not in names]
        entries += [ldcache.Entry(name, f"{folder}/{name}", _FLAGS) for name in names]
    if entries:
        operations.append(LinkerCache(tuple(entries), layout.needs_cache))
    return operations


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
