"""What is free in a cluster, card by card, of what nodes say of themselves and pods were assigned: for
people.

Values in, values out. It is counted as the scheduler extender does, by the same code (accounting.py), but for
this: a pod's annotation is taken as it is, without its signature, since who shows this has no key, and
decides nothing by it. Where a node says itself what a pod holds, that counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from xpu_runtime.errors import XpuError
from xpu_runtime.kubernetes import node_annotation
from xpu_runtime.kubernetes.extender import accounting, devices, objects
from xpu_runtime.kubernetes.extender.devices import Held
from xpu_runtime.kubernetes.node_annotation import ANNOTATION, Row, Told
from xpu_runtime.kubernetes.resources import ALIASES, COUNT, PREFIX, DemandError, Resources, whole_number
from xpu_runtime.placement.demand import PodDemand
from xpu_runtime.placement.pod import PodShape
from xpu_runtime.request import assignment
from xpu_runtime.request.assignment import Assignment
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
    #: What may be granted.
    memory: int
    free_memory: int
    free_cores: int
    #: How many pods hold something of it, or count as if they did.
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
    #: Pods that are bound to it and for which it has nothing reserved, as NAMESPACE/NAME.
    waiting: tuple[str, ...] = ()


class Pod(Value):
    """A pod that is bound, with its assignment as it is written there ("": it has none)."""

    uid: str
    node: str
    assignment: str
    namespace: str = ""
    name: str = ""
    #: Of the API's object what says how much it asks for.
    asking: Mapping[str, Any] = {}


def pod_of(data: Mapping[str, Any]) -> Pod | None:
    """The API's pod, where it is bound and asks."""
    metadata, spec = data.get("metadata") or {}, data.get("spec") or {}
    node, annotations = str(spec.get("nodeName") or ""), metadata.get("annotations") or {}
    if not node or not asks(data):
        return None
    # Of ten thousand pods no more is kept.
    asking = {
        "metadata": {"annotations": {COUNT: annotations[COUNT]} if COUNT in annotations else {}},
        "spec": {
            kind: [
                {key: each[key] for key in ("name", "resources", "restartPolicy") if key in each}
                for each in spec.get(kind) or ()
            ]
            for kind in ("initContainers", "containers")
        },
    }
    text, uid = str(annotations.get(assignment.ANNOTATION) or ""), str(metadata.get("uid"))
    return Pod(uid, node, text, str(metadata.get("namespace")), str(metadata.get("name")), asking)


def asks(pod: Mapping[str, Any]) -> bool:
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
    why = _why_no_pod(data, told.devices)
    counted = objects.Node(0)
    counted.devices = devices.of_told(told)
    room = _Room(told, counted.devices)
    known = {
        pod.uid: made
        for pod in pods
        if (made := _counted(pod, name, told, counted.devices, room)) is not None
    }
    counted.pods = set(known)
    memory, cores = list(counted.devices.memory), list(counted.devices.cores)
    holders: dict[str, int] = {}
    for _, held in accounting.holdings(counted, known, {}, memory, cores):
        for uuid, _, _ in held:
            holders[uuid] = holders.get(uuid, 0) + 1
    free = dict(zip(counted.devices.uuids, zip(memory, cores)))
    cards = tuple(
        _card(row, free.get(row.uuid, (0, 0)), holders.get(row.uuid, 0), row.why or why, told.memory_unit)
        for row in told.devices
    )
    waiting = sorted(
        f"{each.namespace}/{each.name}" for each in known.values() if each.uid not in told.reserved
    )
    return Node(name, told.driver, told.placement, cards, why=why, waiting=tuple(waiting))


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


def _card(row: Row, free: tuple[int, int], pods: int, why: str, unit: int) -> Card:
    others_memory = row.grantable if row.others_whole else row.others_memory
    memory, cores = (max(each, 0) for each in free)
    return Card(
        row.name, row.uuid, row.model, row.grantable, memory, cores,
        pods, others_memory, row.others_cores, why, unit,
    )  # fmt: skip


class _Room:
    """What is left of a node's devices beside what it has reserved: the extender assigns no more."""

    def __init__(self, told: Told, has: devices.NodeDevices) -> None:
        self._totals = dict(zip(has.uuids, has.cards.capacities))
        self._left = {uuid: list(each) for uuid, *each in zip(has.uuids, has.memory, has.cores)}
        for held in told.reserved.values():
            self._take(held)

    def takes(self, held: Held) -> bool:
        """Whether that fits; it is taken then."""
        fits = all(
            (self._totals[uuid] if memory is None else memory) <= self._left[uuid][0]
            and (cores or 0) <= self._left[uuid][1]
            for uuid, memory, cores in held
        )
        if fits:
            self._take(held)
        return fits

    def _take(self, held: Iterable[tuple[str, int | None, int | None]]) -> None:
        for uuid, memory, cores in held:
            if uuid in self._left:
                self._left[uuid][0] -= self._totals[uuid] if memory is None else memory
                self._left[uuid][1] -= cores or 0


def _counted(pod: Pod, node: str, told: Told, has: devices.NodeDevices, room: _Room) -> objects.Pod | None:
    """As the extender counts it; None for one that it does not count, as it asks for nothing of the node, or
    for what makes no sense."""
    demand, assigned = PodDemand(), _assigned(pod, node, told)
    with contextlib.suppress(DemandError):
        demand = Resources(told.memory_unit, told.aliases or ()).of_pod(pod.asking)
    if demand.is_empty and assigned is None and pod.uid not in told.reserved:
        return None
    found = objects.Pod(pod.uid, pod.namespace, pod.name, demand, PodShape(demand))
    # What the node has reserved for it is taken where nothing else is known.
    found.node, found.held = node, None
    if pod.uid not in told.reserved and assigned is not None and _is_what_it_asks(assigned, demand, has):
        held = accounting.held_by(assigned)
        found.held = held if room.takes(held) else None
    return found


def _is_what_it_asks(told: Assignment, demand: PodDemand, has: devices.NodeDevices) -> bool:
    """Whether that is what the extender assigns for the pod's limits in these places, which are devices of
    the node: no signature is checked here, and a pod's author may say that all is taken, or nothing."""
    positions = {uuid: position for position, uuid in enumerate(has.uuids)}
    places = []
    for demands, given in (
        (demand.containers, told.containers),
        (demand.init, told.init),
        (demand.sidecars, told.sidecars),
    ):
        chosen = [
            {positions.get(share.device_uuid, -1) for share in given.get(name, ())} for name, _ in demands
        ]
        if any(-1 in each or len(each) != of.count for each, (_, of) in zip(chosen, demands)):
            return False
        places.append(tuple(map(tuple, chosen)))
    containers, init, sidecars = places
    meant = accounting.assignment(told.uid, told.node, has, demand, (containers, init, sidecars))
    return set(accounting.held_by(meant)) == set(accounting.held_by(told))


def _assigned(pod: Pod, node: str, of: Told) -> Assignment | None:
    """What its annotation says; None where that is of another pod or node, of a key that this node has not,
    or none."""
    try:
        told = assignment.read_unproven(pod.assignment)
    except assignment.AssignmentError:
        return None
    return told if (told.uid, told.node) == (pod.uid, node) and _has_key(pod, of) else None


def _has_key(pod: Pod, of: Told) -> bool:
    """Whether its node has the key that the pod's assignment names."""
    return of.keys is None or assignment.key_id(pod.assignment) in of.keys


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
