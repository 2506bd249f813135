"""The devices that a request may have, before the ledger is asked: named ones, or those of one vendor.

Each candidate comes with the backends that would hold its limits, or with the reason why it cannot serve. How
much of it is free is placement's concern.
"""

from __future__ import annotations

import os

from xpu_runtime import paths
from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.limits import choose
from xpu_runtime.placement.available import Candidate
from xpu_runtime.request import require
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import Memory, parse_memory
from xpu_runtime.vendors import inventory as node
from xpu_runtime.vendors.inventory import Device, Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config


def eligible(choice: list[Candidate], request: Request, config: Config) -> list[Candidate] | Refusal:
    """The candidates that are neither drained nor reserved. Refusal if `all` of them are more than the policy
    allows.

    The marks are read under the ledger's lock. An operator who drains a device, and then gets the lock, knows
    that no new container gets it.
    """
    if request.reservation is not None or os.path.lexists(paths.state_dir()):
        from xpu_runtime.placement.marks import unmarked  # most nodes have no marks

        left = unmarked(choice, request)
        if isinstance(left, Refusal):
            return left
        choice = left
    maximum = config.policy_max_count
    if request.choice == "all" and not request.privileged and maximum is not None and len(choice) > maximum:
        text = f"all {len(choice)} devices are requested, and policy.max_count allows {maximum}"
        return Refusal("not-eligible", text)
    return choice


def of(inventory: Inventory, request: Request, config: Config) -> list[Candidate] | Refusal:
    """The devices to choose from, each with its backends or the reason why it cannot serve."""
    if not inventory.devices:
        return Refusal("no-device", node.why_empty(inventory))
    devices: list[Device] = []
    if request.choice == "list":
        for selector in request.selectors:
            device = node.find(inventory, selector)
            if device is None:
                why = node.why_not_found(inventory, selector)
                return Refusal("unknown-device", f"{request.choice_from} names {selector!r}, {why}")
            if device in devices:
                return Refusal(
                    "unknown-device",
                    f"{request.choice_from} names {device.label} twice, also as {selector!r}",
                )
            if request.vendor not in ("", device.vendor):
                return Refusal(
                    "unknown-device",
                    f"{request.choice_from} names {selector!r}, which is a device of {device.vendor}: "
                    "list it in XPU_VISIBLE_DEVICES",
                )
            devices.append(device)
    else:
        devices = _of_one_vendor(inventory, request)
        if not devices:
            return Refusal("no-device", _no_device_of(inventory, request))
    return [of_device(inventory, device, request, config) for device in devices]


def _of_one_vendor(inventory: Inventory, request: Request) -> list[Device]:
    """The devices for a request that lists none: those of one vendor, because a program is built for one.

    The vendor is that of XPU_REQUIRE (`vendor=`), otherwise of the image's variables, otherwise of the node's
    first device.
    """
    vendors = list(dict.fromkeys(device.vendor for device in inventory.devices))
    if require.names_vendor(request.requirements):
        # Without an allowed vendor all are kept, so that each device reports the reason.
        vendors = require.vendors(request.requirements, vendors) or vendors
    elif request.vendor:
        vendors = [request.vendor]
    return [device for device in inventory.devices if device.vendor == vendors[0]]


def _no_device_of(inventory: Inventory, request: Request) -> str:
    others = ", ".join(dict.fromkeys(device.vendor for device in inventory.devices))
    why = f" ({'; '.join(inventory.problems)})" if inventory.problems else ""
    return (
        f"the image asks for {request.vendor.upper()} devices, and this node has only {others} ones{why}; "
        f"XPU_REQUIRE=vendor={inventory.devices[0].vendor} asks for those"
    )


def of_device(inventory: Inventory, device: Device, request: Request, config: Config) -> Candidate:
    """One device, with its backends or the reason why it cannot serve."""
    default, _ = unasked(device, config, request) if choose.takes_default(request) else (None, "")
    if default is not None and not request.memory:
        held, reason = choose.holding(inventory, device, request.replace(memory=(Memory(default),)), config)
    else:
        held, reason = choose.holding(inventory, device, request, config)
    reasons = [reason] if reason else []
    if request.requirements:
        unmet = require.unmet(request.requirements, inventory.facts(device))
        reasons = [unmet, *reasons] if unmet else reasons
    if config.policy_devices is not None and not node.lists(config.policy_devices, device):
        reasons.insert(0, "policy.devices does not list it")
    if device.fault is not None:
        reasons.insert(0, f"not healthy: {device.fault}")
    maximum = None
    if config.policy_max_memory is not None and not (request.privileged or request.decided):
        maximum = parse_memory(config.policy_max_memory).on(device.memory_bytes)
    return Candidate(device, "; and ".join(reasons) or None, held, maximum, default)


def unasked(device: Device, config: Config, request: Request) -> tuple[int | None, str]:
    """The memory of `device`, in bytes, for a container without XPU_MEM, and the setting that it comes from.

    (None, "") for the whole device; so it is for a default or maximum of at least its size.
    """
    if request.decided:
        return None, ""
    amounts = []
    if config.defaults_memory is not None:
        amounts.append((parse_memory(config.defaults_memory).on(device.memory_bytes), "defaults.memory"))
    if config.policy_max_memory is not None and not request.privileged:
        amounts.append((parse_memory(config.policy_max_memory).on(device.memory_bytes), "policy.max_memory"))
    least = min(amounts, default=(device.memory_bytes, ""))
    return least if least[0] < device.memory_bytes else (None, "")
