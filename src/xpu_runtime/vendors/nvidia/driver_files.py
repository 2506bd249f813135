"""The files of an NVIDIA driver below a driver root, and those for a container.

search.py finds the libraries' folder; their names assign them to capabilities (the reference runtime's lists;
see the driver's README, "Listing of installed components"). Names end in the driver's version, so that a
library of another driver lying about is never taken. Programs and data files lie beside the libraries, or
where distributions put them. delivery/ knows their places in a container.
"""

from __future__ import annotations

import os

from xpu_runtime.linux import ldcache, trusted
from xpu_runtime.vendors.inventory import Library
from xpu_runtime.vendors.nvidia.search import MACHINE, Found, resolve, search

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


class DriverFiles(Found):
    """The driver files of one search."""

    def program(self, name: str) -> str | None:
        """The host path of one of the driver's programs. A program beside the libraries that were found comes
        first. Root runs them, so only root may have put them there."""
        for folder in self._beside():
            path = self._judged(f"{folder}/{name}")
            if path is not None:
                return path
        for folder in _BIN_FOLDERS:
            path = self._judged(os.path.join(self.root, folder, name))
            if path is not None:
                return path
        return None

    def programs(self) -> list[str]:
        """The host paths of the existing programs."""
        names = (name for group in BINARIES.values() for name in group)
        return [path for path in map(self.program, names) if path is not None]

    def _beside(self) -> list[str]:
        """/usr/local/nvidia/bin for /usr/local/nvidia/lib64, /usr/bin for /usr/lib/x86_64-linux-gnu; and the
        folder of the libraries itself (WSL's)."""
        if not self.folder:
            return []
        above = os.path.dirname(self.folder)
        is_multiarch = os.path.basename(above) == "lib"
        return [self.folder, f"{above}/bin", *([f"{os.path.dirname(above)}/bin"] if is_multiarch else [])]

    def _judged(self, path: str) -> str | None:
        """The regular file at a host path, as a host path."""
        try:
            real = trusted.real("/" + os.path.relpath(path, self.root), self.root)
        except (trusted.UntrustedError, OSError):
            return None
        host = os.path.join(self.root, real.lstrip("/"))
        return host if os.path.isfile(host) else None

    def select(self, version: str) -> list[Library]:
        """Every file of driver `version`, each with its capability."""
        return [*self._libraries(version), *self._others()]

    def _libraries(self, version: str) -> list[Library]:
        native = ldcache.flags_for(MACHINE)
        sources: dict[tuple[str, str], tuple[str, set[str]]] = {}
        for entry in self.entries:
            stem, separator, _ = entry.soname.partition(".so")
            capability = _CAPABILITY_OF.get(stem) if separator else None
            if capability is None or entry.hwcaps:
                continue
            kind = "lib" if entry.flags == native else "lib32" if entry.flags == _FLAGS_32 else None
            path = resolve(self.root, entry.path)
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
                path = self.program(name)
                if path is not None:
                    found.append(Library("bin", path, name, capability))
        for kind, table in (("file", FILES), ("socket", SOCKETS)):
            for capability, places in table.items():
                for place in places:
                    path = self._data(place)
                    if path is not None:
                        found.append(Library(kind, path, "/" + place, capability))
        return found

    def _data(self, place: str) -> str | None:
        """For usr/share the driver's own folder comes first, if it has one."""
        if self.folder and place.startswith("usr/share/"):
            own = self._judged(f"{os.path.dirname(self.folder)}/{place[4:]}")
            if own is not None:
                return own
        path = os.path.join(self.root, place)
        return path if os.path.exists(path) else None


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
    """The driver files below `root`; none where no driver is found there."""
    return DriverFiles(**search(root).as_dict())
