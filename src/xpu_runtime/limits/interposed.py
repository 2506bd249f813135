"""The driver's libraries that have an interposer, and the paths of both.

An interposer is a library of ours (native/) that a container finds in the place of the driver's, with the
real one behind it. This module has only names: interposers.py decides about mounts in an image.
"""

from __future__ import annotations

import os

from xpu_runtime import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.vendors.inventory import Library

#: Where pages and real libraries are in a container; XPU_FOLDER of native/abi/page.h.
FOLDER = "/usr/lib/xpu"
#: The libraries that have an interposer, by the part of their names before the version.
INTERPOSED = ("libcuda.so", "libnvidia-ml.so")

#: Capabilities whose libraries take device memory past CUDA, or past 64-bit CUDA.
UNSEEN = frozenset(("graphics", "display", "ngx", "compat32"))
#: Libraries of the other capabilities: OpenCL has its own CUDA driver inside.
_UNSEEN_LIBRARIES = ("libnvidia-opencl.so",)


def interposer(stem: str) -> str:
    """Path of the interposer for `libcuda.so` or `libnvidia-ml.so` on this host."""
    return os.path.join(paths.NATIVE_DIR, "interposer", "nvidia", f"{stem}.1")


def real(stem: str) -> str:
    """Where the driver's own library lies in a container: a name that no search path leads to."""
    return f"{FOLDER}/{stem.removesuffix('.so')}.real"


def stem_of(name: str) -> str | None:
    """Which of INTERPOSED the driver's library `name` (such as libcuda.so.580.82.07) is; None: none."""
    return next((stem for stem in INTERPOSED if name.startswith(stem + ".")), None)


def can_go_round(library: Library) -> bool:
    """Whether programs that use this driver file take device memory that the interposers do not see."""
    return library.capability in UNSEEN or library.name.startswith(_UNSEEN_LIBRARIES)
