"""The state of a cluster: nodes, the pods on them, and pods with a place that are not bound; and the steps
that change it.

Holds no lock: Cluster (cluster.py), the only caller, has its own while it calls anything here. Nothing here
waits.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping

from xpu_runtime.kubernetes.extender import accounting
from xpu_runtime.kubernetes.extender.groups import Groups, Member
from xpu_runtime.kubernetes.extender.objects import Assumed, Node, Pod
from xpu_runtime.kubernetes.extender.verdicts import Verdicts
from xpu_runtime.placement.pod import PodShape, StepBudget, place

#: Seconds that a pod is remembered which is gone: longer than any request that may have read it before.
_GONE_S = 60.0


class State:
    """Nodes, pods and places, by names and UIDs."""

    def __init__(self, policy: str, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.assumed: dict[str, Assumed] = {}
        self.groups = Groups()
        #: Pods that are gone, and until when (the clock's seconds) that is remembered; the oldest first.
        self.gone: dict[str, float] = {}
        self.verdicts = Verdicts()

    def take(self, pod: Pod, name: str, until: float, hold: Member | None) -> Assumed | None:
        """A place on that node, for a pod that has none; None where there is none."""
        node = self.nodes.get(name)
        if node is None or node.devices.why_not:
            return None
        self.count(node)
        binpack = self.binpack(pod.shape, node)
        has, steps = node.devices, StepBudget()
        places = place(has.cards, node.memory, node.cores, pod.shape, binpack, steps)
        if places is None:
            return None
        assigned = accounting.assignment(pod.uid, name, has, pod.demand, places)
        assumed = Assumed(pod.uid, name, accounting.held_by(assigned), assigned, until, hold)
        self.assumed[pod.uid] = assumed
        self.pods.setdefault(pod.uid, pod)
        node.pods.add(pod.uid)
        self.changed(node)
        return assumed

    def hold_of(self, uid: str) -> Member | None:
        """For whom the pod's place is held; None: it has none, or is being bound."""
        assumed = self.assumed.get(uid)
        return assumed.hold if assumed is not None else None

    def preemptible(self, of: Member | None) -> dict[str, str]:
        """By UID the nodes of pods whose place may be given away, without the group of `of`."""
        now = self._clock()
        held = ((uid, each.node, each.hold) for uid, each in self.assumed.items() if each.hold is not None)
        return {
            uid: node
            for uid, node, hold in held
            if (of is None or hold.group != of.group) and self.groups.is_preemptible(hold, now)
        }

    def fits_without(
        self, held: Mapping[str, str], names: Iterable[str], shape: PodShape, most: int
    ) -> set[str]:
        """The nodes on which only these pods (by UID, with their nodes) keep the pod from fitting; looks at
        `most` at most."""
        wanted, found, steps = set(held.values()), set(), StepBudget()
        for name in itertools.islice((name for name in names if name in wanted), most):
            node = self.nodes.get(name)
            if node is None or node.devices.why_not:
                continue
            has = node.devices
            free = list(has.memory), list(has.cores)
            accounting.holdings(node, self.pods, self.assumed, *free, held)
            binpack = self.binpack(shape, node)
            if place(has.cards, *free, shape, binpack, steps) is not None:
                found.add(name)
        return found

    def forget_group(self, group: str, over: float | None = None) -> None:
        """Ends all held places of that group; `over`: except for those held beyond that time."""
        held = ((uid, each.hold) for uid, each in self.assumed.items())
        for uid in [
            uid
            for uid, hold in held
            if hold is not None and hold.group == group and (over is None or self.groups.is_over(hold, over))
        ]:
            self.forget(uid)

    def new_node(self, name: str) -> Node:
        node = self.nodes[sys.intern(name)] = Node(self.verdicts.new_number())
        # Pods may be known before their node is.
        node.pods.update(pod.uid for pod in self.pods.values() if pod.node == name)
        node.pods.update(each.uid for each in self.assumed.values() if each.node == name)
        return node

    def remove_node(self, name: str) -> None:
        node = self.nodes.pop(name, None)
        if node is not None:
            self.changed(node)
            self.verdicts.give_back(node.number)

    def changed(self, node: Node) -> None:
        node.is_stale = True
        self.verdicts.forget(node.number)

    def place_pod(self, pod: Pod) -> None:
        """Enters a pod as the API reports it."""
        before = self.pods.get(pod.uid)
        if before is not None and before.node and not pod.node:
            return  # read before it was bound
        assumed = self.assumed.get(pod.uid)
        if pod.failure and assumed is not None and assumed.hold is not None:
            self.assumed[pod.uid] = assumed.replace(hold=assumed.hold.replace(failure=pod.failure))
        if pod.node and pod.held is None:
            # Its share was seen, even if its annotation has changed since.
            if assumed is not None and assumed.node == pod.node and assumed.hold is None:
                pod.held = assumed.held
            elif before is not None and before.node == pod.node:
                pod.held = before.held
        self.pods[pod.uid] = pod
        if pod.node and assumed is not None:
            self.forget(pod.uid)
        if before is not None and before.node != pod.node:
            self.leave(pod.uid, before.node)
        node = self.nodes.get(pod.node)
        if node is not None:
            node.pods.add(pod.uid)
            self.changed(node)

    def remove_pod(self, uid: str) -> None:
        self.gone.pop(uid, None)
        self.gone[uid] = self._clock() + _GONE_S
        self.forget(uid)
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self.leave(uid, pod.node)

    def forget(self, uid: str) -> None:
        assumed = self.assumed.pop(uid, None)
        if assumed is not None:
            pod = self.pods.get(uid)
            if pod is None or pod.node != assumed.node:
                self.leave(uid, assumed.node)

    def leave(self, uid: str, name: str) -> None:
        node = self.nodes.get(name)
        if node is not None:
            node.pods.discard(uid)
            self.changed(node)

    def binpack(self, shape: PodShape, node: Node) -> bool:
        return (shape.policy or node.policy or self._policy) == "binpack"

    def count(self, node: Node) -> None:
        accounting.count(node, self.pods, self.assumed)

    def counts(self) -> dict[str, int]:
        found = dict.fromkeys(("nodes", "unusable_nodes", "devices", "memory", "free"), 0)
        for node in self.nodes.values():
            found["unusable_nodes" if node.devices.why_not else "nodes"] += 1
            self.count(node)
            found["devices"] += len(node.devices.uuids)
            found["memory"] += sum(node.devices.cards.totals)
            found["free"] += sum(free for free in node.memory if free > 0)
        bound = [pod for pod in self.pods.values() if pod.node]
        found["held"] = sum(each.hold is not None for each in self.assumed.values())
        found["assumed"] = len(self.assumed) - found["held"]
        found["unverified"] = sum(pod.held is None for pod in bound)
        found["bound"] = len(bound) - found["unverified"]
        found["waiting"] = len(self.pods) - len(bound)
        return found

    def expire(self) -> list[Assumed]:
        now = self._clock()
        for uid in [uid for uid, until in self.gone.items() if until <= now]:
            del self.gone[uid]
        late = []
        for each in self.assumed.values():
            is_over = each.hold is not None and self.groups.is_over(each.hold, now)
            if is_over or (each.until is not None and each.until <= now):
                late.append(each)
        for each in late:
            self.forget(each.uid)
            if each.hold is not None:
                self.groups.fails(each.hold.group)
        self.groups.expire(now)
        return late
