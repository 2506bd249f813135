"""Which of the two ways a container gets its slice: hook mode or spec mode, and why."""

from __future__ import annotations

from xpu_runtime.oci import spec as oci_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config
    from xpu_runtime.oci.spec import Spec

HOOK = "hook"
SPEC = "spec"


def choose(config: Config, spec: Spec, systemd_cgroup: bool) -> tuple[str, str]:
    """The mode and the reason for it, as `xpu explain` shows it."""
    if config.mode != "auto":
        return config.mode, f"the configuration says mode: {config.mode}"
    if systemd_cgroup:
        return SPEC, "systemd manages the cgroup: it would drop device rules that are not in the spec"
    if oci_spec.has_namespace(spec, "user"):
        return SPEC, "the container has a user namespace, in which mknod is refused"
    if mounts_are_in_spec(spec):
        return SPEC, "the container has no mount namespace of its own, into which a hook could mount"
    return HOOK, "nothing speaks against it"


def mounts_are_in_spec(spec: Spec) -> bool:
    """Whether spec mode writes mounts into the spec, too: no hook can mount into this container alone."""
    return not oci_spec.has_namespace(spec, "mount")
