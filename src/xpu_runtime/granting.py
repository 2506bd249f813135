"""From a request to a grant: candidates, backends and placement, in one ledger transaction.

A grant is given, bound to its container and taken back here. Delivery makes it usable in the container, and
backends hold its limits. This module names no backend, vendor or engine.
"""

from __future__ import annotations

import os

from xpu_runtime import candidates, paths
from xpu_runtime.errors import ApplyError, DeviceError, XpuError
from xpu_runtime.ledger import cgroup_records
from xpu_runtime.ledger.grants import Grant, Slice, Use
from xpu_runtime.ledger.refusal import Refusal, Refused
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import enforce
from xpu_runtime.linux import cgroups
from xpu_runtime.placement.available import Candidate
from xpu_runtime.placement.container import place
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import parse_memory
from xpu_runtime.vendors import discovery
from xpu_runtime.vendors import inventory as node
from xpu_runtime.vendors.inventory import Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from xpu_runtime.config.defaults import Config
    from xpu_runtime.linux.proc import Caller


def decide(
    inventory: Inventory, request: Request, config: Config, ledger: Ledger
) -> tuple[Slice, ...] | Refusal:
    """The slices that a `resolved` request would get by the state of the ledger; changes nothing."""
    if request.choice == "none":
        return ()
    choice = candidates.of(inventory, request, config)
    if isinstance(choice, Refusal):
        return choice
    if request.of_pod is not None:
        return _of_allocation(choice, inventory, request, config, ledger, enter=False)
    return placed(choice, request, config, ledger.uses(), ledger)


def resolved(request: Request) -> Request:
    """The request, completed by its pod's allocation from the ledger; the request of a container outside of
    pods is complete already. RequestError if the pod has no allocation."""
    if request.of_pod is None or request.selectors:
        return request
    from xpu_runtime.ledger.pod_ledger import PodLedger
    from xpu_runtime.placement import allocation

    with PodLedger() as ledger:
        return allocation.resolved(request, ledger)


def ledger_for(request: Request) -> Ledger:
    """The ledger, not open yet, that `decide` needs."""
    if request.of_pod is None:
        return Ledger()
    from xpu_runtime.ledger.pod_ledger import PodLedger

    return PodLedger()


def _of_allocation(
    choice: list[Candidate],
    inventory: Inventory,
    request: Request,
    config: Config,
    ledger: Ledger,
    *,
    enter: bool,
) -> tuple[Slice, ...] | Refusal:
    """A pod's container's part of its pod's allocation. With `enter`, an assignment that is not in the ledger
    yet is entered."""
    from xpu_runtime.ledger.pod_ledger import PodLedger
    from xpu_runtime.placement import allocation

    assert isinstance(ledger, PodLedger)
    there = allocation.place_of(request, inventory, config, ledger)
    if isinstance(there, Refusal):
        return there
    found = placed(choice, request, config, there.uses, ledger)
    if isinstance(found, Refusal):
        return found.replace(nearest=None, is_full=False)  # its slices are decided: no other backend would do
    if enter and there.enter is not None:
        ledger.enter(there.enter, {device.uuid: device.index for device in inventory.devices})
    return found


def placed(
    choice: list[Candidate],
    request: Request,
    config: Config,
    uses: dict[str, Use],
    ledger: Ledger | None = None,
) -> tuple[Slice, ...] | Refusal:
    """The slices of a request on some of these candidates, beside the shares of others (`uses`). `ledger`,
    which is locked, has the use of the request's quotas."""
    left = candidates.eligible(choice, request, config)
    if isinstance(left, Refusal):
        return left
    found = _place(request, left, uses, config)
    if not request.quotas or ledger is None:
        return found
    from xpu_runtime.ledger import quotas

    if not isinstance(found, Refusal):
        return quotas.over(request.quotas, found, ledger.counted) or found
    if found.nearest:
        named = found.nearest.get("XPU_VISIBLE_DEVICES", "all").split(",")
        offered = [each for each in left if named == ["all"] or each.device.index in named]
        other = _place(_as_proposed(request, found.nearest), offered, uses, config)
        if isinstance(other, Refusal) or quotas.over(request.quotas, other, ledger.counted):
            return found.replace(nearest=None)  # it fits the devices, and would be refused all the same
    return found


def _place(
    request: Request, choice: list[Candidate], uses: dict[str, Use], config: Config
) -> tuple[Slice, ...] | Refusal:
    return place(
        request,
        choice,
        uses,
        policy=request.policy or config.placement_policy,
        oversubscribe=config.oversubscribe_memory,
        step=config.cores_step,
    )


def _as_proposed(request: Request, nearest: dict[str, str]) -> Request:
    return request.replace(
        memory=tuple(parse_memory(each) for each in nearest["XPU_MEM"].split(",")),
        cores=int(nearest["XPU_CORES"]) if "XPU_CORES" in nearest else None,
        count=int(nearest.get("XPU_COUNT", request.count)),
    )


