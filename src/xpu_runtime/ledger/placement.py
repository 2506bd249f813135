"""Placement: which devices serve a request. Pure functions of what is requested and what is free.

binpack fills the fullest device that fits, to keep whole devices free; spread takes the emptiest. Values of
XPU_MEM go to devices in the order in which the container sees them: that of its NVML and `nvidia-smi` (and of
CUDA with CUDA_DEVICE_ORDER=PCI_BUS_ID), which is the inventory's. Where XPU_VISIBLE_DEVICES names devices,
they go with the names. Reads no ledger, no driver and no configuration: callers pass all of it as values.
"""

from __future__ import annotations

from xpu_runtime.ledger.grants import Holding, Slice, Use
from xpu_runtime.ledger.refusal import DeviceStatus, Refusal
from xpu_runtime.request.request import Request, wrong_number
from xpu_runtime.request.units import MIB, Memory, as_variable, show, show_apart
from xpu_runtime.value import Value
from xpu_runtime.vendors.inventory import Device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.ledger.refusal import Code


class Candidate(Value):
    """A device, and what decides whether it may serve this request."""

    device: Device
    #: Why it may not serve the request; None: it may.
    reason: str | None
    holding: Holding
    #: The policy's maximum for one slice, in bytes.
    max_memory: int | None = None
    #: What a slice gets where no amount is requested, in bytes; None: the whole device.
    default: int | None = None


class AvailableDevice(Value):
    """A candidate, with what is free of it: bytes that a slice may have, and percent of its cores."""

    candidate: Candidate
    free_memory: int
    free_cores: int
    #: No slice of it is granted.
    unused: bool
    #: Why no other container gets any of it, if one container has the whole device.
    exclusive: str = ""
    #: What is taken of it for pods whose containers do not have it (yet).
    reserved_memory: int = 0
    reserved_cores: int = 0


def _available(candidate: Candidate, use: Use, oversubscribe: float) -> AvailableDevice:
    """What is free of a candidate: less what is granted, and no more than the policy allows one slice."""
    total = candidate.device.memory_bytes
    capacity = total if oversubscribe == 1.0 else int(total * oversubscribe)
    free = 0 if use.exclusive else max(capacity - use.memory_bytes, 0)
    if candidate.max_memory is not None:
        free = min(free, candidate.max_memory)
    reserved = (use.reserved_memory, use.reserved_cores)
    cores = max(100 - use.cores, 0)
    return AvailableDevice(candidate, free, cores, use.slices == 0, _exclusive_holder(use), *reserved)


def _exclusive_holder(use: Use) -> str:
    """Which container has the whole device, and what it set: many do not expect XPU_CORES alone to take
    it."""
    if not use.exclusive:
        return ""
    if use.holder_pod:
        return f"all of it is reserved for pod {use.holder_pod}"
    asked = "no XPU_MEM" if use.holder_cores is None else f"XPU_CORES={use.holder_cores}, no XPU_MEM"
    return f"all of it is held by container {use.holder[:12]} ({asked})"


def _footprint(device: AvailableDevice, memory: Memory | None) -> int:
    """The bytes that a slice of this device takes."""
    if memory is None:
        return device.candidate.default or device.candidate.device.memory_bytes
    return memory.on(device.candidate.device.memory_bytes)


def _shortfall(device: AvailableDevice, memory: Memory | None, cores: int | None) -> str | None:
    """Why a slice of this size does not fit on the device; None if it does."""
    if device.candidate.reason is not None:
        return device.candidate.reason
    footprint = _footprint(device, memory)
    allowed = device.candidate.max_memory
    if device.exclusive:
        return device.exclusive
    if memory is None and device.candidate.default is None and not device.unused:
        in_use = "reserved for pods" if device.reserved_memory else "in use"
        return f"{in_use}, and the whole device is requested"
    lacks = []
    if footprint > device.free_memory:
        limited = allowed is not None and footprint > allowed
        free, asked = show_apart(device.free_memory, footprint, memory.unit if memory else "")
        reserved = f" ({show(device.reserved_memory)} reserved for pods)" if device.reserved_memory else ""
        lacks.append(f"{free} {'allowed by the policy' if limited else 'free'}{reserved}, {asked} requested")
    if cores is not None and cores > device.free_cores:
        reserved = f" ({device.reserved_cores}% reserved for pods)" if device.reserved_cores else ""
        lacks.append(f"{device.free_cores}% cores free{reserved}, {cores}% requested")
    return " and ".join(lacks) or None


