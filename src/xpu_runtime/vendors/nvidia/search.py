"""Where the libraries of NVIDIA's driver lie below a driver root: the folders, in the order that decides.

The loader's cache of the driver root comes first, as there the driver's installer has put them. Not every
host has them in it: GKE's nodes, containerised drivers and many images keep them in a folder of their own,
which only LD_LIBRARY_PATH names. A folder is taken if libnvidia-ml.so.1 is in it, and if only root could have
put it there (linux/trusted.py): its files are mounted into containers, and loaded by root.
"""

from __future__ import annotations

import os

from xpu_runtime import paths
from xpu_runtime.linux import elf, files, ldcache, trusted
from xpu_runtime.value import Value

#: Without it no card is found.
NVML = "libnvidia-ml.so.1"
_MAX_CACHE = 64 << 20
#: How the names of the driver's libraries begin: /usr/lib has thousands of others.
_STARTS = ("libnvidia", "libcuda", "libnv", "libEGL_nv", "libGL", "libvdpau_nv")
MACHINE = os.uname().machine
_MULTIARCH = f"{MACHINE}-linux-gnu"

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
#: A driver root of its own below `/`: the mount of the driver container of NVIDIA's GPU operator.
DRIVER_CONTAINER = "/run/nvidia/driver"


class Found(Value):
    """The libraries of one search, and where they came from."""

    #: Links lead no further than here.
    root: str
    entries: tuple[ldcache.Entry, ...]
    #: The loader's cache of `root`, even if it has no driver.
    cache: str
    #: Whether the loader's cache has them: then programs of the host find them, too.
    in_cache: bool = False
    #: Whether only this process's LD_LIBRARY_PATH led there: an engine's processes find no driver, or the one
    #: in `engines_folder`.
    by_caller: bool = False
    engines_folder: str = ""
    #: Where there is no driver: a folder with one that is not used, and why.
    refused_folder: str = ""
    refused: str = ""

    @property
    def folder(self) -> str:
        """The folder of the driver's libraries, as a host path; "" where there is no driver."""
        return os.path.dirname(self.path_of(NVML) or "")

    def path_of(self, soname: str) -> str | None:
        """The host path of the library that the driver root's loader would take for `soname`."""
        native = ldcache.flags_for(MACHINE)
        paths_of_it = (
            entry.path for entry in self.entries if (entry.soname, entry.flags) == (soname, native)
        )
        return next((path for path in (resolve(self.root, each) for each in paths_of_it) if path), None)

    @property
    def missing(self) -> str:
        """Where there is no driver: where was looked, as a clause for people."""
        more = " nor in LD_LIBRARY_PATH" if paths.caller_library_path() and self.root == "/" else ""
        known = os.path.join(self.root, PLACES[0][0])
        text = f"{NVML} is neither in {self.cache}{more} nor in {known} and the like"
        if not self.refused:
            return text
        return f"{text}; {self.refused_folder} has it but is not used: {self.refused}"


def search(root: str) -> Found:
    """The driver's libraries below `root`; without NVML's where there is no driver."""
    cache = os.path.join(root, "etc/ld.so.cache")
    found = Found(root, _cached(cache), cache, in_cache=True)
    if found.folder:
        return found
    engines = _known(found.replace(in_cache=False))
    if root != "/" or not paths.caller_library_path():
        return engines
    # LD_LIBRARY_PATH names folders of the host.
    callers = _in_folders(Found(root, (), cache), paths.caller_library_path())
    if not callers.folder:
        return engines if engines.folder or not callers.refused else callers
    if callers.folder == engines.folder:
        return engines
    return callers.replace(by_caller=True, engines_folder=engines.folder)


def _known(none: Found) -> Found:
    """Looks in hosts' usual folders; `none`, with the refused folders, if no driver is there."""
    for place in PLACES:
        found = _in_folders(none, place)
        if found.folder:
            return found
        none = none if none.refused else found
    if none.root != "/" or trusted.may_hang(DRIVER_CONTAINER):
        return none
    found = _of_container(none)
    return found if found.folder else none


def _of_container(none: Found) -> Found:
    """In the root of a driver container, by its own loader's cache first; its files are judged as others'."""
    root = DRIVER_CONTAINER
    cache = os.path.join(root, "etc/ld.so.cache")
    try:
        trusted.real(cache)
        entries = [
            entry.replace(path=trusted.real(entry.path, root))
            for entry in _cached(cache)
            if entry.soname.startswith(_STARTS)
        ]
    except (trusted.UntrustedError, OSError):
        entries = []
    found = Found(root, tuple(entries), cache)
    if found.folder:
        return found
    return _known(Found(root, (), cache)) if os.path.isdir(root) else none


def _in_folders(none: Found, folders: tuple[str, ...]) -> Found:
    """The libraries of these folders as a loader's cache would have them. `none`, with the reason, where NVML
    is not among them or others could have put a file there."""
    entries: list[ldcache.Entry] = []
    for folder in folders:
        inside, host = os.path.join("/", folder), os.path.join(none.root, folder.lstrip("/"))
        if trusted.may_hang(host):
            continue
        try:
            real = trusted.real(inside, none.root)
            names = os.listdir(os.path.join(none.root, real.lstrip("/")))
            # The newest first, if the files of two drivers are there.
            for name in sorted(names, reverse=True):
                if name.startswith(_STARTS) and ".so" in name:
                    entries += _of_file(none.root, f"{real}/{name}")
        except trusted.UntrustedError as error:
            if os.path.lexists(f"{host}/{NVML}"):
                return none.replace(refused_folder=host, refused=str(error))
        except OSError:
            continue  # there is no such folder, or it cannot be read
    found = none.replace(entries=tuple(entries))
    return found if found.folder else none


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


def _cached(cache: str) -> tuple[ldcache.Entry, ...]:
    try:
        return tuple(ldcache.parse(files.read(cache, _MAX_CACHE)))
    except (OSError, ValueError):
        return ()


def _of_file(root: str, path: str) -> list[ldcache.Entry]:
    """An entry for the file's own name, and one for its SONAME, whose link may be missing. The path is that
    of the file itself, so that no link is followed again. UntrustedError."""
    try:
        real = trusted.real(path, root)
        fd = os.open(os.path.join(root, real.lstrip("/")), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        machine, soname = elf.elf_machine(fd), elf.elf_soname(fd)
    except OSError:
        return []
    finally:
        os.close(fd)
    if not machine:
        return []
    name = os.path.basename(path)
    # CUDA's stubs, which have no version in their names, have the driver's SONAME.
    names = (name, soname) if f"{soname.partition('.so')[0]}.so." in os.path.basename(real) else (name,)
    flags = ldcache.flags_for(machine)
    return [ldcache.Entry(each, real, flags) for each in dict.fromkeys(names) if each]
