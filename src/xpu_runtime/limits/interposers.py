"""The interposers' files in a container, and the handling of the image's own libraries.

Our libraries take the place of the driver's under all of their names, and the driver's lie aside at the path
that the DT_NEEDED of ours names. Driver files that would go round them are left out. This module knows no
limits, and of grants only the folder with the pages.
"""

from __future__ import annotations

import os

from xpu_runtime.delivery.contribution import Contribution, InImage
from xpu_runtime.delivery.operations import ImageFile, Link, Mount
from xpu_runtime.limits import interposed, pages
from xpu_runtime.linux import ldcache, loader
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.vendors.inventory import Library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.delivery.operations import Operation
    from xpu_runtime.ledger.grants import Slice
    from xpu_runtime.linux.rootfs import Root
    from xpu_runtime.oci.spec import Spec
    from xpu_runtime.vendors.inventory import Inventory

#: The path of the real libcuda in a container, which the DT_NEEDED of its interposer names.
REAL_CUDA = interposed.real("libcuda.so")
_FLAGS = ldcache.flags_for(os.uname().machine)
#: CUDA's toolkits are there, each as `cuda` or `cuda-12.8`.
_TOOLKITS = "/usr/local"
#: Brands of the cards that take a libcuda newer than their driver, as NVML tells them.
_FOR_DATA_CENTERS = ("tesla", "nvidia")
#: A libcuda has seven other libraries beside it (cuda-compat-13-0).
_PARTS = 50
#: Where images keep a driver library besides.
_COMPAT = (
    *("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/opt/conda/cuda-compat"),
    "/run/opengl-driver/lib",  # NixOS
)
#: NVIDIA's HPC SDK is there, in folders named after its version and CUDA's.
_HPC_SDK = f"/opt/nvidia/hpc_sdk/Linux_{os.uname().machine}"


class Interposers(Contribution):
    """The interposers and the pages in `folder` on the host, for a container with `slices`."""

    def __init__(self, inventory: Inventory, slices: tuple[Slice, ...], folder: str) -> None:
        self._inventory = inventory
        self._slices = slices
        self._folder = folder

    def files(self, asked: list[Library], every: tuple[Library, ...]) -> list[Library]:
        found: list[Library] = []
        for file in asked:
            stem = _stem(file)
            if stem is not None:
                found.append(file.replace(source=interposed.interposer(stem)))
            elif not interposed.can_go_round(file):
                found.append(file)
        for file in every:
            stem = _stem(file)
            if stem is not None:
                # NVML too where the container asks for no `utility`: libcuda's interposer asks it what is in
                # use.
                found.append(Library("aside", file.source, interposed.real(stem), file.capability))
        for kind, name in (("page", pages.QUOTA), ("shared", pages.USAGE)):
            found.append(Library(kind, os.path.join(self._folder, name), f"{interposed.FOLDER}/{name}", ""))
        return found

    def look(self, root: Root, spec: Spec) -> InImage:
        search = search_image(root, spec)
        newer = None
        if oci_spec.has_namespace(spec, "mount"):  # otherwise the low-level runtime mounts it by its name
            newer = newer_cuda(search, self._inventory, self._slices)
        return _InImage(search, newer)


