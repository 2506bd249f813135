"""Pods' shares of a node's devices, and the free rest: values in, values out.

For a pod that has been placed, for one whose assignment was read, and for one of which only the limits are
known. Knows neither the API nor caches.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping, Sequence

from xpu_runtime.kubernetes.extender.devices import Held, NodeDevices
from xpu_runtime.kubernetes.extender.objects import Assumed, Node, Pod
from xpu_runtime.placement.cards import Cards
from xpu_runtime.placement.demand import PodDemand
from xpu_runtime.placement.pod import Places, PodShape, StepBudget, holding, place
from xpu_runtime.request.amounts import of_shares
from xpu_runtime.request.assignment import Assignment

#: kube-scheduler's scores of extenders (MaxExtenderPriority).
HIGHEST = 10
#: The part of a node's score for how full the chosen devices would be; the rest is for the whole node.
_OF_DEVICES = 0.8


def assignment(uid: str, node: str, has: NodeDevices, demand: PodDemand, places: Places) -> Assignment:
    """The pod's assignment, made now, with its containers in these places."""
    return Assignment(uid, node, time.time(), *demand.shares(places, has.uuids, has.cards.totals))


def held_by(found: Assignment) -> Held:
    """A pod's share of each device by its assignment: the most that its containers have at one time."""
    most = of_shares(found.containers, found.init, found.sidecars)
    return tuple(
        (sys.intern(uuid), None if each.whole else each.memory_bytes, each.cores)
        for uuid, each in most.items()
    )


def count(node: Node, pods: Mapping[str, Pod], assumed: Mapping[str, Assumed]) -> None:
    """Computes the free part of a node's devices, if not known."""
    if not node.is_stale:
        return
    has = node.devices
    node.memory, node.cores = has.memory, has.cores
    if node.pods or has.reserved:  # otherwise it shares its numbers with the nodes like it
        memory, cores = list(has.memory), list(has.cores)
        holdings(node, pods, assumed, memory, cores)
        node.memory, node.cores = memory, cores
    node.most = max(node.memory, default=-1)
    bound = (pods[uid] for uid in node.pods if uid in pods)
    node.lowest = min((pod.priority for pod in bound if pod.node), default=None)
    # Last: a node whose pods could not be counted must not pass for one without any.
    node.is_stale = False


def holdings(
    node: Node,
    pods: Mapping[str, Pod],
    assumed: Mapping[str, Assumed],
    memory: list[int],
    cores: list[int],
    without: Collection[str] = (),
) -> list[tuple[str, Held]]:
    """Each pod's share on the node, by its UID, subtracted from `memory` and `cores`; pods with the UIDs of
    `without` do not count."""
    found: list[tuple[str, Held]] = []
    unknown: list[Pod] = []
    told = dict(node.devices.reserved)
    for uid in node.pods.difference(without):
        binding, pod = assumed.get(uid), pods.get(uid)
        held = binding.held if binding is not None else pod.held if pod is not None else None
        reserved = told.pop(uid, None)
        held = reserved if held is None else held
        if held is not None:
            found.append((uid, held))
        elif pod is not None:
            unknown.append(pod)
    found.extend(told.items())  # pods that are gone from the API, and still on the node
    for _, held in found:
        take(node.devices, memory, cores, held)
    steps = StepBudget()  # one for all of them: their authors choose how many there are
    for pod in sorted(unknown, key=lambda each: each.uid):
        held = guessed(node.devices, memory, cores, pod, steps)
        take(node.devices, memory, cores, held)
        found.append((pod.uid, held))
    return found


def take(has: NodeDevices, memory: list[int], cores: list[int], held: Held) -> None:
    """Subtracts a pod's share from the free part of each device."""
    for uuid, amount, percent in held:
        if uuid in has.uuids:
            position = has.uuids.index(uuid)
            cores[position] = max(cores[position] - percent, 0)
            if memory[position] > 0:
                memory[position] = 0 if amount is None else max(memory[position] - amount, 0)


def guessed(
    has: NodeDevices, memory: Sequence[int], cores: Sequence[int], pod: Pod, steps: StepBudget
) -> Held:
    """The share that a pod of which only the limits are known would get now; if it does not fit, its request
    on the emptiest devices. Nothing if it would not fit on the empty node: then it cannot be there, and
    counting it would take all devices from others."""
    places = place(has.cards, memory, cores, pod.shape, False, steps)
    if places is None:
        places = _emptiest(has, memory, pod.shape)
    return () if places is None else held_by(assignment(pod.uid, pod.node, has, pod.demand, places))


def _emptiest(has: NodeDevices, memory: Sequence[int], shape: PodShape) -> Places | None:
    """For each container devices that are large enough, free or not, the emptiest first; None if there are
    too few."""
    left = list(memory)
    chosen: tuple[list[tuple[int, ...]], ...] = ([], [], [])
    for part, found in zip((shape.containers, shape.init, shape.sidecars), chosen):
        for each in part:
            ways = []
            for group in has.cards.groups(each):
                able = [
                    position
                    for position in group
                    if each.on(has.cards, position) <= has.cards.capacities[position]
                ]
                if len(able) >= each.count:
                    ways.append(sorted(able, key=lambda position: -left[position])[: each.count])
            if not ways:
                return None
            positions = max(ways, key=lambda way: sum(left[position] for position in way))
            found.append(tuple(positions))
            if part is not shape.init:  # these run one after the other, before the others
                for position in positions:
                    left[position] -= each.on(has.cards, position)
    containers, init, sidecars = map(tuple, chosen)
    return containers, init, sidecars


def fullness(cards: Cards, memory: Sequence[int], shape: PodShape, places: Places) -> float:
    """0 to 10: how full the chosen devices, and the node, would be with the pod."""
    if shape.only is not None:
        chosen = places[0][0]
        taken = {position: shape.only.on(cards, position) for position in chosen}
    else:
        taken = {position: amount for position, (amount, _) in holding(cards, shape, places).items()}
    used = 0.0
    for position, amount in taken.items():
        used += 1 - (memory[position] - amount) / cards.capacities[position]
    free = sum(memory) - sum(taken.values())
    node = 1 - max(free, 0) / sum(cards.capacities)
    return HIGHEST * (_OF_DEVICES * used / len(taken) + (1 - _OF_DEVICES) * node)
