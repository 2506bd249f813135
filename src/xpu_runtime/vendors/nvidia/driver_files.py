"""The files of an NVIDIA driver: which there are below a driver root, and which a container gets.

Libraries are found through the driver root's own ld cache, as the driver's installer left it, and belong to a
capability by their names (the reference runtime's lists; see the driver's README, "Listing of installed
components"). Names end in the driver's version, so that a library of another driver lying about is never
taken. Where they go in a container is delivery's to know.
"""

from __future__ import annotations

import os

from xpu_runtime.linux import ldcache
from xpu_runtime.vendors.inventory import Library

#: Library names up to ".so", by capability.
LIBRARIES = {
    "utility": ("libnvidia-ml", "libnvidia-cfg"),
    "compute": (
        "libcuda",
        "libcudadebugger",
        "libnvidia-opencl",
        "libnvidia-ptxjitcompiler",
        "libnvidia-nvvm",
        "libnvidia-nvvm70",
        "libnvidia-gpucomp",
        "libnvidia-allocator",
        "libnvidia-pkcs11",
        "libnvidia-pkcs11-openssl3",
        "libnvidia-sandboxutils",
    ),
    "video": ("libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow", "libvdpau_nvidia"),
    "graphics": (
        "libEGL_nvidia",
        "libGLESv1_CM_nvidia",
        "libGLESv2_nvidia",
        "libGLX_nvidia",
        "libnvidia-cbl",
        "libnvidia-egl-gbm",
        "libnvidia-egl-wayland",
        "libnvidia-eglcore",
        "libnvidia-fbc",
        "libnvidia-glcore",
        "libnvidia-glsi",
        "libnvidia-glvkspirv",
        "libnvidia-present",
        "libnvidia-rtcore",
        "libnvidia-tls",
        "libnvidia-vksc-core",
        "libnvidia-wayland-client",
        "libnvoptix",
    ),
    "display": ("libnvidia-gtk2", "libnvidia-gtk3", "libnvidia-xcb"),
    "ngx": ("libnvidia-ngx",),
}

BINARIES = {
    "utility": ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"),
    "compute": ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
}

#: Data files and sockets, at the same place in the container as in the driver root.
FILES = {
    "graphics": (
        "etc/vulkan/icd.d/nvidia_icd.json",
        "usr/share/vulkan/icd.d/nvidia_icd.json",
        "etc/vulkan/implicit_layer.d/nvidia_layers.json",
        "usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
        "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    ),
}
SOCKETS = {
    # The simulated driver's socket; a real driver is reached through its device nodes.
    "": ("run/nvidia-sim",),
    "utility": ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket"),
}

_BIN_FOLDERS = ("usr/bin", "usr/sbin", "usr/local/bin", "usr/lib/nvidia/current", "bin")
_MAX_CACHE = 64 << 20


class DriverFiles:
    """The driver files below one root."""

    def __init__(self, root: str, cache: str, entries: list[ldcache.Entry]) -> None:
        self.root = root
        self.cache = cache
        self._native = ldcache.flags_for(os.uname().machine)
        self._entries = entries

    def path_of(self, soname: str) -> str | None:
        """The host path of the library that the driver root's loader would take for `soname`."""
        for entry in self._entries:
            if entry.soname == soname and entry.flags == self._native:
                path = self._resolve(entry.path)
                if path is not None:
                    return path
        return None

    def _resolve(self, path: str) -> str | None:
        """The regular file at `path` of the driver root, as a host path; links stay below the root."""
        host = path
        for _ in range(40):
            host = os.path.join(self.root, path.lstrip("/"))
            if not os.path.islink(host):
                break
            path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(host)))
        host = os.path.realpath(host) if self.root == "/" else host
        return host if os.path.isfile(host) else None

    def select(self, version: str) -> list[Library]:
        """Every file of driver `version`, each with its capability."""
        return [*self._libraries(version), *self._others()]

    def _libraries(self, version: str) -> list[Library]:
        sources: dict[tuple[str, str], tuple[str, set[str]]] = {}
        for entry in self._entries:
            stem, separator, _ = entry.soname.partition(".so")
            capability = _CAPABILITY_OF.get(stem) if separator else None
            if capability is None or entry.hwcaps:
                continue
            kind = "lib" if entry.flags == self._native else "lib32" if entry.flags == _FLAGS_32 else None
            path = self._resolve(entry.path)
            if kind is None or path is None or not _is_of(version, os.path.basename(path)):
                continue
            sources.setdefault((kind, path), (capability, set()))[1].add(entry.soname)
        found = []
        for (kind, path), (capability, sonames) in sorted(sources.items()):
            name = os.path.basename(path)
            links = sonames | _development_links(path, name)
            links.discard(name)
            found.append(
                Library(kind, path, name, "compat32" if kind == "lib32" else capability, tuple(sorted(links)))
            )
        return found

    def _others(self) -> list[Library]:
        found = []
        for capability, names in BINARIES.items():
            for name in names:
                for folder in _BIN_FOLDERS:
                    path = self._resolve(os.path.join("/", folder, name))
                    if path is not None:
                        found.append(Library("bin", path, name, capability))
                        break
        for kind, table in (("file", FILES), ("socket", SOCKETS)):
            for capability, places in table.items():
                for place in places:
                    path = os.path.join(self.root, place)
                    if os.path.exists(path):
                        found.append(Library(kind, path, "/" + place, capability))
        return found


_FLAGS_32 = ldcache.flags_for("i386")
_CAPABILITY_OF = {stem: capability for capability, stems in LIBRARIES.items() for stem in stems}


def _is_of(version: str, name: str) -> bool:
    # Some parts of the driver have versions of their own (libnvidia-egl-gbm.so.1.1.2).
    return name.endswith(version) or name.startswith(
        ("libnvidia-egl-", "libnvidia-pkcs11", "libnvidia-nvvm70")
    )


def _development_links(path: str, name: str) -> set[str]:
    """`libcuda.so` beside the library: programs that dlopen it without a version need it."""
    plain = name.partition(".so")[0] + ".so"
    beside = os.path.join(os.path.dirname(path), plain)
    return {plain} if os.path.islink(beside) else set()


def find(root: str) -> DriverFiles:
    """The driver files below `root`; none where it has no readable ld cache."""
    cache = os.path.join(root, "etc/ld.so.cache")
    try:
        with open(cache, "rb") as file:
            entries = ldcache.parse(file.read(_MAX_CACHE))
    except (OSError, ValueError):
        entries = []
    return DriverFiles(root, cache, entries)
