"""The free part of a cluster, card by card, from the annotations of nodes and pods, for people.

Values in, values out. It is counted as the scheduler extender does, by the same code (accounting.py), with
one difference: a pod's share comes from its node's report, and not from its assignment, whose signature
cannot be verified here. A pod without a reservation on its node counts as if it were placed now.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from xpu_runtime.errors import XpuError
from xpu_runtime.kubernetes import node_annotation
from xpu_runtime.kubernetes.extender import accounting, devices, objects
from xpu_runtime.kubernetes.node_annotation import ANNOTATION, NodeAnnotation, Row
from xpu_runtime.kubernetes.resources import ALIASES, COUNT, PREFIX, DemandError, Resources, whole_number
from xpu_runtime.placement.demand import PodDemand
from xpu_runtime.placement.pod import PodShape
from xpu_runtime.request import assignment
from xpu_runtime.value import Value

#: By all of their names.
_EVERY = Resources(aliases=tuple(ALIASES))
#: The label of a node that has the runtime (node_setup/keeper.py).
INSTALLED = "yoyoworks.com/xpu.runtime"


class Card(Value):
    """A device of a node; bytes, and percent of its cores."""

    index: str
    uuid: str
    model: str
    #: The amount that may be granted.
    memory: int
    free_memory: int
    free_cores: int
    #: How many pods hold something of it, or count as if they did.
    pods: int
    #: The share of others than pods.
    others_memory: int
    others_cores: int
    #: Why no new pod gets anything of it, or of its node; "": they do.
    why: str
    #: Bytes of one unit of memory on its node.
    unit: int = 1 << 30

    @property
    def is_unused(self) -> bool:
        """Whether a pod can have all of it."""
        return not self.why and self.free_memory == self.memory and self.free_cores == 100


class Node(Value):
    """A node that our device plugin runs on; `problem` is why nothing is known of its cards, `why` why no new
    pod gets anything of them; "": they do."""

    name: str
    driver: str = ""
    placement: str = ""
    cards: tuple[Card, ...] = ()
    problem: str = ""
    why: str = ""
    #: Pods that are bound to it and for which it has nothing reserved, as NAMESPACE/NAME.
    waiting: tuple[str, ...] = ()


class Pod(Value):
    """A pod that is bound."""

    uid: str
    node: str
    namespace: str = ""
    name: str = ""
    #: The part of the API's object with its request.
    requests: Mapping[str, Any] = {}
    #: The id of the key that its assignment names; "": it has none.
    key: str = ""


def pod_of(data: Mapping[str, Any]) -> Pod | None:
    """The API's pod, if it is bound and asks."""
    metadata, spec = data.get("metadata") or {}, data.get("spec") or {}
    node, annotations = str(spec.get("nodeName") or ""), metadata.get("annotations") or {}
    if not node or not _asks(spec):
        return None
    # Only this part is kept of up to ten thousand pods.
    requests = {
        "metadata": {"annotations": {COUNT: annotations[COUNT]} if COUNT in annotations else {}},
        "spec": {
            kind: [
                {key: each[key] for key in ("name", "resources", "restartPolicy") if key in each}
                for each in spec.get(kind) or ()
            ]
            for kind in ("initContainers", "containers")
        },
    }
    uid, namespace, name = (str(metadata.get(key)) for key in ("uid", "namespace", "name"))
    key = assignment.key_id(str(annotations.get(assignment.ANNOTATION) or ""))
    return Pod(uid, node, namespace, name, requests, key)


def _asks(spec: Mapping[str, Any]) -> bool:
    """Whether a pod asks for anything of ours, in any cluster."""
    return any(
        name in _EVERY.names
        for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        for name in (container.get("resources") or {}).get("limits") or {}
    )


def nodes(found: Iterable[Mapping[str, Any]], pods: Iterable[Pod]) -> list[Node]:
    """The nodes (the API's) that have our annotation, or our runtime and not yet that, by their names."""
    by_node: dict[str, list[Pod]] = {}
    for pod in pods:
        by_node.setdefault(pod.node, []).append(pod)
    rows = []
    for data in found:
        metadata = data["metadata"]
        text = (metadata.get("annotations") or {}).get(ANNOTATION)
        name = str(metadata["name"])
        if text is not None:
            rows.append(_node(name, data, str(text), by_node.get(name, [])))
        elif (metadata.get("labels") or {}).get(INSTALLED) == "true":
            rows.append(Node(name, problem="it has the runtime, and its device plugin has not reported yet"))
    return sorted(rows, key=lambda node: node.name)


