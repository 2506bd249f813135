"""A made-up tree of the files of the amdgpu and KFD drivers in sysfs and /dev, below a driver root.

The files are the kernel's, with an MI210's content; there is no card behind them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

GIB = 1 << 30
#: A major that KFD may have: the kernel chooses it. No driver is behind this one.
KFD = (511, 0)
DRM = 226

_MI210 = {
    "cpu_cores_count": 0,
    "simd_count": 416,
    "mem_banks_count": 1,
    "gfx_target_version": 90010,
    "vendor_id": 0x1002,
    "device_id": 29711,
    "domain": 0,
}
_CPU = {"cpu_cores_count": 64, "simd_count": 0, "mem_banks_count": 1, "vendor_id": 0, "drm_render_minor": 0}


def write(path: Path, text: str | int) -> None:
    """Writes a file of sysfs, and makes the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def properties(path: Path, values: dict[str, int]) -> None:
    write(path, "\n".join(f"{name} {value}" for name, value in values.items()))


class Tree:
    """The tree below `root`; at first it has only a CPU, and `gpu` adds cards."""

    def __init__(self, root: Path, *, kfd: bool = True) -> None:
        self.root = root
        self.topology = root / "sys/class/kfd/kfd/topology/nodes"
        self.nodes = 0
        write(self._node() / "gpu_id", 0)
        properties(self.topology / "0/properties", _CPU)
        if kfd:
            self.device("kfd", *KFD)

    def _node(self) -> Path:
        self.nodes += 1
        return self.topology / str(self.nodes - 1)

    def gpu(
        self, memory: int = 64 * GIB, *, name: str = "", unique_id: int = 0, bus: int = 0, **more: int
    ) -> Path:
        """Adds a card of that many bytes; its folder in KFD's topology. `more` are KFD's properties."""
        number = self.nodes
        minor = 127 + number
        bus = bus or number
        node = self._node()
        write(node / "gpu_id", 40000 + number)
        values = {
            **_MI210,
            "location_id": bus << 8,
            "drm_render_minor": minor,
            "unique_id": unique_id,
            **more,
        }
        properties(node / "properties", {**values, **more})
        properties(node / "mem_banks/0/properties", {"heap_type": 1, "size_in_bytes": memory, "flags": 0})
        device = self.root / f"sys/class/drm/renderD{minor}/device"
        write(device / "vendor", "0x1002")
        write(device / "mem_info_vram_total", memory)
        write(device / "product_name", name)
        self.device(f"dri/renderD{minor}", DRM, minor)
        return node

    def tells_use(self, minor: int, memory: int, percent: int) -> None:
        """Sets the use that the card of that render node reports."""
        device = self.root / f"sys/class/drm/renderD{minor}/device"
        write(device / "mem_info_vram_used", memory)
        write(device / "gpu_busy_percent", percent)

    def device(self, name: str, major: int, minor: int) -> None:
        """Makes a character device below the root's /dev."""
        path = self.root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o660, os.makedev(major, minor))
