"""How much device memory each grant uses now, as the driver tells it. For people; never on the start path."""

from __future__ import annotations

from xpu_runtime.devices import nvidia
from xpu_runtime.devices.inventory import Inventory, find
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.linux import cgroups
from xpu_runtime.quota import driver


def measure(found: Inventory, grants: list[Grant]) -> dict[tuple[int, str], int]:
    """Bytes in use by (grant id, device UUID); what cannot be known is left out."""
    measured: dict[tuple[int, str], int] = {}
    by_process: dict[str, dict[int, int]] | None = None
    for grant in grants:
        for part in grant.slices:
            device = find(found, part.device_uuid)
            if device is None or not grant.cgroup:
                continue
            if part.holding.memory_backend == driver.NAME and device.vendor == "nvidia":
                try:
                    with driver.Nvml(found) as nvml:
                        used = nvml.memory_limit(device.uuid, grant.cgroup).used
                except XpuError:
                    continue  # the container has just ended
            else:
                if by_process is None:
                    by_process = nvidia.memory_by_process(found)
                used = _within(by_process.get(device.uuid, {}), grant.cgroup)
            measured[grant.id, part.device_uuid] = used
    return measured


def _within(by_process: dict[int, int], cgroup: str) -> int:
    """What the processes in `cgroup` and below it use together."""
    total = 0
    for pid, used in by_process.items():
        try:
            folder = cgroups.v2_folder(pid)
        except OSError:
            continue  # ended meanwhile
        if folder is not None and (folder == cgroup or folder.startswith(cgroup + "/")):
            total += used
    return total
