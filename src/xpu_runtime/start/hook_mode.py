"""Hook mode: what the hook does for a container that is being created, from the request to the limits.

A function of values: what the hook's caller gave is read by hook.py. Spec mode's hook shares the functions at
the end (spec_mode_hook.py); what spec mode does before is not known here.
"""

from __future__ import annotations

from xpu_runtime import granting
from xpu_runtime.config.defaults import Config
from xpu_runtime.delivery import container, plan
from xpu_runtime.errors import RootlessError, SpecError
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.limits import choose, enforce
from xpu_runtime.linux import proc
from xpu_runtime.messages import Log, warn
from xpu_runtime.oci import build_step, engine_name
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.oci.state import State
from xpu_runtime.request import source
from xpu_runtime.start import mode
from xpu_runtime.vendors import discovery
from xpu_runtime.vendors.inventory import Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.linux.proc import Caller
    from xpu_runtime.oci.spec import Spec
    from xpu_runtime.request.request import Request


def start(state: State, spec: Spec, config: Config, log: Log, caller: Caller) -> Grant | None:
    """Gives the container of `state` what its spec asks for; None if that is no device.

    XpuError, and everything undone, if it cannot have it.
    """
    request = source.from_spec(spec, config, state.bundle)
    if request is None:
        return None
    if not proc.is_hosts_root():
        raise RootlessError
    waiting.allow(waiting.START_S)
    request = granting.resolved(request)
    inventory = discovery.load(config)
    rootfs = oci_spec.rootfs(spec, state.bundle)
    step = step_of(state, spec)
    if request.choice == "none":
        if config.mode == mode.HOOK or oci_spec.has_namespace(spec, "mount"):
            planned = plan.build(inventory, (), request.capabilities)
            container.carry_out(planned, state.pid, rootfs, spec, step=step)
        return None
    started = start_time_of(state)
    wanted = Grant(0, state.id, state.bundle, state.pid, started, "", "pending", mode.HOOK, 0.0, ())
    name = engine_name.of(state.bundle, state.id, spec)
    granted = granting.grant(inventory, request, config, wanted, name)
    if granted.state == "running" or granted.mode != mode.HOOK:
        return granted  # called twice, by the hook that the shim has put in and by hooks.d
    bound = granted
    try:
        # The limit first: no process of the container runs yet, and it is the easier one to undo.
        check_wanted(state, started, caller)
        bound = granting.impose(inventory, granted, state.pid, started, caller, (request, config), request)
        check_wanted(state, started, caller)
        container.carry_out(plan_of(inventory, bound, request), state.pid, rootfs, spec, step=step)
    except BaseException:
        granting.release(config, [bound])
        raise
    warn_of_unheld(bound, request, log)
    return bound


def step_of(state: State, spec: Spec) -> str:
    """The id of a container that is a step of a build; "" for every other one."""
    return state.id if build_step.is_one(state.bundle, spec) else ""


def plan_of(inventory: Inventory, grant: Grant, request: Request) -> plan.Plan:
    """What the container of a grant gets, the backends' contributions included."""
    contributions = enforce.contributions(inventory, grant)
    return plan.build(inventory, grant.slices, request.capabilities, contributions)


def start_time_of(state: State) -> int:
    """The start time of the container's process, in clock ticks since boot; SpecError where it has none."""
    started = proc.start_time(state.pid) if state.pid else None
    if started is None:
        raise SpecError(f"container {state.id} has no process {state.pid} to give an XPU to")
    return started


def check_wanted(state: State, started: int, caller: Caller) -> None:
    """SpecError where the container's process, or who asked for its slice, has ended meanwhile.

    Either may be killed while a start worker is at this for them, and a process id may be another container's
    by then.
    """
    if not (proc.is_alive(state.pid, started) and proc.is_alive(caller.pid, caller.start_time)):
        raise has_ended(state)


def has_ended(state: State) -> SpecError:
    """What is said of a container that ended meanwhile."""
    return SpecError(f"container {state.id} has ended while it was given its slice")


def warn_of_unheld(grant: Grant, request: Request, log: Log) -> None:
    """Warns once a container: of limits that nothing holds, in the runtime's log and the node's, and of a
    debug log that stays empty, in the runtime's."""
    silent = choose.why_no_log(grant.slices) if request.log else None
    if silent:
        log.write("warning", f"container {grant.container_id}: {silent}")
    unheld = choose.unheld(grant.slices)
    if unheld:
        warn(
            log,
            f"container {grant.container_id}: its limit on {', '.join(unheld)} is booked and not enforced: "
            "nothing on this node can hold it",
        )
