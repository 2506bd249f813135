"""Why no devices serve a container's request, and which request would fit. Decides nothing."""

from __future__ import annotations

from xpu_runtime.ledger.refusal import DeviceStatus, Refusal
from xpu_runtime.placement.available import AvailableDevice, footprint, shortfall
from xpu_runtime.placement.nearest import nearest
from xpu_runtime.request.request import Request, wrong_number
from xpu_runtime.request.units import MIB, Memory, as_variable, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.ledger.vocabulary import Code


def why(request: Request, devices: list[AvailableDevice], count: int, fixed: bool, step: int) -> Refusal:
    """The refusal. `count`: devices that are requested; `fixed`: they are these; `step`: of cores."""
    statuses = _statuses(devices, request, count)
    if fixed and len(request.memory) not in (0, 1, count):
        wrong = f"XPU_MEM has {wrong_number(len(request.memory), count)}"
        return Refusal("not-enough-devices", wrong, statuses)
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


def _statuses(devices: list[AvailableDevice], request: Request, count: int) -> tuple[DeviceStatus, ...]:
    """Each device, its free part, and why that is not enough."""
    found = []
    for position, device in enumerate(devices):
        amount = request.memory_of(position if position < max(len(request.memory), 1) else 0)
        reason = shortfall(device, amount, request.cores) or f"fits, but {count} devices are needed"
        found.append(
            DeviceStatus(device.candidate.device.index, device.free_memory, device.free_cores, reason)
        )
    return tuple(found)


def _shortage(request: Request, eligible: list[AvailableDevice], count: int) -> tuple[Code, str]:
    """The code for the eligible devices' shortage, and the message, with `{}` for the requested amount."""
    memory_ok = any(footprint(device, request.memory_of(0)) <= device.free_memory for device in eligible)
    cores_ok = request.cores is None or any(request.cores <= device.free_cores for device in eligible)
    fitting = [
        device for device in eligible if shortfall(device, request.memory_of(0), request.cores) is None
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
    """The nearest request that fits now. It has the values of this one in another order, or less memory, or
    fewer cores or devices."""
    eligible = [device for device in devices if device.candidate.reason is None]
    amounts = [request.memory_of(position) for position in range(count)]
    positions = None if fixed or len(set(amounts)) == 1 else _match(devices, amounts, request.cores)
    if positions is not None:
        order = sorted(range(count), key=positions.__getitem__)
        found = {"XPU_MEM": ",".join(request.memory[amount].text() for amount in order)}
        return {**found, "XPU_CORES": str(request.cores)} if request.cores else found
    wanted = max((footprint(device, amount) for device in eligible for amount in amounts), default=0)
    free = [(device.free_memory, device.free_cores) for device in eligible]
    best = nearest(free, wanted, request.cores or 0, count, MIB, step)
    return None if best is None else _as_variables(request, devices, *best, fixed)


def _match(
    devices: list[AvailableDevice], amounts: list[Memory | None], cores: int | None
) -> list[int] | None:
    """For each amount the position in `devices` of a device of its own, in any order; None if there is none.

    Devices of different sizes cannot be matched greedily, as a percentage is another amount on each: this is
    bipartite matching by augmenting paths (Kuhn).
    """
    fits = [
        [p for p, device in enumerate(devices) if shortfall(device, amount, cores) is None]
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


def _as_variables(
    request: Request, devices: list[AvailableDevice], n: int, memory: int, cores: int, fixed: bool
) -> dict[str, str]:
    found = {"XPU_MEM": as_variable(memory)}
    if request.cores:
        found["XPU_CORES"] = str(cores)
    if fixed and n < len(devices):
        able = [device for device in devices if device.candidate.reason is None]
        fitting = [each for each in able if each.free_memory >= memory and each.free_cores >= cores]
        found["XPU_VISIBLE_DEVICES"] = ",".join(each.candidate.device.index for each in fitting[:n])
    elif request.choice == "all":
        found["XPU_VISIBLE_DEVICES"] = "all"
    elif fixed:
        found["XPU_VISIBLE_DEVICES"] = ",".join(device.candidate.device.index for device in devices)
    elif n > 1 or request.count > 1:
        found["XPU_COUNT"] = str(n)  # 1 as well: the request has another XPU_COUNT
    return found