def grant(inventory: Inventory, request: Request, config: Config, wanted: Grant, name: str) -> Grant:
    """Books a grant for the container described by `wanted`, which its engine calls `name` ("": not known),
    and whose request is `resolved`. Refused has the reason if there is none."""
    refusals: list[Refusal] = []
    # Before the ledger is locked: the backends look at files, and other starts wait for the lock.
    choice = candidates.of(inventory, request, config)

    with ledger_for(request) as ledger:

        def choose_slices(uses: dict[str, Use]) -> tuple[Slice, ...] | None:
            outcome: tuple[Slice, ...] | Refusal
            if isinstance(choice, Refusal):
                outcome = choice
            elif request.of_pod is not None:
                outcome = _of_allocation(choice, inventory, request, config, ledger, enter=True)
            else:
                outcome = placed(choice, request, config, uses, ledger)
            if isinstance(outcome, Refusal):
                refusals.append(outcome)
                return None
            return outcome

        quotas = [quota.name for quota in request.quotas]
        granted, dead = ledger.grant(wanted, choose_slices, quotas, _of_pod(request), name)
    try:
        enforce.clear(inventory, dead, wanted)
    except XpuError:
        pass  # a limit of a container that has ended: no reason for this one not to start
    end_unused(dead)
    if granted is None:
        from xpu_runtime.request.parse import by_annotations  # needed on the way to an error alone

        raise Refused(refusals[-1], by_annotations(request))
    try:
        enforce.prepare(granted, request)
    except BaseException:
        release(config, [granted])
        raise
    return granted


def _of_pod(request: Request) -> tuple[str, str] | None:
    """The UID of its pod and its name, of a pod's container."""
    return None if request.of_pod is None else (request.of_pod.uid, request.of_pod.container)


def impose(
    inventory: Inventory,
    granted: Grant,
    pid: int,
    start_time: int,
    caller: Caller,
    choose_again: tuple[Request, Config] | None,
    request: Request,
) -> Grant:
    """Puts the grant's limits into force on the live container `pid`, and marks the grant as running.

    With `choose_again` another backend may replace one that needs a cgroup v2 folder if the container turns
    out to have none; None if the plan is settled already. XpuError if a limit cannot be set; then none stays
    set.
    """
    # Only the container's own cgroup counts: a limit on another one would hold for the engine too.
    cgroup = cgroups.v2_folder(pid, not_of=caller.pid)
    if not cgroup and choose_again is not None and enforce.needs_cgroup(granted):
        granted = _without_cgroup(inventory, granted, *choose_again)
    bound = granted.replace(pid=pid, start_time=start_time, cgroup=cgroup or "", state="running")
    enforce.impose(inventory, bound)
    try:
        with Ledger() as ledger:
            # Before the ledger says that it runs: a ledger that vanishes is rebuilt from these.
            names = [quota.name for quota in request.quotas]
            cgroup_records.keep(bound, ledger.path, caller, names, _of_pod(request))
            if not ledger.bind(bound, caller.began):
                raise ApplyError(
                    f"grant {granted.id} was released while the container was being created",
                    "start the container again",
                )
    except BaseException:
        cgroup_records.forget(bound)
        enforce.clear(inventory, [bound])
        raise
    return bound


def _without_cgroup(inventory: Inventory, granted: Grant, request: Request, config: Config) -> Grant:
    """The grant with backends chosen again, for a container without a cgroup v2 folder.

    Only an existing container shows whether it has that folder: runc before 1.1 makes none on a hybrid node
    (cgroup v1 mounted beside v2), and no file tells this earlier. Refused if no other backend can hold a
    limit.
    """
    request = request.replace(no_cgroup="the low-level runtime made no cgroup v2 folder for this container")
    slices = []
    for slice_ in granted.slices:
        device = node.find(inventory, slice_.device_uuid)
        if device is None:
            raise DeviceError(f"device {slice_.device_uuid} is no longer there", "see `xpu devices`")
        candidate = candidates.of_device(inventory, device, request, config)
        if candidate.reason is not None:
            raise Refused(Refusal("not-eligible", f"{device.label}: {candidate.reason}"))
        slices.append(slice_.replace(holding=candidate.holding))
    chosen = granted.replace(slices=tuple(slices))
    # A backend that held cores alone until now may hold memory too from here on.
    enforce.prepare(chosen, request, anew=True)
    with Ledger() as ledger:
        ledger.hold(chosen)
    return chosen


def release(
    config: Config, grants: list[Grant], cleared: Callable[[Config, list[Grant]], None] | None = None
) -> None:
    """Lifts the limits of grants and gives their slices back; safe to repeat. `cleared` stands for
    `clear`."""
    if not grants:
        return
    (cleared or clear)(config, grants)
    with Ledger() as ledger:
        for grant in grants:
            cgroup_records.forget(grant)
        ledger.release(grants)
    end_unused(grants)


def end_unused(grants: list[Grant]) -> None:
    """Ends the daemons and files that backends keep for a device, if these grants were its last."""
    if grants and os.path.isdir(paths.in_run_dir(paths.DEVICE_FOLDERS)):
        from xpu_runtime.limits import per_device

        per_device.end_unused(grants)


def reap(config: Config, cleared: Callable[[Config, list[Grant]], None] | None = None) -> list[Grant]:
    """Takes back the slices of dead containers, and returns their grants. `cleared` stands for `clear`."""
    from xpu_runtime.limits import folders
    from xpu_runtime.oci import own_bundle

    own_bundle.remove_unused()
    left = folders.left()
    with Ledger() as ledger:
        dead = ledger.reap()
        # A call that was killed can leave a folder without a grant. One that was listed before and has no
        # grant now never gets one again.
        known = {folders.of(grant) for grant in ledger.grants()}
    (cleared or clear)(config, dead)
    for folder in left:
        if folder not in known:
            folders.remove(folder)
    if os.path.isdir(paths.in_run_dir(paths.DEVICE_FOLDERS)):
        from xpu_runtime.limits import per_device

        per_device.end_all_unused()
    return dead


def clear(config: Config, grants: list[Grant]) -> None:
    """Lifts the limits of grants that have ended, and removes their files."""
    needed = any(enforce.must_lift(grant) for grant in grants)
    enforce.clear(discovery.load(config) if needed else None, grants)