def _match(
    devices: list[AvailableDevice], amounts: list[Memory | None], cores: int | None
) -> list[int] | None:
    """For each amount the position in `devices` of a device of its own, in any order; None if there is none.

    Devices of different sizes cannot be matched greedily, as a percentage is another amount on each: this is
    bipartite matching by augmenting paths (Kuhn).
    """
    fits = [
        [p for p, device in enumerate(devices) if _shortfall(device, amount, cores) is None]
        for amount in amounts
    ]
    assigned: dict[int, int] = {}

    def assign(index: int, seen: set[int]) -> bool:
        for position in fits[index]:
            if position not in seen:
                seen.add(position)
                if position not in assigned or assign(assigned[position], seen):
                    assigned[position] = index
                    return True
        return False

    # The amount with the fewest choices goes first.
    for index in sorted(range(len(amounts)), key=lambda a: len(fits[a])):
        if not assign(index, set()):
            return None
    found = {index: position for position, index in assigned.items()}
    return [found[index] for index in range(len(amounts))]


def _in_order(
    devices: list[AvailableDevice], amounts: list[Memory | None], cores: int | None, policy: str
) -> list[int] | None:
    """For each amount the position in `devices` of its device, later amounts on later devices; None if there
    is no such assignment. Of several, the one whose devices come first in the policy's order.
    """
    sign = 1 if policy == "binpack" else -1
    order = sorted(
        range(len(devices)), key=lambda p: (sign * devices[p].free_memory, sign * devices[p].free_cores)
    )
    rank = {position: number for number, position in enumerate(order)}
    # For each n the best assignment of n amounts to the devices seen so far: (sum of ranks, positions).
    best: list[tuple[int, tuple[int, ...]] | None] = [(0, ())] + [None] * len(amounts)
    for position, device in enumerate(devices):
        for n in range(len(amounts), 0, -1):
            before, known = best[n - 1], best[n]
            if before is not None and _shortfall(device, amounts[n - 1], cores) is None:
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
    """The slices of a request, in the order in which it asks for devices, or why there are none.

    `candidates` are the devices that the request may choose from, in the inventory's order, and for a list
    in the list's; `uses` says by UUID what is granted already.
    """
    if request.choice == "none":
        return ()
    devices = [_available(c, uses.get(c.device.uuid, _NOTHING), oversubscribe) for c in candidates]
    fixed = request.choice in ("list", "all")
    count = len(devices) if fixed else request.count
    if fixed and len(request.memory) not in (0, 1, count):
        return Refusal(
            "not-enough-devices",
            f"XPU_MEM has {wrong_number(len(request.memory), count)}",
            _statuses(devices, request, count),
        )
    amounts = [request.memory_of(position) for position in range(count)]
    if fixed:
        chosen: list[AvailableDevice] | None = devices
        if not devices or any(
            _shortfall(device, amount, request.cores) for device, amount in zip(devices, amounts)
        ):
            chosen = None
    else:
        positions = _in_order(devices, amounts, request.cores, policy)
        chosen = None if positions is None else [devices[position] for position in positions]
    if chosen is None:
        return _refusal(request, devices, count, fixed, step)
    return tuple(_slice(device, amount, request.cores) for device, amount in zip(chosen, amounts))


