"""Where the libraries of NVIDIA's driver lie below a driver root: the folders, in the order that decides.

The loader's cache of the driver root comes first, as there the driver's installer has put them. Not every
host has them in it: GKE's nodes, containerised drivers and many images keep them in a folder of their own,
which only LD_LIBRARY_PATH names. A folder is taken if libnvidia-ml.so.1 is in it, and if nobody but root
could have put it there: its files are mounted into containers, and opened by root.
"""

from __future__ import annotations

import os
import stat

from xpu_runtime import paths
from xpu_runtime.linux import elf, ldcache
from xpu_runtime.value import Value

#: Without it no card is found.
NVML = "libnvidia-ml.so.1"
_MAX_CACHE = 64 << 20
#: How the names of the driver's libraries begin: /usr/lib has thousands of others.
_STARTS = ("libnvidia", "libcuda", "libnv", "libEGL_nv", "libGL", "libvdpau_nv")
_MACHINE = os.uname().machine
_MULTIARCH = f"{_MACHINE}-linux-gnu"

#: Folders below the driver root that belong together: the libraries are in the first, those for other
#: programs (32 bits) in the others.
PLACES = (
    # Images for GKE, and NVIDIA's older device plugins.
    ("usr/local/nvidia/lib64", "usr/local/nvidia/lib"),
    ("usr/local/nvidia/lib",),
    # GKE's installers for Container-Optimized OS and for Ubuntu.
    ("home/kubernetes/bin/nvidia/lib64", "home/kubernetes/bin/nvidia/lib"),
    ("opt/nvidia/lib64", "opt/nvidia/lib"),
    ("run/opengl-driver/lib", "run/opengl-driver-32/lib"),  # NixOS
    ("usr/lib/wsl/lib",),
    # Where packages and NVIDIA's installer put them, for a host without a loader's cache.
    (f"usr/lib/{_MULTIARCH}", "usr/lib/i386-linux-gnu"),
    (f"usr/lib/{_MULTIARCH}/nvidia/current", "usr/lib/i386-linux-gnu/nvidia/current"),
    ("usr/lib64", "usr/lib"),
)
#: A driver root of its own below `/`: what the driver container of NVIDIA's GPU operator mounts.
DRIVER_CONTAINER = "/run/nvidia/driver"


class Found(Value):
    """The libraries of one search, and where they came from."""

    #: Links lead no further than here.
    root: str
    entries: tuple[ldcache.Entry, ...]
    #: The loader's cache of `root`, also where it has no driver.
    cache: str
    #: Whether the loader's cache has them: then programs of the host find them, too.
    in_cache: bool = False
    #: Whether only this process's LD_LIBRARY_PATH led there: an engine's processes find no driver, or the one
    #: in `engines_folder`.
    by_caller: bool = False
    engines_folder: str = ""
    #: Where there is no driver: a folder that has one and is not taken, and why.
    refused_folder: str = ""
    refused: str = ""

    @property
    def folder(self) -> str:
        """The folder of the driver's libraries, as a host path; "" where there is no driver."""
        return os.path.dirname(_nvml(self.root, self.entries) or "")

    @property
    def missing(self) -> str:
        """Where there is no driver: where was looked, as a clause for people."""
        more = " nor in LD_LIBRARY_PATH" if paths.caller_library_path() and self.root == "/" else ""
        known = os.path.join(self.root, PLACES[0][0])
        text = f"{NVML} is neither in {self.cache}{more} nor in {known} and the like"
        return (
            f"{text}; {self.refused_folder} has it and is not taken, as {self.refused}"
            if self.refused
            else text
        )


def search(root: str) -> Found:
    """The driver's libraries below `root`; without NVML's where there is no driver."""
    cache = os.path.join(root, "etc/ld.so.cache")
    cached = _cached(cache)
    if _has_nvml(root, cached):
        return Found(root, cached, cache, in_cache=True)
    engines = _known(Found(root, cached, cache))
    # What the caller's variable names are folders of the host.
    entries = _entries(root, paths.caller_library_path()) if root == "/" else ()
    nvml = _nvml(root, entries)
    if nvml is None or nvml == _nvml(engines.root, engines.entries):
        return engines
    why = _why_not_trusted(root, entries)
    if why:
        return engines if engines.folder else _refused(engines, nvml, why)
    return Found(root, entries, cache, by_caller=True, engines_folder=engines.folder)


