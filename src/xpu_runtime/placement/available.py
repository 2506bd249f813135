"""A device in a request's view: its free part, and the reason why a slice of some size does not fit."""

from __future__ import annotations

from xpu_runtime.ledger.grants import Holding, Use
from xpu_runtime.placement import card_capacity
from xpu_runtime.request.units import show, show_apart
from xpu_runtime.value import Value
from xpu_runtime.vendors.inventory import Device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.request.units import Memory


class Candidate(Value):
    """A device, and the facts that decide whether it may serve this request."""

    device: Device
    #: Why it may not serve the request; None: it may.
    reason: str | None
    holding: Holding
    #: The policy's maximum for one slice, in bytes.
    max_memory: int | None = None
    #: The bytes of a slice without a requested amount; None: the whole device.
    default: int | None = None


class AvailableDevice(Value):
    """A candidate with its free part: bytes, and percent of its cores."""

    candidate: Candidate
    left: int
    free_cores: int
    #: No slice of it is granted.
    unused: bool
    #: Why no other container gets any of it, if one container has the whole device.
    exclusive: str = ""
    #: The part reserved for pods whose containers do not have it (yet).
    reserved_memory: int = 0
    reserved_cores: int = 0

    @property
    def free_memory(self) -> int:
        """Bytes that a slice may have: no more than the policy allows one."""
        most = self.candidate.max_memory
        return self.left if most is None else min(self.left, most)


def available(candidate: Candidate, use: Use, oversubscribe: float) -> AvailableDevice:
    """The free part of a candidate: its capacity less the grants."""
    capacity = card_capacity.grantable(candidate.device.memory_bytes, oversubscribe)
    left = card_capacity.left(capacity, use.memory_bytes, use.exclusive)
    reserved = (use.reserved_memory, use.reserved_cores)
    cores = max(100 - use.cores, 0)
    return AvailableDevice(candidate, left, cores, use.slices == 0, _exclusive_holder(use), *reserved)


def _exclusive_holder(use: Use) -> str:
    """The container that has the whole device, and its variables: many users do not expect XPU_CORES alone to
    take it."""
    if not use.exclusive:
        return ""
    if use.holder_pod:
        return f"all of it is reserved for pod {use.holder_pod}"
    asked = "no XPU_MEM" if use.holder_cores is None else f"XPU_CORES={use.holder_cores}, no XPU_MEM"
    return f"all of it is held by container {use.holder[:12]} ({asked})"


def footprint(device: AvailableDevice, memory: Memory | None) -> int:
    """The bytes that a slice of this device takes."""
    if memory is None:
        return device.candidate.default or device.candidate.device.memory_bytes
    return memory.on(device.candidate.device.memory_bytes)


def shortfall(device: AvailableDevice, memory: Memory | None, cores: int | None) -> str | None:
    """Why a slice of this size does not fit on the device; None if it does."""
    if device.candidate.reason is not None:
        return device.candidate.reason
    amount = footprint(device, memory)
    allowed = device.candidate.max_memory
    if device.exclusive:
        return device.exclusive
    if memory is None and device.candidate.default is None and not device.unused:
        in_use = "reserved for pods" if device.reserved_memory else "in use"
        return f"{in_use}, and the whole device is requested"
    lacks = []
    if amount > device.free_memory:
        limited = allowed is not None and amount > allowed
        free, asked = show_apart(device.free_memory, amount, memory.unit if memory else "")
        reserved = f" ({show(device.reserved_memory)} reserved for pods)" if device.reserved_memory else ""
        lacks.append(f"{free} {'allowed by the policy' if limited else 'free'}{reserved}, {asked} requested")
    if cores is not None and cores > device.free_cores:
        reserved = f" ({device.reserved_cores}% reserved for pods)" if device.reserved_cores else ""
        lacks.append(f"{device.free_cores}% cores free{reserved}, {cores}% requested")
    return " and ".join(lacks) or None
