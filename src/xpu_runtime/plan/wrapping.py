"""Which files a container gets whose memory limit the wrapper libraries hold.

Our libraries take the place of the driver's under all of their names, and the driver's lie aside at the
path that ours name as what they need. Driver files that would go round them stay away.
"""

from __future__ import annotations

import os
import stat

from xpu_runtime.devices.inventory import Library
from xpu_runtime.linux.rootfs import Root
from xpu_runtime.plan.operations import Mount
from xpu_runtime.quota import library, pages

#: Images for newer CUDA bring a libcuda of their own there, and put it first (the cuda-compat packages).
_COMPAT = "/usr/local"


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


def over_the_images_own(root: Root) -> list[Mount]:
    """Mounts of the wrapper over each libcuda that the image has for CUDA's forward compatibility."""
    found = []
    for name in _names(root, _COMPAT):
        folder = f"{_COMPAT}/{name}/compat"
        if name.startswith("cuda") and not _is_link(root, f"{_COMPAT}/{name}"):
            found += [
                Mount(library.wrapper("libcuda.so"), f"{folder}/{file}")
                for file in _names(root, folder)
                if file.startswith("libcuda.so") and not _is_link(root, f"{folder}/{file}")
            ]
    return found


def _names(root: Root, folder: str) -> list[str]:
    try:
        return root.listdir(folder)
    except OSError:
        return []


def _is_link(root: Root, path: str) -> bool:
    return stat.S_ISLNK(root.stat(path, follow_symlinks=False).st_mode)
