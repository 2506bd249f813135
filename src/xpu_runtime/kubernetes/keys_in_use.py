"""Which keys of assignments nodes have and pods were placed with, as both say themselves: for whoever
exchanges them.

Ids alone, values in, values out. No signature is checked here, as who shows this has no key: a pod's author
may have written its annotation, and its node tells what was verified there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from xpu_runtime.kubernetes import node_annotation, report
from xpu_runtime.kubernetes.node_annotation import Told
from xpu_runtime.request import assignment
from xpu_runtime.value import Value


class Key(Value):
    """A key by its id: the nodes that have it, those of the extender's that lack it, and the pods (NAMESPACE/
    NAME) whose assignments are signed with it."""

    id: str
    nodes: tuple[str, ...]
    missing: tuple[str, ...]
    pods: tuple[str, ...]


class Bound(Value):
    """A pod that is bound, and the key that its assignment names ("": it has none)."""

    uid: str
    node: str
    #: NAMESPACE/NAME.
    pod: str
    key: str


def pod_of(data: Mapping[str, Any]) -> Bound | None:
    """The API's pod, where it is bound and asks for something of ours."""
    metadata, node = data.get("metadata") or {}, (data.get("spec") or {}).get("nodeName")
    if not node or not report.asks(data):
        return None
    key = assignment.key_id(str((metadata.get("annotations") or {}).get(assignment.ANNOTATION) or ""))
    name = f"{metadata.get('namespace')}/{metadata.get('name')}"
    return Bound(str(metadata.get("uid")), str(node), name, key)


def keys(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Bound]) -> list[Key]:
    """The keys of the cluster's nodes (the API's), in the order that those have them, then those that pods
    alone were placed with. A node whose plugin does not tell, or that places pods itself, lacks none."""
    told = {str(node["metadata"]["name"]): found for node in nodes if (found := _of_node(node)) is not None}
    known = {key for found in told.values() for key in found.keys or ()}
    signed: dict[str, list[str]] = {}
    for pod in pods:
        key = _key_of(pod, told.get(pod.node), known)
        if key:
            signed.setdefault(key, []).append(pod.pod)
    ids = dict.fromkeys([key for found in told.values() for key in found.keys or ()] + sorted(signed))
    return [
        Key(
            each,
            tuple(sorted(name for name, found in told.items() if each in (found.keys or ()))),
            tuple(sorted(name for name, found in told.items() if each not in (found.keys or ()))),
            tuple(sorted(signed.get(each, ()))),
        )
        for each in ids
    ]


def _key_of(pod: Bound, node: Told | None, known: Collection[str]) -> str:
    """The key that what a pod has was signed with; "": none.

    Its node says so of what is reserved there, whatever the pod's author has made of the annotation since.
    That is believed, where a node has the key, of a pod which has nothing yet, and may have just been placed,
    or of which an earlier version has not kept the key.
    """
    if node is not None and node.signed is not None:
        if pod.uid in node.signed:
            return node.signed[pod.uid]
        return pod.key if pod.key in known else ""
    return pod.key


def _of_node(node: Mapping[str, Any]) -> Told | None:
    """What a node tells, where it verifies what the extender assigns."""
    try:
        told = node_annotation.read((node["metadata"].get("annotations") or {})[node_annotation.ANNOTATION])
    except (ValueError, KeyError):
        return None
    if told.placement != "extender" or told.keys is None:
        return None
    signed = told.signed and {uid: key for uid, key in told.signed.items() if assignment.is_key_id(key)}
    return told._replace(keys=tuple(filter(assignment.is_key_id, told.keys)), signed=signed)
