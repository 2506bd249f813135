"""Which files a container gets whose memory limit the wrapper libraries hold.

Our libraries take the place of the driver's under all of their names, and the driver's lie aside at the
path that ours name as what they need. Driver files that would go round them stay away.
"""

from __future__ import annotations

import os

from xpu_runtime.devices.inventory import Inventory, Library
from xpu_runtime.ledger.grants import Slice
from xpu_runtime.linux import loader
from xpu_runtime.linux.rootfs import Root
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.plan.operations import Link, Mount, Operation
from xpu_runtime.quota import library, pages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.oci.spec import Spec

#: What the wrapper of libcuda names as what it needs.
REAL_CUDA = library.real("libcuda.so")
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


def wrap(libraries: list[Library], every: tuple[Library, ...], folder: str) -> list[Library]:
    """`libraries` with the wrappers in place; `every` is what the driver has, `folder` holds the pages."""
    wrapped: list[Library] = []
    for one in libraries:
        stem = _stem(one)
        if stem is not None:
            wrapped.append(one.replace(source=library.wrapper(stem)))
        elif not library.can_go_round(one):
            wrapped.append(one)
    for one in every:
        stem = _stem(one)
        if stem is not None:
            # NVML too where the container asks for no `utility`: libcuda's wrapper asks it what is in use.
            wrapped.append(Library("aside", one.source, library.real(stem), one.capability))
    for kind, name in (("page", pages.QUOTA), ("shared", pages.USAGE)):
        wrapped.append(Library(kind, os.path.join(folder, name), f"{library.FOLDER}/{name}", ""))
    return wrapped


def _stem(one: Library) -> str | None:
    if one.kind != "lib":
        return None
    return next((stem for stem in library.WRAPPED if library.is_wrapped(one.name, stem)), None)


def look(root: Root, spec: Spec) -> loader.Search:
    """Each libcuda and libnvidia-ml that the image's loader may find, in its order, for programs of `spec`.

    ApplyError where the image has more folders of libraries than can be looked through.
    """
    reals = tuple(library.real(stem) for stem in library.WRAPPED)
    search = loader.Search(root, library.WRAPPED, _programs(spec), reals)
    search.everywhere()
    for top in _compat_folders(search):
        search.folder(top, deep=True)
    return search


def newer_cuda(search: loader.Search, found: Inventory, slices: tuple[Slice, ...]) -> str | None:
    """The image's libcuda for newer CUDA than the driver's, for the wrapper to be in front of; None for none.

    As NVIDIA's own runtime does: where its major version is above the driver's. Cards that are not for data
    centers refuse it (CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE), and serve with the driver's own.
    """
    wanted = {part.device_uuid for part in slices}
    cards = [device for device in found.devices if device.uuid in wanted]
    if not all(card.is_mig or card.brand in _FOR_DATA_CENTERS for card in cards):
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
    major = found.driver_version.partition(".")[0]
    return newest[0] if newest and major.isdecimal() and newest[1][0] > int(major) else None


def beside(search: loader.Search, path: str) -> list[str]:
    """The other libraries in the folder of a libcuda of the image's, which go with it."""
    names = search.names(os.path.dirname(path))
    return [name for name in names if ".so." in name and not name.startswith(library.WRAPPED)][:_PARTS]


def over_the_images_own(
    search: loader.Search, folder: str, libraries: list[Library], planned: list[Operation]
) -> list[Operation]:
    """What covers each library that was found, but for those of `planned`.

    `libraries` are those of `wrap`, which the plan puts into `folder` of the image.
    """
    taken = {one.destination for one in planned if isinstance(one, Mount)}
    links = {one.path for one in planned if isinstance(one, Link)}
    over: list[Operation] = [
        Mount(library.wrapper(stem), path) for path, stem in sorted(search.files.items()) if path not in taken
    ]
    # Only a link can lead to where the driver's own library will lie: it leads to the wrapper instead.
    instead = {
        library.real(stem): f"{folder}/{one.name}"
        for one in libraries
        if one.kind == "lib" and (stem := _stem(one)) is not None
    }
    over += [
        Link(path, instead[hidden])
        for path, hidden in sorted(search.links.items())
        if path not in links and hidden in instead
    ]
    return over


def _programs(spec: Spec) -> loader.Programs:
    environment = oci_spec.environment_of(spec)
    return loader.Programs(environment, oci_spec.working_folder(spec), oci_spec.program(spec))


def _compat_folders(search: loader.Search) -> list[str]:
    """Where images keep a libcuda for newer CUDA; entry points may name it later."""
    cuda = [name for name in search.names(_TOOLKITS) if name.startswith("cuda")]
    return [
        *(f"{_TOOLKITS}/{name}/{folder}" for name in cuda for folder in ("compat", "lib64")),
        *_COMPAT,
        # Of conda's environments, whose scripts of activation name it.
        *(f"{prefix}/cuda-compat" for prefix in search.prefixes()),
        *(
            f"{_HPC_SDK}/{release}/cuda/{name}"
            for release in search.names(_HPC_SDK)
            for version in search.names(f"{_HPC_SDK}/{release}/cuda")
            for name in (f"{version}/compat", "compat")
        ),
    ]
