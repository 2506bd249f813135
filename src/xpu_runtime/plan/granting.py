"""From a request to a grant: candidates, backends and placement, in one ledger transaction."""

from __future__ import annotations

import os

from xpu_runtime.devices import inventory
from xpu_runtime.devices.inventory import Device, Inventory
from xpu_runtime.errors import ApplyError
from xpu_runtime.ledger import survivors
from xpu_runtime.ledger.grants import Grant, Slice, Use
from xpu_runtime.ledger.placement import Candidate, place
from xpu_runtime.ledger.refusal import Refusal, Refused
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import cgroups
from xpu_runtime.quota import choose, limits
from xpu_runtime.request import require
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import Memory, parse_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config


def candidates(
    found: Inventory, request: Request, config: Config, privileged: bool
) -> list[Candidate] | Refusal:
    """The devices to choose from, each with what holds its limits or why it cannot serve."""
    devices: list[Device] = []
    if request.choice == "list":
        for selector in request.selectors:
            device = inventory.find(found, selector)
            if device is None:
                known = ", ".join(f"{d.index} ({d.uuid})" for d in found.devices[:8])
                return Refusal(
                    "unknown-device",
                    f"{request.choice_from} names {selector!r}, which is not on this node; it has {known}",
                )
            if device in devices:
                return Refusal(
                    "unknown-device", f"{request.choice_from} names {device.label} twice, by {selector!r} too"
                )
            devices.append(device)
    else:
        devices = list(found.devices)
    maximum = config.policy_max_count
    if request.choice == "all" and not privileged and maximum is not None and len(devices) > maximum:
        text = f"all {len(devices)} devices are asked for, and policy.max_count={maximum} allows {maximum}"
        return Refusal("not-eligible", text)
    return [_candidate(found, device, request, config, privileged) for device in devices]


def _candidate(
    found: Inventory, device: Device, request: Request, config: Config, privileged: bool
) -> Candidate:
    default, _ = (None, "") if request.enforce == choose.MIG else unasked(device, config, privileged)
    if default is not None and not request.memory:
        held, reason = choose.holding(found, device, request.replace(memory=(Memory(default),)), config)
    else:
        held, reason = choose.holding(found, device, request, config)
    reasons = [reason] if reason else []
    if request.requirements:
        facts = {
            "cuda": found.cuda_version,
            "driver": found.driver_version,
            "arch": device.compute_capability,
            "brand": device.brand,
        }
        unmet = require.unmet(request.requirements, facts)
        reasons = [unmet, *reasons] if unmet else reasons
    if config.policy_devices is not None and not inventory.lists(config.policy_devices, device):
        reasons.insert(0, "policy.devices does not list it")
    if device.fault is not None:
        reasons.insert(0, f"not healthy: {device.fault}")
    maximum = None
    if config.policy_max_memory is not None and not privileged:
        maximum = parse_memory(config.policy_max_memory).on(device.memory_bytes)
    return Candidate(device, "; and ".join(reasons) or None, held, maximum, default)


def unasked(device: Device, config: Config, privileged: bool) -> tuple[int | None, str]:
    """What a container gets of `device` that sets no XPU_MEM, in bytes, and where that is configured.

    (None, "") for the whole device, which a default or a maximum that is no less than it means as well.
    """
    amounts = []
    if config.defaults_memory is not None:
        amounts.append((parse_memory(config.defaults_memory).on(device.memory_bytes), "defaults.memory"))
    if config.policy_max_memory is not None and not privileged:
        amounts.append((parse_memory(config.policy_max_memory).on(device.memory_bytes), "policy.max_memory"))
    least = min(amounts, default=(device.memory_bytes, ""))
    return least if least[0] < device.memory_bytes else (None, "")


def decide(
    found: Inventory, request: Request, config: Config, uses: dict[str, Use], *, privileged: bool
) -> tuple[Slice, ...] | Refusal:
    """What the request would get if `uses` is what is granted; changes nothing."""
    if request.choice == "none":
        return ()
    if not found.devices:
        return Refusal("no-device", inventory.why_empty(found))
    choice = candidates(found, request, config, privileged)
    if isinstance(choice, Refusal):
        return choice
    return place(
        request,
        choice,
        uses,
        policy=request.policy or config.placement_policy,
        oversubscribe=config.oversubscribe_memory,
        step=config.cores_step,
    )


def grant(found: Inventory, request: Request, config: Config, wanted: Grant, *, privileged: bool) -> Grant:
    """Books a grant for the container described by `wanted`; Refused says why there is none."""
    refusals: list[Refusal] = []

    def choose_slices(uses: dict[str, Use]) -> tuple[Slice, ...] | None:
        outcome = decide(found, request, config, uses, privileged=privileged)
        if isinstance(outcome, Refusal):
            refusals.append(outcome)
            return None
        return outcome

    with Ledger() as ledger:
        granted, dead = ledger.grant(wanted, choose_slices)
    limits.clear(found, dead, wanted)
    if granted is None:
        raise Refused(refusals[-1])
    try:
        limits.prepare(granted)
    except BaseException:
        release(config, [granted])
        raise
    return granted


def impose(found: Inventory, granted: Grant, pid: int, start_time: int) -> Grant:
    """Sets the grant's quotas on the live container `pid`, and marks the grant as running.

    XpuError, with no limit left set, if a quota cannot be set.
    """
    cgroup = cgroups.v2_folder(pid)
    if cgroup is not None and cgroup == cgroups.v2_folder(os.getpid()):
        cgroup = None  # not the container's own: a limit there would hold for the engine too
    limits.impose(found, granted.slices, cgroup)
    bound = granted.replace(pid=pid, start_time=start_time, cgroup=cgroup or "", state="running")
    try:
        with Ledger() as ledger:
            # Before the ledger has it as running: if that vanishes, whatever runs must be found again.
            survivors.keep(bound, ledger.path)
            if not ledger.bind(bound):
                raise ApplyError(
                    f"grant {granted.id} was released while the container was being created",
                    "start the container again",
                )
    except BaseException:
        survivors.forget(bound)
        limits.clear(found, [bound])
        raise
    return bound


def release(config: Config, grants: list[Grant]) -> None:
    """Clears the quotas of grants and gives their slices back; safe to repeat."""
    if not grants:
        return
    _clear(config, grants)
    with Ledger() as ledger:
        for grant in grants:
            survivors.forget(grant)
        ledger.release(grants)


def reap(config: Config) -> list[Grant]:
    """Takes back what dead containers hold, and returns their grants."""
    from xpu_runtime.oci import own_bundle
    from xpu_runtime.quota import folders

    own_bundle.sweep()
    left = folders.left()
    with Ledger() as ledger:
        dead = ledger.reap()
        # A call that was killed between the ledger and the folder has left one; those listed here that are
        # of no grant now never will be of one again.
        known = {folders.of(grant) for grant in ledger.grants()}
    _clear(config, dead)
    for folder in left:
        if folder not in known:
            folders.remove(folder)
    return dead


def _clear(config: Config, grants: list[Grant]) -> None:
    needed = any(limits.in_driver(grant) for grant in grants)
    limits.clear(inventory.load(config) if needed else None, grants)