class _InImage(InImage):
    """`search` has found the image's own libraries, and `newer` is its libcuda to be interposed, if any."""

    def __init__(self, search: loader.Search, newer: str | None) -> None:
        self._search = search
        self._newer = newer

    def instead_of(self, file: Library) -> Operation | None:
        if self._newer is not None and file.name == REAL_CUDA:
            return ImageFile(self._newer, file.name)
        return None

    def covers(self, folder: str, files: tuple[Library, ...], planned: list[Operation]) -> list[Operation]:
        """Covers each library that was found, except those of `planned`."""
        taken = {one.destination for one in planned if isinstance(one, Mount)}
        links = {one.path for one in planned if isinstance(one, Link)}
        over: list[Operation] = [
            Mount(interposed.interposer(stem), path)
            for path, stem in sorted(self._search.files.items())
            if path not in taken
        ]
        # Only a link can lead to where the driver's own library will lie: it leads to the interposer instead.
        instead = {
            interposed.real(stem): f"{folder}/{file.name}"
            for file in files
            if (stem := _stem(file)) is not None
        }
        over += [
            Link(path, instead[hidden])
            for path, hidden in sorted(self._search.links.items())
            if path not in links and hidden in instead
        ]
        return over

    def cache(self, entries: list[ldcache.Entry]) -> list[ldcache.Entry]:
        if self._newer is None:
            return entries
        # Its parts are of its own version, and are asked for by the names that the driver's have.
        folder, names = os.path.dirname(self._newer), _parts_of(self._search, self._newer)
        kept = [entry for entry in entries if entry.soname not in names]
        return [*kept, *(ldcache.Entry(name, f"{folder}/{name}", _FLAGS) for name in names)]


def _stem(file: Library) -> str | None:
    return interposed.stem_of(file.name) if file.kind == "lib" else None


def search_image(root: Root, spec: Spec) -> loader.Search:
    """Each libcuda and libnvidia-ml that the image's loader may find, in its order, for programs of `spec`.

    ApplyError where the image has more folders of libraries than can be looked through.
    """
    reals = tuple(interposed.real(stem) for stem in interposed.INTERPOSED)
    search = loader.Search(root, interposed.INTERPOSED, _programs(spec), reals)
    search.everywhere()
    for top in _compat_folders(search):
        search.folder(top, deep=True)
    return search


def newer_cuda(search: loader.Search, inventory: Inventory, slices: tuple[Slice, ...]) -> str | None:
    """The image's libcuda for newer CUDA than the driver's, for the interposer to be in front of; None for
    none.

    As NVIDIA's own runtime does: where its major version is above the driver's. Cards that are not for data
    centers refuse it (CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE), and serve with the driver's own.
    """
    wanted = {slice_.device_uuid for slice_ in slices}
    cards = [device for device in inventory.devices if device.uuid in wanted]
    if not all(
        card.is_partition or inventory.facts(card).get("brand") in _FOR_DATA_CENTERS for card in cards
    ):
        return None
    newest: tuple[str, list[int]] | None = None
    for path in search.files:
        folder, _, name = path.rpartition("/")
        version = name.removeprefix("libcuda.so.").split(".")
        if "compat" not in folder.lower() or len(version) < 2 or not all(map(str.isdecimal, version)):
            continue
        numbers = [int(number) for number in version]
        if newest is None or (newest[0].rpartition("/")[0] == folder and newest[1] < numbers):
            newest = path, numbers
    major = inventory.driver(cards[0].vendor).version.partition(".")[0] if cards else ""
    return newest[0] if newest and major.isdecimal() and newest[1][0] > int(major) else None


def _parts_of(search: loader.Search, path: str) -> list[str]:
    """The other libraries in the folder of a libcuda of the image's, which go with it."""
    names = search.names(os.path.dirname(path))
    return [name for name in names if ".so." in name and not name.startswith(interposed.INTERPOSED)][:_PARTS]


def _programs(spec: Spec) -> loader.Programs:
    environment = oci_spec.environment_of(spec)
    return loader.Programs(environment, oci_spec.working_folder(spec), oci_spec.program(spec))


def _compat_folders(search: loader.Search) -> list[str]:
    """Where images keep a libcuda for newer CUDA; entry points may name it later."""
    cuda = [name for name in search.names(_TOOLKITS) if name.startswith("cuda")]
    return [
        *(f"{_TOOLKITS}/{name}/{folder}" for name in cuda for folder in ("compat", "lib64")),
        *_COMPAT,
        # Folders of conda's environments, which their activation scripts name.
        *(f"{prefix}/cuda-compat" for prefix in search.prefixes()),
        *(
            f"{_HPC_SDK}/{release}/cuda/{name}"
            for release in search.names(_HPC_SDK)
            for version in search.names(f"{_HPC_SDK}/{release}/cuda")
            for name in (f"{version}/compat", "compat")
        ),
    ]
