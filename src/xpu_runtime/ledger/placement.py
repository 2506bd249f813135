"""Placement: which devices serve a request. Pure functions of what is asked and what is free.

binpack fills the fullest device that fits, to keep whole devices free; spread takes the emptiest. Values of
XPU_MEM go to devices in the order in which the container sees them: that of its NVML and `nvidia-smi` (and of
CUDA with CUDA_DEVICE_ORDER=PCI_BUS_ID), which is the inventory's. Where XPU_VISIBLE_DEVICES names devices,
they go with the names.
"""

from __future__ import annotations

from xpu_runtime.devices.inventory import Device
from xpu_runtime.ledger.grants import Holding, Slice, Use
from xpu_runtime.ledger.refusal import DeviceFigures, Refusal
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import MIB, Memory, as_variable, show, show_apart
from xpu_runtime.value import Value


class Candidate(Value):
    """A device with what decides whether it may serve the request at hand."""

    device: Device
    #: None: it may serve; else why not.
    reason: str | None
    holding: Holding
    #: The policy's maximum for one slice, in bytes.
    max_memory: int | None = None
    #: What a slice gets that asks for no amount, in bytes; None: the whole device.
    default: int | None = None


class Room(Value):
    """What is left of one candidate."""

    candidate: Candidate
    memory: int
    cores: int
    untouched: bool
    #: Why nobody else gets any of it.
    taken: str = ""

    @property
    def device(self) -> Device:
        return self.candidate.device


def room_of(candidate: Candidate, use: Use, oversubscribe: float) -> Room:
    """What is left of a candidate, after what is granted and what the policy withholds."""
    total = candidate.device.memory_bytes
    capacity = total if oversubscribe == 1.0 else int(total * oversubscribe)
    free = 0 if use.exclusive else max(capacity - use.memory_bytes, 0)
    if candidate.max_memory is not None:
        free = min(free, candidate.max_memory)
    return Room(candidate, free, max(100 - use.cores, 0), use.slices == 0, _taken_by(use))


def _taken_by(use: Use) -> str:
    """Who has the whole device, which takes people by surprise where XPU_CORES alone was asked for."""
    if not use.exclusive:
        return ""
    asked = "no XPU_MEM" if use.holder_cores is None else f"{use.holder_cores}% cores, no XPU_MEM"
    return f"booked whole by container {use.holder[:12]} ({asked})"


def _need(room: Room, memory: Memory | None) -> int:
    if memory is None:
        return room.candidate.default or room.device.memory_bytes
    return memory.on(room.device.memory_bytes)


def misfit(room: Room, memory: Memory | None, cores: int | None) -> str | None:
    """Why this much does not fit there; None if it does."""
    if room.candidate.reason is not None:
        return room.candidate.reason
    need = _need(room, memory)
    allowed = room.candidate.max_memory
    if room.taken:
        return room.taken
    if memory is None and room.candidate.default is None and not room.untouched:
        return "in use, and the whole device is asked for"
    lacks = []
    if need > room.memory:
        limited = allowed is not None and need > allowed
        free, asked = show_apart(room.memory, need, memory.unit if memory else "")
        lacks.append(f"{free} {'allowed by the policy' if limited else 'free'}, {asked} asked")
    if cores is not None and cores > room.cores:
        lacks.append(f"{room.cores}% cores free, {cores}% asked")
    return " and ".join(lacks) or None


def _match(rooms: list[Room], asks: list[Memory | None], cores: int | None) -> list[int] | None:
    """For each ask the position in `rooms` of a device of its own, in whatever order; or None.

    Augmenting paths (Kuhn): shares of unlike devices fit in no simple order.
    """
    fits = [[p for p, room in enumerate(rooms) if misfit(room, ask, cores) is None] for ask in asks]
    taken: dict[int, int] = {}

    def give(ask: int, seen: set[int]) -> bool:
        for position in fits[ask]:
            if position not in seen:
                seen.add(position)
                if position not in taken or give(taken[position], seen):
                    taken[position] = ask
                    return True
        return False

    # The most demanding ask chooses first.
    for ask in sorted(range(len(asks)), key=lambda a: len(fits[a])):
        if not give(ask, set()):
            return None
    found = {ask: position for position, ask in taken.items()}
    return [found[ask] for ask in range(len(asks))]