def _node(name: str, data: Mapping[str, Any], text: str, pods: list[Pod]) -> Node:
    try:
        annotation = node_annotation.read(text)
    except ValueError as error:
        return Node(name, problem=f"its annotation {ANNOTATION} cannot be read ({error})")
    why = _why_no_pod(data, annotation.devices)
    counted = objects.Node(0)
    counted.devices = devices.of_annotation(annotation)
    known = {pod.uid: made for pod in pods if (made := _counted(pod, annotation)) is not None}
    counted.pods = set(known)
    memory, cores = list(counted.devices.memory), list(counted.devices.cores)
    holders: dict[str, int] = {}
    for _, held in accounting.holdings(counted, known, {}, memory, cores):
        for uuid, _, _ in held:
            holders[uuid] = holders.get(uuid, 0) + 1
    free = dict(zip(counted.devices.uuids, zip(memory, cores)))
    cards = tuple(
        _card(
            row, free.get(row.uuid, (0, 0)), holders.get(row.uuid, 0), row.why or why, annotation.memory_unit
        )
        for row in annotation.devices
    )
    waiting = sorted(
        f"{each.namespace}/{each.name}" for each in known.values() if each.uid not in annotation.reserved
    )
    return Node(name, annotation.driver, annotation.placement, cards, why=why, waiting=tuple(waiting))


def _why_no_pod(data: Mapping[str, Any], rows: Iterable[Row]) -> str:
    """Why no pod comes to a node, apart from its cards; "": pods do, or the API does not tell."""
    status = data.get("status") or {}
    ready = [each.get("status") for each in status.get("conditions") or () if each.get("type") == "Ready"]
    if ready and ready[0] != "True":
        return "not ready"
    if (data.get("spec") or {}).get("unschedulable"):
        return "cordoned"
    if "allocatable" not in status or _has_ours(status["allocatable"]):
        return ""
    # The annotation stays when its writer goes, and for some minutes what the kubelet has counted. A plugin
    # that is there has nothing to offer where all cards have faults, or are docker's.
    is_offered = any(
        not (row.why or row.others_whole or row.others_memory or row.others_cores) for row in rows
    )
    return "plugin gone" if is_offered or not _has_ours(status.get("capacity") or {}) else ""


def _has_ours(amounts: Mapping[str, Any]) -> bool:
    return any(whole_number(amount) for name, amount in amounts.items() if name.startswith(PREFIX))


def _card(row: Row, free: tuple[int, int], pods: int, why: str, unit: int) -> Card:
    others_memory = row.grantable if row.others_whole else row.others_memory
    memory, cores = (max(each, 0) for each in free)
    return Card(
        row.name, row.uuid, row.model, row.grantable, memory, cores,
        pods, others_memory, row.others_cores, why, unit,
    )  # fmt: skip


def _counted(pod: Pod, annotation: NodeAnnotation) -> objects.Pod | None:
    """As the extender counts a pod whose assignment it has not read; None for one that does not count,
    because it asks for nothing of the node, or makes no valid request: what is reserved there for it counts
    without it."""
    demand = PodDemand()
    with contextlib.suppress(DemandError):
        # A plugin of a newer version may name others.
        aliases = tuple(alias for alias in annotation.aliases if alias in ALIASES)
        demand = Resources(annotation.memory_unit, aliases).of_pod(pod.requests)
    if demand.is_empty:
        return None
    found = objects.Pod(pod.uid, pod.namespace, pod.name, demand, PodShape(demand))
    found.node = pod.node
    return found


def named(found: list[Node], names: Iterable[str]) -> list[Node]:
    """The nodes of these names; without names all nodes. XpuError if one is missing."""
    wanted = list(names)
    known = {node.name for node in found}
    if missing := [name for name in wanted if name not in known]:
        raise XpuError(
            f"xpu's device plugin has not reported node {missing[0]}",
            f"it has reported {', '.join(sorted(known)[:8])}"
            if known
            else "is the DaemonSet xpu-node there?",
        )
    return [node for node in found if node.name in wanted] if wanted else found
