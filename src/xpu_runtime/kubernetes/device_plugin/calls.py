"""The answers to the kubelet: Allocate, PreStartContainer.

Allocate does not name the container, and need not: the pod's allocation has the container's share. It answers
with one variable, which tells the runtime that the container has devices by its pod. PreStartContainer is the
last call before a start, and waits until the pod has its allocation: `kubectl describe` shows a refusal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from xpu_runtime.kubernetes.api import Api
from xpu_runtime.kubernetes.device_plugin.allocated_ids import PodResourcesReader
from xpu_runtime.kubernetes.device_plugin.kubelet import KubeletError
from xpu_runtime.kubernetes.device_plugin.pod import PodOnNode
from xpu_runtime.kubernetes.device_plugin.pods import Pods
from xpu_runtime.kubernetes.device_plugin.v1beta1 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateResponse,
    PreStartContainerRequest,
)

#: The variable of a container that the kubelet gave a device of ours.
ENVIRONMENT: Mapping[str, str] = {"XPU_KUBERNETES": "allocated"}
#: Seconds: the kubelet waits for 30 (KubeletPreStartContainerRPCTimeoutInSecs).
_PRE_START_S = 25.0


class KubeletCalls:
    """Answers, in gRPC's threads."""

    def __init__(
        self,
        pods: Pods,
        pod_resources: PodResourcesReader,
        api: Api,
        listed: Callable[[float], Iterable[PodOnNode]],
        changed: Callable[[], None],
    ) -> None:
        """`listed`: the pods of this node, as the API server has them now, asked for at most so many seconds;
        ApiError. `changed` is called when the kubelet has given IDs to somebody."""
        self._pods = pods
        self._pod_resources = pod_resources
        self._api = api
        self._listed = listed
        self._changed = changed

    def allocate(self, resource: str, request: AllocateRequest) -> AllocateResponse:
        self._changed()
        return AllocateResponse(tuple(ContainerAllocateResponse(ENVIRONMENT) for _ in request.containers))

    def pre_start(self, resource: str, request: PreStartContainerRequest) -> None:
        """XpuError refuses the start."""
        until = time.monotonic() + _PRE_START_S
        try:
            owner = self._pod_resources.ask().owner(resource, request.ids)
        except KubeletError:
            owner = None
        if owner is not None:
            self._pods.ensure(*owner, self._api, until)
        else:
            self._pods.ensure_all(self._listed, until)
