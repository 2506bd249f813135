"""Spec mode's second half: what the hook does for a container whose grant spec_mode.py has booked.

The shim has written the devices' rules into the spec. Here the grant is bound to the container that now
exists, its limits come into force, and it gets its mounts. No device is chosen here.
"""

from __future__ import annotations

from xpu_runtime import granting
from xpu_runtime.delivery import container
from xpu_runtime.errors import ApplyError, SpecError
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.request import source
from xpu_runtime.start.hook_mode import check_wanted, plan_of, start_time_of, step_of, warn_of_unheld
from xpu_runtime.vendors import discovery

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config
    from xpu_runtime.ledger.grants import Grant
    from xpu_runtime.linux.proc import Caller
    from xpu_runtime.messages import Log
    from xpu_runtime.oci.spec import Spec
    from xpu_runtime.oci.state import State


def bind(state: State, number: int, spec: Spec, config: Config, log: Log, caller: Caller) -> Grant:
    """Binds grant `number` to the container of `state`, sets its limits and makes its mounts.

    XpuError if that cannot be, and no limit is left set.
    """
    waiting.allow(waiting.START_S)
    with Ledger() as ledger:
        grants = [grant for grant in ledger.of_container(state.id) if grant.id == number]
    if not grants:
        raise ApplyError(f"grant {number} of container {state.id} is gone", "start the container again")
    request = source.from_spec(spec, config, state.bundle)
    if request is None:
        raise SpecError(f"the spec of container {state.id} asks for no XPU any more", "start it again")
    request = granting.resolved(request)
    inventory = discovery.load(config)
    has_mounts = oci_spec.has_namespace(spec, "mount")
    # Without a mount namespace all that the container gets is in its spec already.
    choose_again = (request, config) if has_mounts else None
    started = start_time_of(state)
    check_wanted(state, started, caller)
    bound = granting.impose(inventory, grants[0], state.pid, started, caller, choose_again, request)
    if has_mounts:
        try:
            rootfs = oci_spec.rootfs(spec, state.bundle)
            check_wanted(state, started, caller)
            step = step_of(state, spec)
            planned = plan_of(inventory, bound, request)
            container.carry_out(planned, state.pid, rootfs, spec, allow=False, step=step)
        except BaseException:
            granting.release(config, [bound])
            raise
    warn_of_unheld(bound, request, log)
    return bound