def _in_order(
    rooms: list[Room], asks: list[Memory | None], cores: int | None, policy: str
) -> list[int] | None:
    """For each ask the position in `rooms` of its device, later asks on later devices; None if none serve.

    Of all ways, the one whose devices come first in the policy's order.
    """
    sign = 1 if policy == "binpack" else -1
    order = sorted(range(len(rooms)), key=lambda p: (sign * rooms[p].memory, sign * rooms[p].cores))
    rank = {position: number for number, position in enumerate(order)}
    # The best way to serve the first n asks with the devices looked at so far: its ranks' sum, its positions.
    best: list[tuple[int, tuple[int, ...]] | None] = [(0, ())] + [None] * len(asks)
    for position, room in enumerate(rooms):
        for n in range(len(asks), 0, -1):
            before, known = best[n - 1], best[n]
            if before is not None and misfit(room, asks[n - 1], cores) is None:
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
    """The slices of a request, in the order that it asks for devices, or why there are none.

    `candidates` are the devices that the request may choose from, in the inventory's order, and for a list
    in the list's; `uses` says by UUID what is granted already.
    """
    if request.choice == "none":
        return ()
    rooms = [room_of(c, uses.get(c.device.uuid, _NOTHING), oversubscribe) for c in candidates]
    fixed = request.choice in ("list", "all")
    count = len(rooms) if fixed else request.count
    if fixed and len(request.memory) not in (0, 1, count):
        return Refusal(
            "not-enough-devices",
            f"XPU_MEM has {len(request.memory)} values for {count} devices",
            _figures(rooms, request, count),
        )
    asks = [request.memory_of(position) for position in range(count)]
    if fixed:
        chosen: list[Room] | None = rooms
        if not rooms or any(misfit(r, ask, request.cores) for r, ask in zip(rooms, asks, strict=True)):
            chosen = None
    else:
        positions = _in_order(rooms, asks, request.cores, policy)
        chosen = None if positions is None else [rooms[position] for position in positions]
    if chosen is None:
        return _refusal(request, rooms, count, fixed, step)
    return tuple(_slice(room, ask, request.cores) for room, ask in zip(chosen, asks, strict=True))


