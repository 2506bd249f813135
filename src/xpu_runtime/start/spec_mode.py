"""Spec mode's first half: the grant and the edited spec, before the low-level runtime starts.

The grant belongs to the calling process, which becomes the low-level runtime; the hook binds it to the
container (in_container.py). If the runtime dies before that, the grant dies with it.
"""

from __future__ import annotations

import os

from xpu_runtime.delivery import spec as delivery
from xpu_runtime.ledger import waiting
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.start import config_json, hooks_in_spec, mode
from xpu_runtime.start.sequence import Start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config
    from xpu_runtime.config.low_level_runtime import Runtime
    from xpu_runtime.delivery.plan import Plan
    from xpu_runtime.linux.proc import Caller
    from xpu_runtime.oci.argv import Invocation
    from xpu_runtime.oci.spec import Spec
    from xpu_runtime.request.request import Request


def prepare(
    spec: Spec,
    request: Request,
    invocation: Invocation,
    config: Config,
    runtime: Runtime,
    options: list[str],
    caller: Caller,
) -> str | None:
    """Books the request and writes the plan into the bundle's spec; XpuError, with nothing changed, if that
    fails.

    Returns the same as `config_json.write`.
    """
    waiting.allow(waiting.START_S)
    steps = Start(request, config)
    granted = None
    if steps.request.choice != "none":
        process = caller.pid, caller.start_time
        granted = steps.book(invocation.container_id, invocation.bundle, process, mode.SPEC, spec)
        options = [*options, "--grant", str(granted.id)]
    try:
        # The hook mounts the files where it can, so most starts need not know them here.
        whole = not oci_spec.has_namespace(spec, "mount")
        planned = steps.plan(granted.slices if granted else (), granted if whole else None)
        # The test of sd_booted(3): only a systemd that runs reads /dev/char.
        systemd_cgroup = invocation.systemd_cgroup and os.path.isdir("/run/systemd/system")
        delivery.add_rules(spec, planned, systemd_cgroup=systemd_cgroup)
        hooks_in_spec.add_hooks(spec, runtime, options, caller)
        if whole:
            return _write_whole(invocation, spec, planned, caller)
        return config_json.write(invocation.spec_path, spec, caller, keep=True)
    except BaseException:
        steps.give_back(granted)
        raise


def _write_whole(invocation: Invocation, spec: Spec, planned: Plan, caller: Caller) -> str | None:
    """Writes the spec with the whole plan in it, for a container without a mount namespace."""
    from xpu_runtime.delivery.in_root import open_root

    with open_root(oci_spec.rootfs(spec, invocation.bundle)) as root:
        delivery.add_all(spec, planned, root)
        try:
            return config_json.write(invocation.spec_path, spec, caller, keep=True)
        except BaseException:
            root.undo()
            raise
