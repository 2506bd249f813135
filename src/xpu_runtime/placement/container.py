"""The choice of devices for a container's request: a function of the request and the free parts.

Values of XPU_MEM go to devices in the order in which the container sees them: that of its NVML and
`nvidia-smi` (and of CUDA with CUDA_DEVICE_ORDER=PCI_BUS_ID), which is the inventory's. Where
XPU_VISIBLE_DEVICES names devices, they go with the names. Reads no ledger, no driver and no configuration:
callers pass all of it as values. refused.py has the reasons of refusals.
"""

from __future__ import annotations

from xpu_runtime.ledger.grants import Slice, Use
from xpu_runtime.placement import card_capacity
from xpu_runtime.placement.available import AvailableDevice, Candidate, available, footprint, shortfall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.ledger.refusal import Refusal
    from xpu_runtime.request.request import Request
    from xpu_runtime.request.units import Memory


def _choose(
    devices: list[AvailableDevice], amounts: list[Memory | None], cores: int | None, policy: str
) -> list[int] | None:
    """For each amount the position in `devices` of its device, later amounts on later devices; None if there
    is no such assignment. Of several, the one whose devices come first in the policy's order.
    """
    order = card_capacity.in_order(
        range(len(devices)),
        [device.left for device in devices],
        [device.free_cores for device in devices],
        policy == "binpack",
    )
    rank = {position: number for number, position in enumerate(order)}
    # For each n the best assignment of n amounts to the devices seen so far: (sum of ranks, positions).
    best: list[tuple[int, tuple[int, ...]] | None] = [(0, ())] + [None] * len(amounts)
    for position, device in enumerate(devices):
        for n in range(len(amounts), 0, -1):
            before, known = best[n - 1], best[n]
            if before is not None and shortfall(device, amounts[n - 1], cores) is None:
                way = before[0] + rank[position], (*before[1], position)
                best[n] = way if known is None else min(way, known)
    return None if best[-1] is None else list(best[-1][1])


def place(
    request: Request,
    candidates: list[Candidate],
    uses: dict[str, Use],
    *,
    policy: str = "binpack",
    oversubscribe: float = 1.0,
    step: int = 5,
) -> tuple[Slice, ...] | Refusal:
    """The slices of a request, in the order of its devices, or the refusal.

    `candidates` are the devices that the request may choose from, in the inventory's order, and for a list in
    the list's; `uses` has the grants by UUID.
    """
    devices = [available(c, uses.get(c.device.uuid, _NOTHING), oversubscribe) for c in candidates]
    fixed = request.choice in ("list", "all")
    count = len(devices) if fixed else request.count
    amounts = [request.memory_of(position) for position in range(count)]
    chosen: list[AvailableDevice] | None = None
    if not fixed:
        positions = _choose(devices, amounts, request.cores, policy)
        chosen = None if positions is None else [devices[position] for position in positions]
    elif devices and len(request.memory) in (0, 1, count):
        fits = all(shortfall(each, amount, request.cores) is None for each, amount in zip(devices, amounts))
        chosen = devices if fits else None
    if chosen is None:
        from xpu_runtime.placement import refused  # most starts get their slices

        return refused.why(request, devices, count, fixed, step)
    return tuple(_slice(device, amount, request.cores) for device, amount in zip(chosen, amounts))


_NOTHING = Use()


def _slice(device: AvailableDevice, amount: Memory | None, cores: int | None) -> Slice:
    limited = amount is not None or device.candidate.default is not None
    physical = device.candidate.device
    return Slice(
        physical.index, physical.uuid, footprint(device, amount), limited, cores, device.candidate.holding
    )
