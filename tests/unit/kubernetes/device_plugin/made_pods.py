"""Pods of the API that ask for slices, and the plugin's form of them."""

from __future__ import annotations

from typing import Any

from support import kubernetes_objects
from support.kubernetes_objects import GIB as GIB
from support.kubernetes_objects import Json
from xpu_runtime.kubernetes.device_plugin.pod import PodOnNode
from xpu_runtime.kubernetes.resources import Resources

KNOWN = Resources()


def container(name: str, always: bool = False, **limits: str) -> Json:
    found = kubernetes_objects.container(name, **limits)
    return {**found, "restartPolicy": "Always"} if always else found


def pod(*containers: Json, init: tuple[Json, ...] = (), phase: str = "Running", **metadata: Any) -> Json:
    """With a UID, a name and a namespace in short."""
    made = kubernetes_objects.pod("p", *containers, bound="n1")
    made["metadata"] |= {"namespace": "ns", "uid": "u1", "creationTimestamp": "t", **metadata}
    made["spec"]["initContainers"] = list(init)
    return {**made, "status": {"phase": phase}}


def kept(item: dict[str, Any]) -> PodOnNode:
    found = PodOnNode.of(item, KNOWN)
    assert found is not None
    return found
