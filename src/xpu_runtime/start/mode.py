"""Which of the two ways a container gets its slice: hook mode or spec mode, and why.

A pure function of the configuration and the spec, for `xpu explain` as for the shim; it imports neither mode.
"""

from __future__ import annotations

from xpu_runtime.config.low_level_runtime import CRUN
from xpu_runtime.oci import spec as oci_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config
    from xpu_runtime.oci.spec import Spec

HOOK = "hook"
SPEC = "spec"


def choose(config: Config, spec: Spec, systemd_cgroup: bool, runtime: str) -> tuple[str, str]:
    """The mode and the reason for it, as `xpu explain` shows it. `runtime`: the low-level runtime's name."""
    if config.mode != "auto":
        return config.mode, f"the configuration says mode: {config.mode}"
    if systemd_cgroup:
        return SPEC, "systemd manages the cgroup, and takes the device rules that are in the spec"
    if oci_spec.has_namespace(spec, "user"):
        return SPEC, "the container has a user namespace, in which mknod is refused"
    if not oci_spec.has_namespace(spec, "mount"):
        return SPEC, "the container has no mount namespace of its own, into which a hook could mount"
    if runtime == CRUN:
        return SPEC, "crun does not tell why a hook has refused a container"
    return HOOK, "the default: no systemd cgroup, no user namespace, and a mount namespace of its own"
