"""The configuration as a value, with the defaults.

The shim and the hook import it for every container that asks for an XPU, so it imports next to nothing, and
knows no YAML. An attribute is named as its key in config.yaml, with sections joined by underscores: `driver:
{root: auto}` is `driver_root`.
"""

from __future__ import annotations

from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Config(Value):
    """The effective configuration; config/config.yaml explains each key.

    `policy_max_memory` and `defaults_memory` are kept as written ("8G", "50%"), as they can be a share of a
    device. `policy_devices` is None where all devices may be used; `policy_quotas` and `cdi_sizes` are as in
    the file.
    """

    low_level_runtimes: tuple[str, ...] = ("runc", "crun")
    mode: str = "auto"
    driver_root: str = "auto"
    placement_policy: str = "binpack"
    cores_step: int = 5
    cores_sched: str = "fixed"
    cores_priority: str = "normal"
    defaults_memory: str | None = None
    defaults_cores: int | None = None
    policy_accept_env_when_unprivileged: bool = True
    policy_pods_may_weaken_limits: bool = False
    policy_max_memory: str | None = None
    policy_max_cores: int | None = None
    policy_max_priority: str | None = None
    policy_max_count: int | None = None
    policy_devices: tuple[str, ...] | None = None
    policy_quotas: tuple[dict[str, Any], ...] = ()
    oversubscribe_memory: float = 1.0
    enforcement_allow_unenforced: tuple[str, ...] = ()
    cdi_sizes: tuple[dict[str, Any], ...] = (
        {"name": "2g", "mem": "2G"},
        {"name": "4g", "mem": "4G"},
        {"name": "8g", "mem": "8G"},
    )
    metrics_listen: str | None = None
    metrics_allow_remote: bool = False
    metrics_group: str | None = None
    kubernetes_require_assignment: bool = False
    kubernetes_node_name: str | None = None
    kubernetes_keys: str = "/etc/xpu/kubernetes/keys"
    kubernetes_placement: str = "node"
    kubernetes_memory_unit: str = "1GiB"
    kubernetes_aliases: tuple[str, ...] = ()


DEFAULTS = Config()


def from_plain(values: dict[str, Any]) -> Config:
    """A Config from attributes as JSON has them (lists for tuples); TypeError if a name is unknown."""
    typed: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return Config(**typed)
