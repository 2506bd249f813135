"""Nodes that exist only as objects of the API server, with the device plugin's annotation: for the scheduler.

The assignments are decoded by their documented format, and not by the product's reader.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support import GIB, kubernetes_objects

from .api import Api
from .manifests import INSTALLED

_LABEL = "test.invalid/simulated"
#: The node selector of pods that may run on these nodes alone.
ONLY = {_LABEL: ""}
_THREADS = 8


class SimulatedNodes:
    """Makes such nodes, and removes all of them."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._made = 0

    def create(self, number: int, cards: Sequence[int]) -> list[str]:
        """Creates `number` nodes, each with cards of so many GiB; returns their names."""
        names = [f"simulated-{self._made + at}" for at in range(number)]
        self._made += number
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(lambda name: self._api.create("/api/v1/nodes", _node(name, cards)), names))
        return names

    def remove(self) -> None:
        self._api.call("DELETE", f"/api/v1/nodes?labelSelector={_LABEL}")


def on(node: str) -> dict[str, Any]:
    """A part of a pod's spec: it may run on this node alone."""
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def _node(name: str, cards: Sequence[int]) -> dict[str, Any]:
    labels = {_LABEL: "", "kubernetes.io/hostname": name, **INSTALLED}
    devices = [kubernetes_objects.device(name, at, gib * GIB) for at, gib in enumerate(cards)]
    found = kubernetes_objects.node(name, devices, labels=labels)
    resources = {
        "cpu": "64",
        "memory": "512Gi",
        "pods": "250",
        "yoyoworks.com/xpu-mem": str(sum(cards)),
        "yoyoworks.com/xpu-cores": str(100 * len(cards)),
        "yoyoworks.com/xpu-shares": str(100 * len(cards)),
        "yoyoworks.com/xpu": str(len(cards)),
        "aliyun.com/gpu-mem": str(sum(cards)),
        "aliyun.com/gpu-core.percentage": str(100 * len(cards)),
    }
    status = {"capacity": resources, "allocatable": resources}
    return {"apiVersion": "v1", "kind": "Node", **found, "status": status}


def create_pods(api: Api, pods: Iterable[dict[str, Any]]) -> None:
    """Creates all pods at once, as fast as the API server accepts them."""
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(api.create_pod, pods))


def assignment(pod: dict[str, Any]) -> dict[str, Any]:
    """The signed assignment of a pod, with the shares (device, bytes, percent) of each container."""
    version, _, payload, _ = pod["metadata"]["annotations"]["yoyoworks.com/xpu-assignment"].split(".")
    assert version == "v1"
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert (found["uid"], found["node"]) == (pod["metadata"]["uid"], pod["spec"]["nodeName"])
    return found


def given(pods: Iterable[dict[str, Any]]) -> tuple[Counter[str], Counter[str]]:
    """Bytes and percent of each device that these pods' containers have together."""
    memory: Counter[str] = Counter()
    cores: Counter[str] = Counter()
    for pod in pods:
        for shares in assignment(pod)["containers"].values():
            for device, amount, percent in shares:
                memory[device] += amount
                cores[device] += percent or 0
    return memory, cores
