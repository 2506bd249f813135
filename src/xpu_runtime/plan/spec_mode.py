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
from xpu_runtime.messages import Log
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.plan import granting, in_spec, injection, kept
from xpu_runtime.plan import mode as plan_mode
from xpu_runtime.quota import library, limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config
    from xpu_runtime.config.load import Runtime
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
) -> None:
    """Books the request and writes the plan into the spec at `path`; XpuError, and nothing changed, else."""
    waiting.allow(waiting.START_S)
    found = inventory.load(config)
    pid = os.getpid()
    wanted = Grant(
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
    privileged = oci_spec.is_privileged(spec)
    granted = None
    if request.choice != "none":
        granted = granting.grant(found, request, config, wanted, privileged=privileged)
        options = [*options, "--grant", str(granted.id)]
    try:
        slices = granted.slices if granted else ()
        rootfs = oci_spec.rootfs(spec, invocation.bundle)
        root = in_spec.edit(
            spec,
            found,
            slices,
            request.capabilities,
            rootfs,
            pages=limits.pages(granted),
            # As sd_booted(3). Where it does not run nobody reads /dev/char, and runc refuses the container.
            systemd_cgroup=invocation.systemd_cgroup and os.path.isdir("/run/systemd/system"),
        )
        try:
            injection.add_hooks(spec, runtime, options)
            kept.write(path, spec, keep=True)
        except BaseException:
            if root is not None:
                root.undo()
            raise
        finally:
            if root is not None:
                root.close()
    except BaseException:
        granting.release(config, [granted] if granted else [])
        raise
    silent = library.why_no_log(slices) if request.log else None
    if silent:
        log = Log(invocation.log or "", invocation.log_format or "text")
        log.write("warning", f"container {wanted.container_id}: {silent}")
