"""The keys of assignments that nodes have and pods were placed with, by their own annotations, for the
exchange of keys.

Only ids; values in, values out. No signature is checked here, as this command has no key: a pod's author may
have written its annotation, and its node tells which key it has verified.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from xpu_runtime.kubernetes import node_annotation
from xpu_runtime.kubernetes.node_annotation import NodeAnnotation
from xpu_runtime.kubernetes.report import Pod
from xpu_runtime.request import assignment
from xpu_runtime.value import Value


class Key(Value):
    """A key by its id: the nodes that have it, those of the extender's that lack it, and the pods (NAMESPACE/
    NAME) whose assignments are signed with it."""

    id: str
    nodes: tuple[str, ...]
    missing: tuple[str, ...]
    pods: tuple[str, ...]


def keys(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Pod]) -> list[Key]:
    """The keys of the cluster's nodes (the API's), in the order that those have them, then those that pods
    alone were placed with. A node that places pods itself lacks none."""
    annotations = {
        str(node["metadata"]["name"]): found for node in nodes if (found := _of_node(node)) is not None
    }
    known = {key for found in annotations.values() for key in found.keys}
    signed: dict[str, list[str]] = {}
    for pod in pods:
        key = _key_of(pod, annotations.get(pod.node), known)
        if key:
            signed.setdefault(key, []).append(f"{pod.namespace}/{pod.name}")
    ids = dict.fromkeys([key for found in annotations.values() for key in found.keys] + sorted(signed))
    return [
        Key(
            each,
            tuple(sorted(name for name, found in annotations.items() if each in found.keys)),
            tuple(sorted(name for name, found in annotations.items() if each not in found.keys)),
            tuple(sorted(signed.get(each, ()))),
        )
        for each in ids
    ]


def _key_of(pod: Pod, node: NodeAnnotation | None, known: Collection[str]) -> str:
    """The key of a pod's assignment; "": none.

    For a reservation the node's report has the key, even if the pod's author has changed the annotation
    since. A pod without a reservation may have just been placed: its annotation counts, if a node has that
    key.
    """
    told = node.signed.get(pod.uid) if node is not None else None
    return told or (pod.key if pod.key in known else "")


def _of_node(node: Mapping[str, Any]) -> NodeAnnotation | None:
    """The annotation of a node that verifies the extender's assignments."""
    try:
        annotation = node_annotation.read(
            (node["metadata"].get("annotations") or {})[node_annotation.ANNOTATION]
        )
    except (ValueError, KeyError):
        return None
    if annotation.placement != "extender":
        return None
    signed = {uid: key for uid, key in annotation.signed.items() if assignment.is_key_id(key)}
    return annotation._replace(keys=tuple(filter(assignment.is_key_id, annotation.keys)), signed=signed)
