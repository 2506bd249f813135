"""Pods of the API that ask for slices, and the plugin's form of them."""

from __future__ import annotations

from typing import Any

from xpu_runtime.kubernetes.device_plugin.pod import PodOnNode
from xpu_runtime.kubernetes.resources import CORES, MEMORY, SHARES, Resources

GIB = 1 << 30
KNOWN = Resources()


def container(name: str, always: bool = False, **limits: str) -> dict[str, Any]:
    names = {"mem": MEMORY, "cores": CORES, "shares": SHARES}
    found: dict[str, Any] = {"name": name, "resources": {"limits": {names[k]: v for k, v in limits.items()}}}
    return {**found, "restartPolicy": "Always"} if always else found


def pod(
    *containers: dict[str, Any],
    init: tuple[dict[str, Any], ...] = (),
    phase: str = "Running",
    **metadata: Any,
) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ns", "name": "p", "uid": "u1", "creationTimestamp": "t", **metadata},
        "spec": {"nodeName": "n1", "containers": list(containers), "initContainers": list(init)},
        "status": {"phase": phase},
    }


def kept(item: dict[str, Any]) -> PodOnNode:
    found = PodOnNode.of(item, KNOWN)
    assert found is not None
    return found
