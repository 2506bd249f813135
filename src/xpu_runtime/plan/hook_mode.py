"""What the hook does for a container that is being created, as functions of values.

Hook mode does the whole way here, from the request to the quota. Spec mode has booked before, and written
the devices into the spec: here the grant is bound to the container that now exists, which gets its mounts.
"""

from __future__ import annotations

from xpu_runtime.config.defaults import Config
from xpu_runtime.devices import inventory
from xpu_runtime.devices.inventory import Inventory
from xpu_runtime.errors import ApplyError, SpecError
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import proc
from xpu_runtime.messages import Log, warn
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.oci.state import State
from xpu_runtime.plan import granting, live
from xpu_runtime.plan import mode as plan_mode
from xpu_runtime.quota import library, limits
from xpu_runtime.quota.choose import UNENFORCED
from xpu_runtime.request import source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.oci.spec import Spec
    from xpu_runtime.request.request import Request


def start(state: State, spec: Spec, config: Config, log: Log) -> Grant | None:
    """Gives the container of `state` what its spec asks for; None if that is no device.

    XpuError, and everything undone, if it cannot have it.
    """
    request = source.from_spec(spec, config)
    if request is None:
        return None
    waiting.allow(waiting.START_S)
    found = inventory.load(config)
    rootfs = oci_spec.rootfs(spec, state.bundle)
    if request.choice == "none":
        if config.mode != plan_mode.HOOK and plan_mode.mounts_are_in_spec(spec):
            return None
        live.carry_out(found, (), request.capabilities, state.pid, rootfs, None, spec)
        return None
    return _give(state, request, found, config, log, spec, rootfs)


def _give(
    state: State,
    request: Request,
    found: Inventory,
    config: Config,
    log: Log,
    spec: Spec,
    rootfs: str,
) -> Grant:
    privileged = oci_spec.is_privileged(spec)
    started = _start_time(state)
    wanted = Grant(0, state.id, state.bundle, state.pid, started, "", "pending", plan_mode.HOOK, 0.0, ())
    granted = granting.grant(found, request, config, wanted, privileged=privileged)
    if granted.state == "running" or granted.mode != plan_mode.HOOK:
        return granted  # called twice, by the shim's injection and by hooks.d
    bound = granted
    try:
        # The limit first: no process of the container runs yet, and it is the easier one to undo.
        bound = granting.impose(found, granted, state.pid, started)
        pages = limits.pages(granted)
        live.carry_out(found, granted.slices, request.capabilities, state.pid, rootfs, pages, spec)
    except BaseException:
        granting.release(config, [bound])
        raise
    _warn(bound, request, log)
    return bound


def bind(state: State, number: int, spec: Spec, config: Config, log: Log) -> Grant:
    """Spec mode: binds grant `number` to the container of `state`, sets its quotas and makes its mounts."""
    waiting.allow(waiting.START_S)
    with Ledger() as ledger:
        grants = [grant for grant in ledger.of_container(state.id) if grant.id == number]
    if not grants:
        raise ApplyError(f"grant {number} of container {state.id} is gone", "start the container again")
    request = source.from_spec(spec, config)
    if request is None:
        raise SpecError(f"the spec of container {state.id} asks for no XPU any more", "start it again")
    found = inventory.load(config)
    bound = granting.impose(found, grants[0], state.pid, _start_time(state))
    if not plan_mode.mounts_are_in_spec(spec):
        try:
            live.carry_out(
                found,
                bound.slices,
                request.capabilities,
                state.pid,
                oci_spec.rootfs(spec, state.bundle),
                limits.pages(bound),
                spec,
                allow=False,
            )
        except BaseException:
            granting.release(config, [bound])
            raise
    _warn(bound, request, log)
    return bound


def _start_time(state: State) -> int:
    started = proc.start_time(state.pid) if state.pid else None
    if started is None:
        raise SpecError(f"container {state.id} has no process {state.pid} to give an XPU to")
    return started


def _warn(grant: Grant, request: Request, log: Log) -> None:
    """Says once a container which limits nothing holds, in the runtime's log and in the node's, and in the
    former why the log that it asks for stays empty."""
    silent = library.why_no_log(grant.slices) if request.log else None
    if silent:
        log.write("warning", f"container {grant.container_id}: {silent}")
    unheld = [
        f"{kind} of GPU {part.device_index}"
        for part in grant.slices
        for kind, strength in (
            ("memory", part.holding.memory_strength),
            ("cores", part.holding.cores_strength),
        )
        if strength == UNENFORCED
    ]
    if unheld:
        warn(
            log,
            f"container {grant.container_id}: its limit on {', '.join(unheld)} is booked and not enforced: "
            "nothing on this node can hold it",
        )
