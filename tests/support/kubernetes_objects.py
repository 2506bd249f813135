"""Nodes and pods of the Kubernetes API, for the extender's tests and benchmark."""

from __future__ import annotations

import json
import uuid
from typing import Any

GIB = 1 << 30
Json = dict[str, Any]


def device(node: str, index: int, memory: int = 16 * GIB, **changes: Any) -> Json:
    """A healthy, unused device, as the device plugin describes it."""
    return {
        "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}.{index}')}",
        "index": str(index),
        "model": "Tesla T4",
        "memory": memory,
        "cores": 100,
        "healthy": True,
        "why": "",
        "others": {"memory": 0, "cores": 0, "whole": False},
        **changes,
    }


def node(name: str, devices: list[Json] | int = 1, *, labels: Json | None = None, **fields: Any) -> Json:
    """A node whose plugin has written its annotation; `devices`: so many of 16 GiB, or these."""
    if isinstance(devices, int):
        devices = [device(name, index) for index in range(devices)]
    said = {"v": 1, "driver": "580.82.07", "placement": "extender", "devices": devices, **fields}
    metadata = {
        "name": name,
        "labels": labels or {},
        "annotations": {"yoyoworks.com/xpu-devices": json.dumps(said)},
    }
    return {"metadata": metadata}


def pod(
    name: str, *containers: Json, annotations: Json | None = None, bound: str = "", **amounts: Any
) -> Json:
    """A pod whose only container asks for `amounts` (mem=4 is 4 of yoyoworks.com/xpu-mem), or a pod of
    `containers`."""
    spec: Json = {"containers": list(containers) or [container("main", **amounts)]}
    if bound:
        spec["nodeName"] = bound
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": str(uuid.uuid4()),
        "annotations": annotations or {},
    }
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def container(name: str, **amounts: Any) -> Json:
    """`whole=1` is one of yoyoworks.com/xpu."""
    names = {"whole": "yoyoworks.com/xpu"}
    limits = {names.get(each, f"yoyoworks.com/xpu-{each}"): str(amount) for each, amount in amounts.items()}
    return {"name": name, "image": "busybox", "resources": {"limits": limits, "requests": limits}}
