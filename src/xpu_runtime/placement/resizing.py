"""Whether a slice can become larger or smaller, beside the other slices of its device."""

from __future__ import annotations

from xpu_runtime.ledger.grants import Slice, Use
from xpu_runtime.ledger.refusal import DeviceStatus, Refusal
from xpu_runtime.placement.available import Candidate, available
from xpu_runtime.request.units import MIB, Memory, as_variable, show, show_apart
from xpu_runtime.vendors.inventory import Device


def below_use(
    device: Device, slice_: Slice, use: Use, wanted: int, used: int, unit: str = ""
) -> Refusal | None:
    """Why `slice_`, of which `used` bytes are in use, cannot be cut to `wanted` bytes (asked for in `unit`);
    None if it can."""
    if used <= wanted:
        return None
    now = available(Candidate(device, None, slice_.holding), use, 1.0)
    in_use, asked = show_apart(used, wanted, unit)
    reason = f"{in_use} in use, {asked} requested"
    # After an earlier change more may be in use than the limit allows. The offered value must not be an
    # increase.
    least = min(-(-used // MIB) * MIB, slice_.memory_bytes)
    return Refusal(
        "below-use",
        f"the container uses more of {device.label} than that",
        (DeviceStatus(device.index, now.free_memory, now.free_cores, reason),),
        {"XPU_MEM": as_variable(least)},
    )


def resize(device: Device, slice_: Slice, use: Use, wanted: Memory, oversubscribe: float) -> int | Refusal:
    """The bytes that a limit of `wanted` would book for `slice_` of `device`, or why it cannot grow so far.

    `use` are the present grants of the device, `slice_` included. The policy does not apply: it restricts
    requests of containers, and this is one of the operator.
    """
    footprint = wanted.on(device.memory_bytes)
    if footprint <= slice_.memory_bytes:
        return footprint
    candidate = Candidate(device, None, slice_.holding)
    now = available(candidate, use, oversubscribe)
    beside = use.replace(memory_bytes=use.memory_bytes - slice_.memory_bytes)
    most = max(available(candidate, beside, oversubscribe).free_memory, slice_.memory_bytes)
    if footprint <= most:
        return footprint
    unit = wanted.unit
    has, asked = show_apart(slice_.memory_bytes, footprint, unit)
    reason = f"{show(now.free_memory, unit)} free and {has} already its own, {asked} requested"
    return Refusal(
        "not-enough-memory",
        f"{device.label} does not have enough free memory for a limit of {asked}",
        (DeviceStatus(device.index, now.free_memory, now.free_cores, reason),),
        {"XPU_MEM": as_variable(most)},
    )


def resize_cores(device: Device, slice_: Slice, use: Use, wanted: int) -> int | Refusal:
    """The percent of cores that a cap of `wanted` would book for `slice_` of `device`, or why it cannot grow
    that far; `use` as for `resize`. The caps on a device add up to at most 100 %, regardless of its memory.
    """
    had = slice_.cores or 0
    most = max(100 - (use.cores - had), had)
    if wanted <= most:
        return wanted
    now = available(Candidate(device, None, slice_.holding), use, 1.0)
    reason = f"{now.free_cores}% cores free and {had}% already its own, {wanted}% requested"
    return Refusal(
        "not-enough-cores",
        f"{device.label} does not have enough free cores for a cap of {wanted}%",
        (DeviceStatus(device.index, now.free_memory, now.free_cores, reason),),
        {"XPU_CORES": str(most)},
    )
