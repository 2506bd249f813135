"""Images with a driver library of their own, and the node that they run on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MULTIARCH = f"{os.uname().machine}-linux-gnu"
REAL = "/usr/lib/xpu/libcuda.real"
#: The container's program: it allocates more than its limit, in one piece.
TOO_MUCH = ["cuda-probe", "alloc", "2000"]
REFUSED = "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY"
ASK = ("XPU_MEM=1G", "XPU_ENFORCE=library")


def bring(driver: Path, folder: Path, name: str = "libcuda.so") -> Path:
    """The driver's library in a folder of the image, with its SONAME's link; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (source,) = driver.glob(f"{name}.5*")
    shutil.copy(source, folder / source.name)
    (folder / f"{name}.1").symlink_to(source.name)
    return folder / source.name
