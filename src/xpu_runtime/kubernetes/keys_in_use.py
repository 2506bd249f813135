"""Which keys of assignments nodes have and pods were placed with, as both say themselves: for whoever
exchanges them.

Ids alone, values in, values out. A pod's author may have written its annotation: no signature is checked
here, as who shows this has no key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from xpu_runtime.kubernetes import node_annotation
from xpu_runtime.request.assignment import ANNOTATION as ASSIGNMENT
from xpu_runtime.value import Value


class Key(Value):
    """A key by its id: the nodes that have it, those of the extender's that lack it, and the pods (NAMESPACE/
    NAME) whose assignments are signed with it."""

    id: str
    nodes: tuple[str, ...]
    missing: tuple[str, ...]
    pods: tuple[str, ...]


class Signed(Value):
    """A pod that is bound, and the key that its assignment names."""

    pod: str
    key: str


def pod_of(data: Mapping[str, Any]) -> Signed | None:
    """The API's pod, where it is bound with an assignment."""
    metadata = data.get("metadata") or {}
    parts = str((metadata.get("annotations") or {}).get(ASSIGNMENT) or "").split(".")
    if not (data.get("spec") or {}).get("nodeName") or len(parts) != 4 or not _is_id(parts[1]):
        return None
    return Signed(f"{metadata.get('namespace')}/{metadata.get('name')}", parts[1])


def keys(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Signed]) -> list[Key]:
    """The keys of the cluster's nodes (the API's), in the order that those have them, then those that pods
    alone name. A node whose plugin does not tell, or that places pods itself, lacks none."""
    told = {str(node["metadata"]["name"]): found for node in nodes if (found := _of_node(node)) is not None}
    signed: dict[str, list[str]] = {}
    for pod in pods:
        signed.setdefault(pod.key, []).append(pod.pod)
    ids = dict.fromkeys([key for found in told.values() for key in found] + sorted(signed))
    return [
        Key(
            each,
            tuple(sorted(name for name, found in told.items() if each in found)),
            tuple(sorted(name for name, found in told.items() if each not in found)),
            tuple(sorted(signed.get(each, ()))),
        )
        for each in ids
    ]


def _of_node(node: Mapping[str, Any]) -> list[str] | None:
    """The ids that a node tells, where it verifies what the extender assigns."""
    try:
        told = node_annotation.read((node["metadata"].get("annotations") or {})[node_annotation.ANNOTATION])
    except (ValueError, KeyError):
        return None
    if told.placement != "extender" or told.keys is None:
        return None
    return [each for each in told.keys if _is_id(each)]


def _is_id(text: str) -> bool:
    """As request.assignment takes them: an author's control characters are none."""
    rest = text.replace("_", "a").replace("-", "a")
    return 0 < len(text) < 64 and rest.isascii() and rest.isalnum()
