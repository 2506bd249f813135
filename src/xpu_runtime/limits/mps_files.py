"""The files of a container under MPS besides the interposers: its limits, the clients' end of the pipe
folder, and the server's /dev/shm.

The driver's parts of client and server pass memory through /dev/shm (k8s-device-plugin mounts one for both as
well). The folders are the device's, so that a daemon that is started anew serves the containers that run.
"""

from __future__ import annotations

from xpu_runtime.limits.interposers import Interposers
from xpu_runtime.vendors.inventory import Library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.ledger.grants import Slice
    from xpu_runtime.vendors.inventory import Inventory

_SHM = "/dev/shm"  # noqa: S108 - the place that it has


class UnderMps(Interposers):
    """`limits` is a file, and `clients` and `shm` are folders of the host, each with its path there."""

    def __init__(
        self,
        inventory: Inventory,
        slices: tuple[Slice, ...],
        folder: str,
        limits: tuple[str, str],
        clients: tuple[str, str],
        shm: str,
    ) -> None:
        super().__init__(inventory, slices, folder)
        self._limits = limits
        self._clients = clients
        self._shm = shm

    def files(self, asked: list[Library], every: tuple[Library, ...]) -> list[Library]:
        return [
            *super().files(asked, every),
            Library("page", *self._limits, ""),
            Library("socket", *self._clients, ""),
            Library("shared", self._shm, _SHM, ""),
        ]