def below_use(
    device: Device, slice_: Slice, use: Use, wanted: int, used: int, unit: str = ""
) -> Refusal | None:
    """Why `slice_`, of which `used` bytes are in use, cannot be cut to `wanted` bytes (asked for in `unit`);
    None if it can."""
    if used <= wanted:
        return None
    now = _available(Candidate(device, None, slice_.holding), use, 1.0)
    in_use, asked = show_apart(used, wanted, unit)
    reason = f"{in_use} in use, {asked} requested"
    # More may be in use than the limit allows, after an earlier change. What is offered must be no increase.
    least = min(-(-used // MIB) * MIB, slice_.memory_bytes)
    return Refusal(
        "below-use",
        f"the container uses more of {device.label} than that",
        (DeviceStatus(device.index, now.free_memory, now.free_cores, reason),),
        {"XPU_MEM": as_variable(least)},
    )


def resize(device: Device, slice_: Slice, use: Use, wanted: Memory, oversubscribe: float) -> int | Refusal:
    """The bytes that a limit of `wanted` would book for `slice_` of `device`, or why it cannot grow so far.

    `use` is what is granted of the device now, `slice_` included. The policy does not apply: it restricts
    what containers request, and this is a request of the operator.
    """
    footprint = wanted.on(device.memory_bytes)
    if footprint <= slice_.memory_bytes:
        return footprint
    candidate = Candidate(device, None, slice_.holding)
    now = _available(candidate, use, oversubscribe)
    beside = use.replace(memory_bytes=use.memory_bytes - slice_.memory_bytes)
    most = max(_available(candidate, beside, oversubscribe).free_memory, slice_.memory_bytes)
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
    so far; `use` as for `resize`. The caps on a device add up to at most 100 %, whatever its memory is."""
    had = slice_.cores or 0
    most = max(100 - (use.cores - had), had)
    if wanted <= most:
        return wanted
    now = _available(Candidate(device, None, slice_.holding), use, 1.0)
    reason = f"{now.free_cores}% cores free and {had}% already its own, {wanted}% requested"
    return Refusal(
        "not-enough-cores",
        f"{device.label} does not have enough free cores for a cap of {wanted}%",
        (DeviceStatus(device.index, now.free_memory, now.free_cores, reason),),
        {"XPU_CORES": str(most)},
    )


_NOTHING = Use()


def _slice(device: AvailableDevice, amount: Memory | None, cores: int | None) -> Slice:
    limited = amount is not None or device.candidate.default is not None
    physical = device.candidate.device
    return Slice(
        physical.index, physical.uuid, _footprint(device, amount), limited, cores, device.candidate.holding
    )


def _statuses(devices: list[AvailableDevice], request: Request, count: int) -> tuple[DeviceStatus, ...]:
    """Each device, what is free of it, and why it is not enough."""
    found = []
    for position, device in enumerate(devices):
        amount = request.memory_of(position if position < max(len(request.memory), 1) else 0)
        reason = _shortfall(device, amount, request.cores) or f"fits, but {count} devices are needed"
        found.append(
            DeviceStatus(device.candidate.device.index, device.free_memory, device.free_cores, reason)
        )
    return tuple(found)


def _refusal(request: Request, devices: list[AvailableDevice], count: int, fixed: bool, step: int) -> Refusal:
    statuses = _statuses(devices, request, count)
    eligible = [device for device in devices if device.candidate.reason is None]
    if not eligible:
        return Refusal("not-eligible", "no device can serve this request", statuses)
    nearest = _nearest(request, devices, count, fixed, step)
    if len(eligible) < count:
        text = f"{count} devices are requested, and only {len(eligible)} of {len(devices)} can serve them"
        return Refusal("not-enough-devices", text, statuses, nearest, is_full=not fixed)
    code, sentence = _shortage(request, eligible, count)
    if fixed:
        sentence = f"not every {'named ' if request.choice == 'list' else ''}device has {{}} free"
    cores = f" and {request.cores}% of its cores" if request.cores else ""
    message = sentence.format(_memory_text(request, eligible) + cores)
    return Refusal(code, message, statuses, nearest, is_full=True)


def _shortage(request: Request, eligible: list[AvailableDevice], count: int) -> tuple[Code, str]:
    """The code for what the eligible devices lack, and the message, with `{}` for the requested amount."""
    memory_ok = any(_footprint(device, request.memory_of(0)) <= device.free_memory for device in eligible)
    cores_ok = request.cores is None or any(request.cores <= device.free_cores for device in eligible)
    fitting = [
        device for device in eligible if _shortfall(device, request.memory_of(0), request.cores) is None
    ]
    if len(set(request.memory)) > 1:
        return "not-enough-memory", f"no {count} devices have {{}} free in this order"
    if fitting:
        return "not-enough-devices", f"{count} devices are requested, and only {len(fitting)} has {{}} free"
    if not request.memory and not memory_ok and any(device.candidate.default is None for device in eligible):
        return "in-use", "no device has {} free"
    if memory_ok and cores_ok:
        return "not-enough", "no single device has {} free"
    return "not-enough-memory" if not memory_ok else "not-enough-cores", "no device has {} free"


def _memory_text(request: Request, eligible: list[AvailableDevice]) -> str:
    if request.memory:
        return ",".join(memory.text() for memory in request.memory) + " of memory"
    amounts = {device.candidate.default for device in eligible}
    amount = amounts.pop()
    return "all of its memory" if amounts or amount is None else f"{show(amount)} of memory"


def _nearest(
    request: Request, devices: list[AvailableDevice], count: int, fixed: bool, step: int
) -> dict[str, str] | None:
    """The request nearest to this one that fits now: its values in another order, less memory, else fewer
    cores, devices, or all of it.

    Every proposal is checked against the devices, so that what is offered would be granted.
    """
    eligible = [device for device in devices if device.candidate.reason is None]
    amounts = [request.memory_of(position) for position in range(count)]
    positions = None if fixed or len(set(amounts)) == 1 else _match(devices, amounts, request.cores)
    if positions is not None:
        order = sorted(range(count), key=positions.__getitem__)
        found = {"XPU_MEM": ",".join(request.memory[amount].text() for amount in order)}
        return {**found, "XPU_CORES": str(request.cores)} if request.cores else found
    wanted = max((_footprint(device, amount) for device in eligible for amount in amounts), default=0)
    for n in [count] if fixed else range(count, 0, -1):
        proposals = []
        for memory, cores in _proposals(request, eligible, wanted, n, step):
            kept = memory / wanted * (cores / request.cores if request.cores else 1.0)
            if memory >= MIB and (cores or not request.cores) and _serves(devices, memory, cores, n, fixed):
                proposals.append((kept, memory, cores))
        if proposals:
            _, memory, cores = max(proposals)
            return _as_variables(request, devices, memory, cores, n, fixed)
    return None


def _proposals(
    request: Request, eligible: list[AvailableDevice], wanted: int, n: int, step: int
) -> list[tuple[int, int]]:
    """(bytes, cores) that n devices might have: all cores and less memory, the reverse, or less of both."""
    cores = request.cores or 0
    most = min(_nth([device.free_memory for device in eligible if device.free_cores >= cores], n), wanted)
    found = [(most // MIB * MIB, cores)]
    if request.cores:
        whole = wanted // MIB * MIB
        cores_left = [device.free_cores for device in eligible if device.free_memory >= whole]
        found.append((whole, min(_nth(cores_left, n) // step * step, cores)))
        some = sorted(
            (device for device in eligible if device.free_cores >= step),
            key=lambda device: -device.free_memory,
        )[:n]
        if len(some) == n:
            least = min(min(device.free_cores for device in some) // step * step, cores)
            found.append((min(some[-1].free_memory, wanted) // MIB * MIB, least))
    return found


def _serves(devices: list[AvailableDevice], memory: int, cores: int, n: int, fixed: bool) -> bool:
    amount = Memory(bytes=memory)
    fitting = [device for device in devices if _shortfall(device, amount, cores or None) is None]
    return len(fitting) == len(devices) if fixed else len(fitting) >= n


def _as_variables(
    request: Request, devices: list[AvailableDevice], memory: int, cores: int, n: int, fixed: bool
) -> dict[str, str]:
    found = {"XPU_MEM": as_variable(memory)}
    if request.cores:
        found["XPU_CORES"] = str(cores)
    if request.choice == "all":
        found["XPU_VISIBLE_DEVICES"] = "all"
    elif fixed:
        found["XPU_VISIBLE_DEVICES"] = ",".join(device.candidate.device.index for device in devices)
    elif n > 1 or request.count > 1:
        found["XPU_COUNT"] = str(n)  # 1 as well: the request has another XPU_COUNT
    return found


def _nth(values: list[int], n: int) -> int:
    """The n-th largest, 0 where there are fewer."""
    return sorted(values, reverse=True)[n - 1] if len(values) >= n else 0