def below_use(
    device: Device, part: Slice, use: Use, wanted: int, used: int, unit: str = ""
) -> Refusal | None:
    """Why `part`, of which `used` bytes are in use, cannot be cut to `wanted` bytes (asked for in `unit`);
    None if it can."""
    if used <= wanted:
        return None
    free = room_of(Candidate(device, None, part.holding), use, 1.0)
    in_use, asked = show_apart(used, wanted, unit)
    reason = f"{in_use} in use, {asked} asked"
    # More may be in use than the limit allows, after an earlier change: the limit as it is then stays one.
    least = min(-(-used // MIB) * MIB, part.memory_bytes)
    return Refusal(
        "below-use",
        f"the container uses more of {device.label} than that",
        (DeviceFigures(device.index, free.memory, free.cores, reason),),
        {"XPU_MEM": as_variable(least)},
    )


def resize(device: Device, part: Slice, use: Use, wanted: Memory, oversubscribe: float) -> int | Refusal:
    """The bytes that a limit of `wanted` would book for `part` of `device`, or why it cannot grow so far.

    `use` is what is granted of the device now, `part` included. No policy binds here: it is for containers'
    own requests, and this is the operator's.
    """
    need = wanted.on(device.memory_bytes)
    if need <= part.memory_bytes:
        return need
    candidate = Candidate(device, None, part.holding)
    free = room_of(candidate, use, oversubscribe)
    beside = use.replace(memory_bytes=use.memory_bytes - part.memory_bytes)
    most = max(room_of(candidate, beside, oversubscribe).memory, part.memory_bytes)
    if need <= most:
        return need
    unit = wanted.unit
    has, asked = show_apart(part.memory_bytes, need, unit)
    reason = f"{show(free.memory, unit)} free beside the {has} that it has, {asked} asked"
    return Refusal(
        "not-enough-memory",
        f"{device.label} has not enough free memory to give this container {asked}",
        (DeviceFigures(device.index, free.memory, free.cores, reason),),
        {"XPU_MEM": as_variable(most)},
    )


_NOTHING = Use()


def _slice(room: Room, ask: Memory | None, cores: int | None) -> Slice:
    device = room.device
    limited = ask is not None or room.candidate.default is not None
    return Slice(device.index, device.uuid, _need(room, ask), limited, cores, room.candidate.holding)


def _figures(rooms: list[Room], request: Request, count: int) -> tuple[DeviceFigures, ...]:
    """Each device's figures, and why it does not serve; one that would is named as too few."""
    found = []
    for position, room in enumerate(rooms):
        ask = request.memory_of(position if position < max(len(request.memory), 1) else 0)
        reason = misfit(room, ask, request.cores) or f"would fit, but {count} are needed"
        found.append(DeviceFigures(room.device.index, room.memory, room.cores, reason))
    return tuple(found)


def _refusal(request: Request, rooms: list[Room], count: int, fixed: bool, step: int) -> Refusal:
    figures = _figures(rooms, request, count)
    able = [room for room in rooms if room.candidate.reason is None]
    if not able:
        return Refusal("not-eligible", "no device serves this request", figures)
    nearest = _nearest(request, rooms, count, fixed, step)
    if len(able) < count:
        text = f"{count} devices are asked for, and only {len(able)} of {len(rooms)} may serve"
        return Refusal("not-enough-devices", text, figures, nearest, is_full=not fixed)
    code, lead = _shortage(request, able, count)
    if fixed:
        lead = "a device that was named does not have" if request.choice == "list" else "not every device has"
    cores = f" and {request.cores}% of its cores" if request.cores else ""
    message = f"{lead} {_memory_text(request, able)}{cores} free"
    return Refusal(code, message, figures, nearest, is_full=True)


def _shortage(request: Request, able: list[Room], count: int) -> tuple[str, str]:
    """The code for what the devices lack that may serve, and the words that begin the message."""
    memory_ok = any(_need(room, request.memory_of(0)) <= room.memory for room in able)
    cores_ok = request.cores is None or any(request.cores <= room.cores for room in able)
    fitting = [room for room in able if misfit(room, request.memory_of(0), request.cores) is None]
    if len(set(request.memory)) > 1:
        return "not-enough-memory", f"no {count} devices have, in this order,"
    if fitting:
        return "not-enough-devices", f"only {len(fitting)} of {count} devices has"
    if not request.memory and not memory_ok and any(room.candidate.default is None for room in able):
        return "in-use", "no device has"
    if memory_ok and cores_ok:
        return "not-enough", "no single device has"
    return "not-enough-memory" if not memory_ok else "not-enough-cores", "no device has"


def _memory_text(request: Request, able: list[Room]) -> str:
    if request.memory:
        return ",".join(memory.text() for memory in request.memory) + " of memory"
    amounts = {room.candidate.default for room in able}
    amount = amounts.pop()
    return "all of its memory" if amounts or amount is None else f"{show(amount)} of memory"


def _nearest(
    request: Request, rooms: list[Room], count: int, fixed: bool, step: int
) -> dict[str, str] | None:
    """The request nearest to this one that fits now: its values in another order, less memory, else fewer
    cores, devices, or all of it.

    Every proposal is checked against the rooms themselves, so that what is offered is granted.
    """
    able = [room for room in rooms if room.candidate.reason is None]
    asks = [request.memory_of(position) for position in range(count)]
    positions = None if fixed or len(set(asks)) == 1 else _match(rooms, asks, request.cores)
    if positions is not None:
        order = sorted(range(count), key=positions.__getitem__)
        found = {"XPU_MEM": ",".join(request.memory[ask].text() for ask in order)}
        return {**found, "XPU_CORES": str(request.cores)} if request.cores else found
    wanted = max((_need(room, ask) for room in able for ask in asks), default=0)
    for n in [count] if fixed else range(count, 0, -1):
        proposals = []
        for memory, cores in _proposals(request, able, wanted, n, step):
            kept = memory / wanted * (cores / request.cores if request.cores else 1.0)
            if memory >= MIB and (cores or not request.cores) and _serves(rooms, memory, cores, n, fixed):
                proposals.append((kept, memory, cores))
        if proposals:
            _, memory, cores = max(proposals)
            return _as_variables(request, rooms, memory, cores, n, fixed)
    return None


def _proposals(request: Request, able: list[Room], wanted: int, n: int, step: int) -> list[tuple[int, int]]:
    """(bytes, cores) that n devices might have: all cores and less memory, the reverse, or less of both."""
    cores = request.cores or 0
    most = min(_nth([room.memory for room in able if room.cores >= cores], n), wanted)
    found = [(most // MIB * MIB, cores)]
    if request.cores:
        whole = wanted // MIB * MIB
        roomy = [room.cores for room in able if room.memory >= whole]
        found.append((whole, min(_nth(roomy, n) // step * step, cores)))
        some = sorted((room for room in able if room.cores >= step), key=lambda room: -room.memory)[:n]
        if len(some) == n:
            least = min(min(room.cores for room in some) // step * step, cores)
            found.append((min(some[-1].memory, wanted) // MIB * MIB, least))
    return found


def _serves(rooms: list[Room], memory: int, cores: int, n: int, fixed: bool) -> bool:
    ask = Memory(bytes=memory)
    fitting = [room for room in rooms if misfit(room, ask, cores or None) is None]
    return len(fitting) == len(rooms) if fixed else len(fitting) >= n


def _as_variables(
    request: Request, rooms: list[Room], memory: int, cores: int, n: int, fixed: bool
) -> dict[str, str]:
    found = {"XPU_MEM": as_variable(memory)}
    if request.cores:
        found["XPU_CORES"] = str(cores)
    if request.choice == "all":
        found["XPU_VISIBLE_DEVICES"] = "all"
    elif fixed:
        found["XPU_VISIBLE_DEVICES"] = ",".join(room.device.index for room in rooms)
    elif n > 1 or request.count > 1:
        found["XPU_COUNT"] = str(n)  # 1 too: else XPU_COUNT=2 would stand beside what is offered
    return found


def _nth(values: list[int], n: int) -> int:
    """The n-th largest, 0 where there are fewer."""
    return sorted(values, reverse=True)[n - 1] if len(values) >= n else 0
