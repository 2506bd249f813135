"""What is free in a cluster, card by card, of what nodes say of themselves and pods were assigned: for
people.

Values in, values out. A pod's annotation is taken as it is, without its signature: who shows this has no
key, and decides nothing by it. Where a node says itself what a pod holds, that counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from xpu_runtime.errors import XpuError
from xpu_runtime.kubernetes import node_annotation
from xpu_runtime.kubernetes.node_annotation import ANNOTATION, Row, Shares
from xpu_runtime.kubernetes.resources import ALIASES, PREFIX, Resources, whole_number
from xpu_runtime.request import assignment
from xpu_runtime.request.amounts import Amount, at_one_time
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
    memory: int
    free_memory: int
    free_cores: int
    #: How many pods hold something of it.
    pods: int
    #: What others than pods have.
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


class Pod(Value):
    """A pod that is bound, with its assignment as it is written there."""

    uid: str
    node: str
    assignment: str


def pod_of(data: Mapping[str, Any]) -> Pod | None:
    """The API's pod, where it is bound, asks, and says what it was assigned."""
    metadata = data.get("metadata") or {}
    node = str((data.get("spec") or {}).get("nodeName") or "")
    text = (metadata.get("annotations") or {}).get(assignment.ANNOTATION)
    return Pod(str(metadata.get("uid")), node, str(text)) if node and text and _asks(data) else None


def _asks(pod: Mapping[str, Any]) -> bool:
    """Whether it asks for anything of ours, in any cluster: the annotation of one that does not is no
    scheduler's."""
    spec = pod.get("spec") or {}
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
            rows.append(Node(name, problem="it has the runtime, and its device plugin has said nothing yet"))
    return sorted(rows, key=lambda node: node.name)


def _node(name: str, data: Mapping[str, Any], text: str, pods: list[Pod]) -> Node:
    try:
        told = node_annotation.read(text)
    except ValueError as error:
        return Node(name, problem=f"its annotation {ANNOTATION} cannot be read ({error})")
    held = _held_by_pods(told.reserved, name, pods)
    why = _why_no_pod(data, told.devices)
    cards = tuple(
        _card(row, held.get(row.uuid, []), row.why or why, told.memory_unit) for row in told.devices
    )
    return Node(name, told.driver, told.placement, cards, why=why)


def _why_no_pod(data: Mapping[str, Any], rows: Iterable[Row]) -> str:
    """Why no pod comes to a node, whatever its cards have; "": pods do, or the API does not tell."""
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


def _card(row: Row, held: list[Amount], why: str, unit: int) -> Card:
    total = row.memory
    others_memory = total if row.others_whole else row.others_memory
    memory = total - others_memory - sum(total if each.whole else each.memory_bytes for each in held)
    cores = row.cores - row.others_cores - sum(each.cores for each in held)
    return Card(
        row.name, row.uuid, row.model, total, max(memory, 0), max(cores, 0),
        len(held), others_memory, row.others_cores, why, unit,
    )  # fmt: skip


def _held_by_pods(reserved: Mapping[str, Shares], node: str, pods: list[Pod]) -> dict[str, list[Amount]]:
    """By a device's UUID what each pod holds of it."""
    # Of a pod's reservation the node tells its own sum.
    by_pod = {
        uid: {device: Amount(memory or 0, cores or 0, memory is None) for device, memory, cores in shares}
        for uid, shares in reserved.items()
    }
    for pod in pods:
        if pod.uid not in by_pod:
            by_pod[pod.uid] = _held(pod, node)
    found: dict[str, list[Amount]] = {}
    for held in by_pod.values():
        for uuid, amount in held.items():
            found.setdefault(uuid, []).append(amount)
    return found


def _held(pod: Pod, node: str) -> dict[str, Amount]:
    """What a pod holds by its annotation; nothing where that is of another pod or node, or none."""
    try:
        told = assignment.read_unproven(pod.assignment)
    except assignment.AssignmentError:
        return {}
    if (told.uid, told.node) != (pod.uid, node):
        return {}
    return at_one_time(told.containers, told.init, told.sidecars)


def named(found: list[Node], names: Iterable[str]) -> list[Node]:
    """Those of these names, all where there are none; XpuError where one is missing."""
    wanted = list(names)
    known = {node.name for node in found}
    if missing := [name for name in wanted if name not in known]:
        raise XpuError(
            f"xpu's device plugin has said nothing of node {missing[0]}",
            f"it has of {', '.join(sorted(known)[:8])}" if known else "is the DaemonSet xpu-node there?",
        )
    return [node for node in found if node.name in wanted] if wanted else found
