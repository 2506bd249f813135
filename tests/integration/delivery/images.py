"""Images with a driver library of their own, and the node that they run on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..conftest import Node

REAL = "/usr/lib/xpu/libcuda.real"
#: The container's program: it allocates more than its limit, in one piece.
TOO_MUCH = ["cuda-probe", "alloc", "2000"]
REFUSED = "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY"
ASK = ("XPU_MEM=1G", "XPU_ENFORCE=library")


#: A program that needs libcuda.so.1 and one that needs libnvidia-ml.so.1, both found by the loader alone.
PROBE = ["sh", "-c", "cuda-probe info && nvidia-smi -L"]


def assert_found(node: Node, bundle: Path) -> None:
    """PROBE in the bundle has found the driver's libraries, and shows 1 GiB of a T4."""
    done = node.run(bundle)
    assert "device 0: 1024 MiB free of 1024 MiB\n" in done.stdout, done.stderr
    assert "Tesla T4" in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr


def binds(source: Path, destination: str, *options: str) -> Callable[[dict[str, Any]], None]:
    """Puts a folder or file of the host over that place of the container."""

    def change(spec: dict[str, Any]) -> None:
        mount = {"destination": destination, "type": "bind", "source": str(source)}
        spec["mounts"] = [each for each in spec["mounts"] if each["destination"] != destination]
        spec["mounts"].append({**mount, "options": ["rbind", *(options or ("rprivate",))]})
        if "rshared" in options:
            spec["linux"]["rootfsPropagation"] = "rshared"  # as docker does

    return change


def bring(driver: Path, folder: Path, name: str = "libcuda.so") -> Path:
    """The driver's library in a folder of the image, with its SONAME's link; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (source,) = driver.glob(f"{name}.5*")
    shutil.copy(source, folder / source.name)
    (folder / f"{name}.1").symlink_to(source.name)
    return folder / source.name
