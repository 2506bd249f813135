"""The hook's part of a container's start: all of it in hook mode. In spec mode the shim did the first half
(spec_mode.py), and this is the rest, which needs the container itself.

A function of values: hook.py reads the caller's input.
"""

from __future__ import annotations

from xpu_runtime.delivery import container
from xpu_runtime.errors import ApplyError, RootlessError, SpecError
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import choose
from xpu_runtime.linux import proc
from xpu_runtime.messages import Log, warn
from xpu_runtime.oci import build_step
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.request import source
from xpu_runtime.start import mode
from xpu_runtime.start.sequence import Start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config
    from xpu_runtime.ledger.grants import Grant
    from xpu_runtime.linux.proc import Caller
    from xpu_runtime.oci.spec import Spec
    from xpu_runtime.oci.state import State
    from xpu_runtime.request.request import Request


def start(
    state: State, number: int | None, spec: Spec, config: Config, log: Log, caller: Caller
) -> Grant | None:
    """Gives the container of `state` the slices that its spec asks for; in spec mode they are booked as grant
    `number`. None if it asks for no device.

    XpuError, with everything undone, if it cannot have them.
    """
    request = source.from_spec(spec, config, state.bundle)
    if request is None and number is None:
        return None
    if request is None:
        raise SpecError(f"the spec of container {state.id} asks for no XPU any more", "start it again")
    if not proc.is_hosts_root():
        raise RootlessError
    waiting.allow(waiting.START_S)
    steps = Start(request, config)
    rootfs = oci_spec.rootfs(spec, state.bundle)
    has_mounts = oci_spec.has_namespace(spec, "mount")
    step = state.id if build_step.is_one(state.bundle, spec) else ""
    if steps.request.choice == "none":
        if config.mode == mode.HOOK or has_mounts:
            container.carry_out(steps.plan((), None), state.pid, rootfs, spec, step=step)
        return None
    process = state.pid, _start_time_of(state)
    if number is not None:
        granted = _booked(state, number)
    else:
        granted = steps.book(state.id, state.bundle, process, mode.HOOK, spec)
        if granted.state == "running" or granted.mode != mode.HOOK:
            return granted  # called twice, by the hook that the shim has put in and by hooks.d
    # Without a mount namespace spec mode has written all that the container gets into its spec.
    in_spec = number is not None and not has_mounts
    bound = granted
    try:
        # The limit first: no process of the container runs yet, and it is the easier one to undo.
        _check_wanted(state, process, caller)
        bound = steps.impose(granted, process, caller, is_settled=in_spec)
        _check_wanted(state, process, caller)
        if not in_spec:
            planned = steps.plan(bound.slices, bound)
            container.carry_out(planned, state.pid, rootfs, spec, allow=number is None, step=step)
    except BaseException:
        steps.give_back(bound)
        raise
    _warn_of_unheld(bound, steps.request, log)
    return bound


def _booked(state: State, number: int) -> Grant:
    with Ledger() as ledger:
        for grant in ledger.of_container(state.id):
            if grant.id == number:
                return grant
    raise ApplyError(f"grant {number} of container {state.id} is gone", "start the container again")


def _start_time_of(state: State) -> int:
    """The start time of the container's process, in clock ticks since boot; SpecError where it has none."""
    started = proc.start_time(state.pid) if state.pid else None
    if started is None:
        raise SpecError(f"container {state.id} has no process {state.pid} to give an XPU to")
    return started


def _check_wanted(state: State, process: tuple[int, int], caller: Caller) -> None:
    """SpecError if the container's process, or the caller, has ended meanwhile.

    Either may be killed while a start worker is at this for them, and a process id may be another container's
    by then.
    """
    if not (proc.is_alive(*process) and proc.is_alive(caller.pid, caller.start_time)):
        raise has_ended(state)


def has_ended(state: State) -> SpecError:
    """The error of a container that ended meanwhile."""
    return SpecError(f"container {state.id} has ended while it was given its slice")


def _warn_of_unheld(grant: Grant, request: Request, log: Log) -> None:
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
