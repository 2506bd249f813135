"""Spec mode, whole: the grant and the edited spec, before the low-level runtime starts.

The grant belongs to the calling process, which becomes the low-level runtime; the hook binds it to the
container. If the runtime dies before that, the grant dies with it.
"""

from __future__ import annotations

import os

from xpu_runtime.devices import inventory
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.linux import proc
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.plan import granting, in_spec, injection, kept
from xpu_runtime.plan import mode as plan_mode
from xpu_runtime.quota import limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config
    from xpu_runtime.config.load import Runtime
    from xpu_runtime.devices.inventory import Inventory
    from xpu_runtime.oci.argv import Invocation
    from xpu_runtime.oci.spec import Spec
    from xpu_runtime.request.request import Request


def prepare(
    path: str,
    spec: Spec,
    request: Request,
    invocation: Invocation,
    config: Config,
    runtime: Runtime,
    options: list[str],
) -> str | None:
    """Books the request and writes the plan into the spec at `path`; XpuError, and nothing changed, else.

    Returns what `kept.write` does.
    """
    waiting.allow(waiting.START_S)
    found = inventory.load(config)
    granted = None
    if request.choice != "none":
        privileged = oci_spec.is_privileged(spec)
        granted = granting.grant(found, request, config, _wanted(invocation), privileged=privileged)
        options = [*options, "--grant", str(granted.id)]
    try:
        in_spec.add_devices(
            spec,
            found,
            granted.slices if granted else (),
            request.capabilities,
            # As sd_booted(3). Where it does not run nobody reads /dev/char, and runc refuses the container.
            systemd_cgroup=invocation.systemd_cgroup and os.path.isdir("/run/systemd/system"),
        )
        injection.add_hooks(spec, runtime, options)
        if plan_mode.mounts_are_in_spec(spec):
            return _write_with_mounts(path, spec, found, granted, request, invocation.bundle)
        return kept.write(path, spec, keep=True)
    except BaseException:
        granting.release(config, [granted] if granted else [])
        raise


def _wanted(invocation: Invocation) -> Grant:
    pid = os.getpid()
    return Grant(
        id=0,
        container_id=invocation.container_id or "",
        bundle=invocation.bundle,
        pid=pid,
        start_time=proc.start_time(pid) or 0,
        cgroup="",
        state="pending",
        mode=plan_mode.SPEC,
        created=0.0,
        slices=(),
    )


def _write_with_mounts(
    path: str, spec: Spec, found: Inventory, granted: Grant | None, request: Request, bundle: str
) -> str | None:
    from xpu_runtime.plan import build, perform, unshared  # most containers have a mount namespace

    slices = granted.slices if granted else ()
    with perform.open_root(oci_spec.rootfs(spec, bundle)) as root:
        try:
            pages = limits.pages(granted)
            plan = build.build(found, slices, request.capabilities, root, pages, spec)
            unshared.add_mounts(spec, root, plan)
            return kept.write(path, spec, keep=True)
        except BaseException:
            root.undo()
            raise
