"""Which files a container gets whose memory limit the wrapper libraries hold.

Our libraries take the place of the driver's under all of their names, and the driver's lie aside at the
path that ours name as what they need. Driver files that would go round them stay away.
"""

from __future__ import annotations

import os

from xpu_runtime.devices.inventory import Library
from xpu_runtime.linux import loader
from xpu_runtime.linux.rootfs import Root
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.plan.operations import Link, Mount, Operation
from xpu_runtime.quota import library, pages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.oci.spec import Spec

#: CUDA's toolkits are there, each as `cuda` or `cuda-12.8`.
_TOOLKITS = "/usr/local"
#: Where images keep a driver library besides.
_COMPAT = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/opt/conda/cuda-compat")


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


def over_the_images_own(
    root: Root, spec: Spec, folder: str, libraries: list[Library], planned: list[Operation]
) -> list[Operation]:
    """What covers each libcuda and libnvidia-ml that the image's loader may find, but for those of `planned`.

    `libraries` are those of `wrap`, which the plan puts into `folder` of the image. ApplyError where the
    image has more folders of libraries than can be looked through.
    """
    reals = tuple(library.real(stem) for stem in library.WRAPPED)
    search = loader.Search(root, library.WRAPPED, _programs(spec), reals)
    for top in _compat_folders(search):
        search.folder(top, deep=True)
    search.everywhere()
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
    return [f"{_TOOLKITS}/{name}/compat" for name in cuda] + list(_COMPAT)
