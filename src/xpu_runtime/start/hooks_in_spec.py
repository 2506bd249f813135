"""Our hooks in a container's spec: by them the low-level runtime calls us back, in both modes.

The spec calls them by absolute path with an environment of their own; nothing of the image reaches them.
hook.py has their work.
"""

from __future__ import annotations

import os

from xpu_runtime import paths
from xpu_runtime.config.low_level_runtime import hook_stage
from xpu_runtime.oci import spec as oci_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.low_level_runtime import Runtime
    from xpu_runtime.linux.proc import Caller
    from xpu_runtime.oci.spec import Spec


def add_hooks(spec: Spec, runtime: Runtime, options: list[str], caller: Caller) -> None:
    """Adds our hooks, called with `options`. Their environment is their own: nothing of the image's."""
    env = paths.hook_environment(caller.environment, caller.working_folder)
    for stage in (hook_stage(runtime.create_runtime_hooks), "poststop"):
        oci_spec.add_hook(spec, stage, paths.HOOK, [os.path.basename(paths.HOOK), stage, *options], env)


def has_grant(spec: Spec) -> bool:
    """Whether spec mode has edited this spec: our hooks then name the grant."""
    hooks = spec.get("hooks")
    stages = hooks.values() if isinstance(hooks, dict) else ()
    return any(
        isinstance(hook, dict) and hook.get("path") == paths.HOOK and "--grant" in (hook.get("args") or ())
        for stage in stages
        if isinstance(stage, list)
        for hook in stage
    )
