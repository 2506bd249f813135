"""The `library` backend: wrapper libraries in the container hold a memory limit, on any driver from R470 on.

Instead of the driver's libcuda.so.1 and libnvidia-ml.so.1 a container finds ours (native/libxpu), which
count what its processes allocate and refuse what would pass the limit. Soft: a program that means to can go
round them. The limit stands in a page that the container cannot write (pages.py, folders.py).
"""

from __future__ import annotations

import os

from xpu_runtime import paths
from xpu_runtime.devices.inventory import Device, Inventory, Library
from xpu_runtime.ledger.grants import Slice

NAME = "library"
STRENGTH = "soft"

#: Where pages and real libraries are in a container; XPU_FOLDER of native/libxpu/page.h.
FOLDER = "/usr/lib/xpu"
#: The libraries that have a wrapper, by the part of their names before the version.
WRAPPED = ("libcuda.so", "libnvidia-ml.so")

#: Capabilities whose libraries take device memory past CUDA, or past 64-bit CUDA.
UNSEEN = frozenset(("graphics", "display", "ngx", "compat32"))
#: Of the others: OpenCL has a CUDA driver of its own inside.
_UNSEEN_LIBRARIES = ("libnvidia-opencl.so",)

_OLDEST_DRIVER = 470


def wrapper(stem: str) -> str:
    """Path of the wrapper for `libcuda.so` or `libnvidia-ml.so` on this host."""
    return os.path.join(paths.NATIVE_DIR, "libxpu", f"{stem}.1")


def real(stem: str) -> str:
    """Where the driver's own library lies in a container: a name that no search path leads to."""
    return f"{FOLDER}/{stem.removesuffix('.so')}.real"


def unavailable(found: Inventory, device: Device) -> str | None:
    """Why this backend cannot hold a memory limit on `device`; None if it can."""
    if device.vendor != "nvidia":
        return f"there are no wrapper libraries for {device.vendor} devices"
    major = found.driver_version.partition(".")[0]
    if major.isdigit() and int(major) < _OLDEST_DRIVER:
        return f"the wrapper libraries need driver R{_OLDEST_DRIVER} or newer, not {found.driver_version}"
    for stem in WRAPPED:
        if not os.path.exists(wrapper(stem)):
            return f"{wrapper(stem)} is missing: install the runtime again"
        if not any(is_wrapped(library.name, stem) for library in found.libraries if library.kind == "lib"):
            return f"the driver root {found.root} has no {stem}.1"
    return None


def is_wrapped(name: str, stem: str) -> bool:
    """Whether the driver's library `name` (such as libcuda.so.580.82.07) is the one that `stem` names."""
    return name.startswith(stem + ".")


def cannot_count(capabilities: tuple[str, ...]) -> str | None:
    """Why the wrappers cannot hold a limit on a container with these capabilities; None if they can.

    Who asks for `all` gets all but these: images say `all` by habit.
    """
    asked = [name for name in capabilities if name in UNSEEN]
    if not asked or set(capabilities) >= UNSEEN:
        return None
    return (
        f"XPU_CAPABILITIES asks for {', '.join(asked)}, whose memory the wrapper libraries do not see "
        "(compute, utility and video can be had)"
    )


def can_go_round(library: Library) -> bool:
    """Whether programs that use this driver file take device memory without the wrappers' knowing."""
    return library.capability in UNSEEN or library.name.startswith(_UNSEEN_LIBRARIES)


def holds(slices: tuple[Slice, ...]) -> bool:
    """Whether the limit of any of these is held by this backend."""
    return any(part.held_by(NAME) for part in slices)


def why_no_log(slices: tuple[Slice, ...]) -> str | None:
    """Why XPU_LOG=debug writes nothing in a container with these slices; None if it does."""
    if holds(slices):
        return None
    held = sorted({part.holding.memory_backend or "" for part in slices if part.limited} - {"", "none"})
    why = f"its memory limit is held by: {', '.join(held)}" if held else "nothing holds a memory limit of it"
    return f"XPU_LOG=debug writes no log, for that is the wrapper libraries', and {why}"
