"""The pods that would have to end on a node, so that one of a higher priority fits on its devices.

kube-scheduler finds victims by a node's sums, which tell nothing of a device: it would end pods on two
devices that leave room on neither, or none where the sums fit. Here they are found by devices, in its way:
without all pods of a lower priority, then with as many of them again as leave a place, the highest priority
first. Its own choice stays chosen, as it may be needed for reasons that are unknown here (CPU, memory,
ports).

Versions 1.20 and 1.21 of kube-scheduler never ask (kubernetes#102971), those from 1.22 to 1.37 only for nodes
on which they have found victims themselves: where the sums fit that is an error there, "expected at least one
victim pod on node" (preemption.go, DryRunPreemption, of 1.36.2; kubernetes#135486 is later than 1.37). Knows
no API.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from xpu_runtime.kubernetes.extender import accounting
from xpu_runtime.kubernetes.extender.objects import NodePods
from xpu_runtime.placement.pod import PodShape, StepBudget, place

#: Seconds for a question: kube-scheduler waits for 10 (httpTimeout), and binds nothing meanwhile.
MOST_S = 5.0


class SearchBudget:
    """The budget of one question about many nodes: steps of placement, and time."""

    def __init__(self) -> None:
        self.steps = StepBudget()
        self._until = time.monotonic() + MOST_S

    @property
    def is_spent(self) -> bool:
        """Nothing more is found out."""
        return self.steps.left < 0 or time.monotonic() >= self._until


def victims(
    node_pods: NodePods, shape: PodShape, priority: int, chosen: Collection[str], budget: SearchBudget
) -> list[str] | None:
    """The UIDs of the pods that must end, those `chosen` by kube-scheduler among them; None if that is not
    enough. If `budget` is spent: all of a lower priority, or None if it is not known that they are enough."""
    lower = [
        each
        for each in node_pods.members
        if each[0] in chosen or (each[1] is not None and each[1] < priority)
    ]
    uids = {each[0] for each in lower}
    free = list(node_pods.devices.memory), list(node_pods.devices.cores)
    for member in node_pods.members:
        if member[0] not in uids:
            accounting.take(node_pods.devices, *free, member[2])
    if not _fits(node_pods, shape, free, budget):
        return None
    ending = [uid for uid in chosen if uid not in uids]
    for uid, _, held in sorted(lower, key=lambda each: (-(each[1] or 0), each[0])):
        left = list(free[0]), list(free[1])
        accounting.take(node_pods.devices, *left, held)
        if uid not in chosen and _fits(node_pods, shape, left, budget):
            free = left
        else:
            ending.append(uid)
    return ending


def _fits(
    node_pods: NodePods, shape: PodShape, free: tuple[list[int], list[int]], budget: SearchBudget
) -> bool:
    if budget.is_spent:
        return False
    has = node_pods.devices
    return place(has.cards, *free, shape, node_pods.binpack, budget.steps) is not None