def _known(none: Found) -> Found:
    """In the places that hosts are known for; `none`, with what was refused, where no driver is there."""
    root = none.root
    for place in PLACES:
        entries = _entries(root, place)
        nvml = _nvml(root, entries)
        if nvml is not None:
            why = _why_not_trusted(root, entries)
            if not why:
                return Found(root, entries, none.cache)
            none = none if none.refused else _refused(none, nvml, why)
    if root == "/" and not why_not_trusted(DRIVER_CONTAINER):
        found = search(DRIVER_CONTAINER)
        if found.folder:
            return found
    return none


def _refused(found: Found, nvml: str, why: str) -> Found:
    return found.replace(refused_folder=os.path.dirname(nvml), refused=why)


def resolve(root: str, path: str) -> str | None:
    """The regular file at `path` of the driver root, as a host path; links stay below the root."""
    host = path
    for _ in range(40):
        host = os.path.join(root, path.lstrip("/"))
        if not os.path.islink(host):
            break
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(host)))
    host = os.path.realpath(host) if root == "/" else host
    return host if os.path.isfile(host) else None


def why_not_trusted(path: str) -> str:
    """Why others than root or the caller could have written that file or folder; "" if none could."""
    at = os.path.realpath(path)
    # In a folder with the sticky bit (/tmp) others cannot replace what is root's, and can add files.
    ignored = 0
    while True:
        try:
            status = os.stat(at)
            is_fixed = os.statvfs(at).f_flag & os.ST_RDONLY
        except OSError as error:
            return f"{at}: {error.strerror}"
        writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & ignored
        if not is_fixed and (status.st_uid not in (0, os.geteuid()) or writable):
            return f"{at} can be written by others than root"
        if at == "/":
            return ""
        at, ignored = os.path.dirname(at), stat.S_ISVTX


def _cached(cache: str) -> tuple[ldcache.Entry, ...]:
    try:
        with open(cache, "rb") as file:
            return tuple(ldcache.parse(file.read(_MAX_CACHE)))
    except (OSError, ValueError):
        return ()


def _has_nvml(root: str, entries: tuple[ldcache.Entry, ...]) -> bool:
    return _nvml(root, entries) is not None


def _nvml(root: str, entries: tuple[ldcache.Entry, ...]) -> str | None:
    flags = ldcache.flags_for(_MACHINE)
    paths_of_it = (entry.path for entry in entries if (entry.soname, entry.flags) == (NVML, flags))
    return next((path for path in (resolve(root, each) for each in paths_of_it) if path), None)


def _why_not_trusted(root: str, entries: tuple[ldcache.Entry, ...]) -> str:
    """Of the first file that is not."""
    whys = (why_not_trusted(path) for entry in entries if (path := resolve(root, entry.path)))
    return next(filter(None, whys), "")


def _entries(root: str, folders: tuple[str, ...]) -> tuple[ldcache.Entry, ...]:
    """What a loader's cache would have of the libraries in these folders."""
    entries = []
    for folder in folders:
        try:
            names = os.listdir(os.path.join(root, folder.lstrip("/")))
        except OSError:
            continue
        # The newest first, where the files of two drivers lie there.
        for name in sorted(names, reverse=True):
            if name.startswith(_STARTS) and ".so" in name:
                entries += _of_file(root, os.path.join("/", folder, name))
    return tuple(entries)


def _of_file(root: str, path: str) -> list[ldcache.Entry]:
    """An entry for the file's own name, and one for its SONAME, whose link may be missing."""
    host = resolve(root, path)
    if host is None:
        return []
    try:
        fd = os.open(host, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        machine, soname = elf.elf_machine(fd), elf.elf_soname(fd)
    finally:
        os.close(fd)
    if not machine:
        return []
    flags = ldcache.flags_for(machine)
    names = dict.fromkeys((os.path.basename(path), soname))
    return [ldcache.Entry(name, path, flags) for name in names if name]
