"""What the cluster has: nodes with their devices, the pods on them, and those that are being bound, or wait
to be with their group (groups.py).

Fed by the watches (following.py) and by binds, asked by filter, prioritize and bind. What is found out about
a node for a demand is remembered, one byte each, and dropped where the node changes. All methods may be
called from any thread; none of them waits for anything but another.

What a watch tells is in order. What a bind has read of a pod may be older than what a watch has told since:
of a pod that is gone nothing is taken from there, and whichever says so, no pod that is bound ceases to be.

A pod that is bound counts, always. With an assignment whose signature holds it counts where that says. Its
author can write another annotation or none: then it counts where it was seen to be; else (after a restart)
where the node says that it is (NodeDevices.reserved); else as if it were placed now, with all that its limits
ask for. So an author can neither free what his pod holds, nor take more than he asked for.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from xpu_runtime.kubernetes.extender import accounting, devices, placement
from xpu_runtime.kubernetes.extender.devices import Held
from xpu_runtime.kubernetes.extender.groups import HOLD_S, Groups, Member, failure
from xpu_runtime.kubernetes.extender.objects import Assumed, Crew, Decided, Figures, Node, Pod
from xpu_runtime.kubernetes.extender.placement import PodShape
from xpu_runtime.kubernetes.extender.verdicts import FULL, NEVER, UNKNOWN, Verdicts, judge
from xpu_runtime.kubernetes.node_annotation import ANNOTATION
from xpu_runtime.kubernetes.resources import DemandError, PodDemand, Resources
from xpu_runtime.request import assignment

#: Different demands that are kept as one object for all their pods.
_MOST_SHARED = 4096
#: Seconds that a pod is remembered which is gone: longer than any request that may have read it before.
_GONE_S = 60.0
#: Seconds for which a question of many nodes keeps watches and binds waiting, and those until it goes on.
_LOCKED_S, _PAUSE_S = 0.02, 0.0005

#: Why nothing is placed on a node that the API has not told of.
_UNKNOWN_NODE = "not known here (yet)"


class Cluster:
    """The cluster's state."""

    def __init__(
        self,
        resources: Resources,
        keys: Callable[[], Mapping[str, bytes]],
        policy: str,
        clock: Callable[[], float],
    ) -> None:
        """`policy` is what holds where neither pod nor node says binpack or spread."""
        self._resources = resources
        self._keys = keys
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        self._assumed: dict[str, Assumed] = {}
        self._groups = Groups()
        #: Pods that are gone, and until when (the clock's seconds) that is remembered; the oldest first.
        self._gone: dict[str, float] = {}
        self._verdicts = Verdicts()
        self._shared: dict[PodDemand, tuple[PodDemand, PodShape]] = {}

    # What the watches say

    def set_node(self, name: str, annotations: Mapping[str, str], labels: Mapping[str, str]) -> str:
        """A node is there, or has changed. What is wrong with its configuration, where that is news; "":
        nothing is."""
        text = annotations.get(ANNOTATION)
        policy = devices.policy(labels)
        stamp = hash((text, policy))
        with self._lock:
            node = self._nodes.get(name)
            if node is not None and node.stamp == stamp:
                return ""
        # Outside of the lock: a node's annotation is a few kilobytes of JSON.
        found = devices.read(text, self._resources.memory_unit)
        with self._lock:
            node = self._nodes.get(name) or self._new_node(name)
            was_told = node.devices.has_other_unit
            node.devices, node.policy, node.stamp = found, policy, stamp
            self._changed(node)
        return found.why_not if found.has_other_unit and not was_told else ""

    def remove_node(self, name: str) -> None:
        """A node is gone."""
        with self._lock:
            self._remove_node(name)

    def keep_nodes(self, names: Collection[str]) -> None:
        """There are these nodes and no others."""
        with self._lock:
            for name in [name for name in self._nodes if name not in names]:
                self._remove_node(name)

    def set_pod(self, data: Mapping[str, Any], *, is_read: bool = False) -> str | None:
        """A pod is there, or has changed: the API's object. Its UID, where it is one that counts, or did.

        `is_read`: it comes from a request of its own, and not from the watch.
        """
        metadata, spec = data["metadata"], data.get("spec") or {}
        uid = metadata["uid"]
        if (data.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            self.remove_pod(uid)
            return None
        annotations = metadata.get("annotations") or {}
        node, text = spec.get("nodeName") or "", annotations.get(assignment.ANNOTATION)
        stamp = hash((node, text))
        with self._lock:
            known = self._pods.get(uid)
            if known is not None and node and known.stamp == stamp and known.held is not None:
                return known.uid
        pod = self.pod(data)
        if pod is None:
            # Its author may have made nonsense of it since: it holds what it got, and its end must be told.
            return uid if known is not None else None
        pod.stamp, pod.node = stamp, sys.intern(node)
        if node:
            pod.held = self._verified(uid, node, text)
        with self._lock:
            if not is_read:
                self._gone.pop(uid, None)
            elif uid in self._gone:
                return pod.uid
            if metadata.get("deletionTimestamp") and self._hold_of(uid) is not None:
                self._forget(uid)
            self._place_pod(pod)
        return pod.uid

    def remove_pod(self, uid: str) -> None:
        """A pod is gone, or has ended."""
        with self._lock:
            self._remove_pod(uid)

    def keep_pods(self, uids: Collection[str], until: float) -> None:
        """There are these pods and no others. Those that have a place may be newer than that: they count
        until then, if the watch does not tell of them."""
        with self._lock:
            for uid in [uid for uid in self._pods if uid not in uids]:
                assumed = self._assumed.get(uid)
                if assumed is None:
                    self._remove_pod(uid)
                elif assumed.until is None or until < assumed.until:
                    self._assumed[uid] = assumed.replace(until=until)

    # What filter, prioritize and bind ask

    def pod(self, data: Mapping[str, Any]) -> Pod | None:
        """The API's pod as one of ours, not bound; None where it asks for nothing or for what makes no
        sense."""
        try:
            demand = self._resources.of_pod(data)
        except DemandError:
            return None
        if demand.is_empty:
            return None
        metadata = data["metadata"]
        demand, shape = self.shape(demand)
        pod = Pod(metadata["uid"], metadata.get("namespace") or "default", metadata["name"], demand, shape)
        pod.priority = int((data.get("spec") or {}).get("priority") or 0)
        pod.failure = failure(data)
        return pod

    def shape(self, demand: PodDemand) -> tuple[PodDemand, PodShape]:
        """The demand in the form that is placed; one object for equal demands."""
        if len(self._shared) > _MOST_SHARED:
            self._shared.clear()
        return self._shared.setdefault(demand, (demand, PodShape(demand)))

    def known_pod(self, uid: str) -> Pod | None:
        """The pod with that UID, where a watch has told of it."""
        with self._lock:
            return self._pods.get(uid)

    def judge(self, shape: PodShape, names: Iterable[str]) -> list[int]:
        """For each of the nodes, what it is for that demand: a score and FITS, FULL or NEVER."""
        found: list[int] = []
        rest, effort = iter(names), placement.Effort()
        while not self._judge_some(shape, rest, effort, found):
            # A lock that is taken again at once is not had by those that wait for it.
            time.sleep(_PAUSE_S)
        return found

    def _judge_some(
        self, shape: PodShape, names: Iterator[str], effort: placement.Effort, found: list[int]
    ) -> bool:
        """Goes on with that for as long as others may be kept waiting; whether it was for all names."""
        with self._lock:
            until = time.monotonic() + _LOCKED_S
            verdicts = self._verdicts.of(shape)
            nodes = self._nodes
            for name in names:
                node = nodes.get(name)
                if node is None:
                    found.append(NEVER)
                    continue
                verdict = verdicts[node.number]
                if verdict:
                    found.append(verdict)
                    continue
                self._count(node)
                verdict = judge(node, shape, self._binpack(shape, node), effort)
                # That there is no place is known only where the effort was enough to see it.
                verdicts[node.number] = verdict if verdict < FULL or effort.left >= 0 else UNKNOWN
                found.append(verdict)
                if time.monotonic() >= until:
                    return False
            return True

    def yielding(self, names: Iterable[str], priority: int) -> set[str]:
        """Those of the nodes that have pods of a lower priority: kube-scheduler may end these for another."""
        with self._lock:
            found = set()
            for name in names:
                node = self._nodes.get(name)
                if node is not None:
                    self._count(node)
                    if node.lowest is not None and node.lowest < priority:
                        found.add(name)
            return found

    def why_not(self, names: Iterable[str]) -> dict[str, str]:
        """Of those of the nodes on which no pod can be placed: why."""
        with self._lock:
            nodes = self._nodes
            return {
                name: nodes[name].devices.why_not if name in nodes else _UNKNOWN_NODE
                for name in names
                if name not in nodes or nodes[name].devices.why_not
            }

    def figures(self, names: Iterable[str]) -> list[Figures]:
        """What is free on each of the nodes."""
        with self._lock:
            found = []
            for name in names:
                node = self._nodes.get(name)
                if node is None or node.devices.why_not:
                    found.append(Figures(name, node.devices.why_not if node else _UNKNOWN_NODE))
                    continue
                self._count(node)
                found.append(Figures(name, "", node.devices, node.memory, node.cores))
            return found

    def roomiest(self, names: Iterable[str], count: int) -> list[str]:
        """Those of the nodes of which a device has the most memory free, the most first."""
        with self._lock:

            def most(name: str) -> int:
                node = self._nodes.get(name)
                if node is None or node.devices.why_not:
                    return -1
                self._count(node)
                return node.most

            return heapq.nlargest(count, names, key=most)

    def crew(self, name: str, shape: PodShape) -> Crew | None:
        """Who holds what on a node, and how the pod would be placed there; None where it cannot be."""
        with self._lock:
            node = self._nodes.get(name)
            if node is None or node.devices.why_not:
                return None
            has = node.devices
            free = list(has.memory), list(has.cores)
            held = accounting.holdings(node, self._pods, self._assumed, *free)
            bound = {uid: self._pods[uid] for uid, _ in held if uid in self._pods and self._pods[uid].node}
            members = tuple((uid, bound[uid].priority if uid in bound else None, each) for uid, each in held)
            return Crew(has, members, self._binpack(shape, node))

    def assumed_on(self, uid: str) -> str:
        """The node on which the pod has a place and is not bound; "": none."""
        with self._lock:
            assumed = self._assumed.get(uid)
            return assumed.node if assumed is not None else ""

    def ask(self, uid: str, of: Member) -> None:
        """kube-scheduler asks about a pod of a group: nothing is held of it any more, and nothing of the
        others if a new try of all begins with it."""
        with self._lock:
            now = self._clock()
            if self._groups.is_idle(of, now):
                self._forget_group(of.group, now)
            has_place = self._hold_of(uid) is not None
            if self._groups.asked(uid, of, has_place, now):
                self._forget_group(of.group)
            elif has_place:
                self._forget(uid)

    def hold(self, pod: Pod, name: str, of: Member) -> bool:
        """Holds a place on that node for a pod of a group; False where it has none there. For a pod that is
        being bound, is bound, or is gone nothing is held."""
        with self._lock:
            known, assumed = self._pods.get(pod.uid), self._assumed.get(pod.uid)
            if (known is not None and known.node) or pod.uid in self._gone:
                return True
            if assumed is not None and assumed.hold is None:
                return True
            if known is not None and not of.failure:
                of = of.replace(failure=known.failure)  # the watch may be ahead of kube-scheduler's
            self._forget(pod.uid)
            return self._take(pod, name, self._clock() + HOLD_S, of) is not None

    def has_no_place(self, of: Member) -> None:
        """That member has none on any node."""
        with self._lock:
            self._groups.fails(of.group)

    def let_go(self) -> None:
        """Nothing is held any more."""
        with self._lock:
            for uid in [uid for uid, each in self._assumed.items() if each.hold is not None]:
                self._forget(uid)

    def held_for_groups(self, names: Iterable[str], shape: PodShape, most: int) -> set[str]:
        """Those of the nodes on which the pod would have a place but for what is held for groups; no more
        than `most` nodes are looked at."""
        with self._lock:
            held = {uid: each.node for uid, each in self._assumed.items() if each.hold is not None}
            return self._fits_without(held, names, shape, most)

    def to_give_away(
        self, names: Iterable[str], shape: PodShape, of: Member | None, most: int
    ) -> float | None:
        """Seconds since a group was asked about or bound of which places could be given away for the pod;
        None: it would have none by that. Those of the group of `of` are not."""
        with self._lock:
            held = self._given_away(of)
            if not held or not self._fits_without(held, names, shape, most):
                return None
            groups = {hold.group for hold in map(self._hold_of, held) if hold is not None}
            return max(self._clock() - self._groups.last_asked(groups), 0.0)

    def give_away(self, of: Member | None) -> None:
        """Lets go of that, of groups of which no bind has come since."""
        with self._lock:
            for uid in self._given_away(of):
                self._forget(uid)

    def assume(self, pod: Pod, name: str, until: float) -> Assumed | Decided | None:
        """Takes the pod's place on that node's devices; None where it has none there. Idempotent: for a pod
        that is assumed there already, what it was given."""
        with self._lock:
            # The watch may have told since the caller looked.
            now = self._pods.get(pod.uid)
            if now is not None and now.node:
                return Decided(now.node)
            if pod.uid in self._gone:
                return Decided("")
            assumed = self._assumed.get(pod.uid)
            if assumed is not None and assumed.node == name and assumed.hold is None:
                return assumed
            hold = self._hold_of(pod.uid)
            if hold is not None and assumed is not None and assumed.node != name:
                # Of what kube-scheduler has tried it takes another than the last: what is held is not what it
                # wants, and might be in the way of it.
                self._forget_group(hold.group)
            if name in self._nodes and not self._nodes[name].devices.why_not:
                self._forget(pod.uid)
            taken = self._take(pod, name, until, None)
            if hold is not None and taken is not None:
                self._groups.binds(hold.group, pod.uid, self._clock())
            return taken

    def confirm(self, uid: str) -> None:
        """The API has bound it: it counts until the watch says what became of it."""
        with self._lock:
            assumed = self._assumed.get(uid)
            if assumed is not None:
                self._assumed[uid] = assumed.replace(until=None)

    def forget(self, uid: str) -> None:
        """It was not bound, and is not going to be."""
        with self._lock:
            self._forget(uid)
            self._groups.is_not_bound(uid)

    def expire(self) -> list[Assumed]:
        """Forgets those that have been assumed for too long, and returns them."""
        now = self._clock()
        with self._lock:
            for uid in [uid for uid, until in self._gone.items() if until <= now]:
                del self._gone[uid]
            late = []
            for each in self._assumed.values():
                is_over = each.hold is not None and self._groups.is_over(each.hold, now)
                if is_over or (each.until is not None and each.until <= now):
                    late.append(each)
            for each in late:
                self._forget(each.uid)
                if each.hold is not None:
                    self._groups.fails(each.hold.group)
            self._groups.expire(now)
        return late

    def counts(self) -> dict[str, int]:
        """For metrics: nodes by whether they serve, pods by what is known of them, bytes of their devices."""
        with self._lock:
            found = dict.fromkeys(("nodes", "unusable_nodes", "devices", "memory", "free"), 0)
            for node in self._nodes.values():
                found["unusable_nodes" if node.devices.why_not else "nodes"] += 1
                self._count(node)
                found["devices"] += len(node.devices.totals)
                found["memory"] += sum(node.devices.totals)
                found["free"] += sum(free for free in node.memory if free > 0)
            bound = [pod for pod in self._pods.values() if pod.node]
            found["held"] = sum(each.hold is not None for each in self._assumed.values())
            found["assumed"] = len(self._assumed) - found["held"]
            found["unverified"] = sum(pod.held is None for pod in bound)
            found["bound"] = len(bound) - found["unverified"]
            found["waiting"] = len(self._pods) - len(bound)
            return found

    # With the lock held

    def _take(self, pod: Pod, name: str, until: float, hold: Member | None) -> Assumed | None:
        """A place on that node, for a pod that has none; None where there is none."""
        node = self._nodes.get(name)
        if node is None or node.devices.why_not:
            return None
        self._count(node)
        binpack = self._binpack(pod.shape, node)
        has, effort = node.devices, placement.Effort()
        places = placement.place(has.totals, node.memory, node.cores, pod.shape, binpack, effort, has.kinds)
        if places is None:
            return None
        held = accounting.held_by_places(has, pod.shape, places)
        assigned = accounting.assignment(pod.uid, name, has, pod.demand, places)
        assumed = Assumed(pod.uid, name, held, assigned, until, hold)
        self._assumed[pod.uid] = assumed
        self._pods.setdefault(pod.uid, pod)
        node.pods.add(pod.uid)
        self._changed(node)
        return assumed

    def _hold_of(self, uid: str) -> Member | None:
        """For whom the pod's place is held; None: it has none, or is being bound."""
        assumed = self._assumed.get(uid)
        return assumed.hold if assumed is not None else None

    def _given_away(self, of: Member | None) -> dict[str, str]:
        """By UID the nodes of pods of which the place is given away where it is needed, the group of `of`
        apart."""
        now = self._clock()
        held = ((uid, each.node, each.hold) for uid, each in self._assumed.items() if each.hold is not None)
        return {
            uid: node
            for uid, node, hold in held
            if (of is None or hold.group != of.group) and self._groups.is_given_away(hold, now)
        }

    def _fits_without(
        self, held: Mapping[str, str], names: Iterable[str], shape: PodShape, most: int
    ) -> set[str]:
        """Those of the nodes on which the pod would have a place but for pods with these UIDs, by which their
        nodes are; no more than `most` are looked at."""
        wanted, found, effort = set(held.values()), set(), placement.Effort()
        for name in itertools.islice((name for name in names if name in wanted), most):
            node = self._nodes.get(name)
            if node is None or node.devices.why_not:
                continue
            has = node.devices
            free = list(has.memory), list(has.cores)
            accounting.holdings(node, self._pods, self._assumed, *free, held)
            binpack = self._binpack(shape, node)
            if placement.place(has.totals, *free, shape, binpack, effort, has.kinds) is not None:
                found.add(name)
        return found

    def _forget_group(self, group: str, over: float | None = None) -> None:
        """Nothing is held of that group any more; `over`: but for what is held beyond that time."""
        held = ((uid, each.hold) for uid, each in self._assumed.items())
        for uid in [
            uid
            for uid, hold in held
            if hold is not None and hold.group == group and (over is None or self._groups.is_over(hold, over))
        ]:
            self._forget(uid)

    def _new_node(self, name: str) -> Node:
        node = self._nodes[sys.intern(name)] = Node(self._verdicts.new_number())
        # Pods may be known before their node is.
        node.pods.update(pod.uid for pod in self._pods.values() if pod.node == name)
        node.pods.update(each.uid for each in self._assumed.values() if each.node == name)
        return node

    def _remove_node(self, name: str) -> None:
        node = self._nodes.pop(name, None)
        if node is not None:
            self._changed(node)
            self._verdicts.give_back(node.number)

    def _changed(self, node: Node) -> None:
        node.is_stale = True
        self._verdicts.forget(node.number)

    def _place_pod(self, pod: Pod) -> None:
        """A pod as the API tells of it."""
        before = self._pods.get(pod.uid)
        if before is not None and before.node and not pod.node:
            return  # read before it was bound
        assumed = self._assumed.get(pod.uid)
        if pod.failure and assumed is not None and assumed.hold is not None:
            self._assumed[pod.uid] = assumed.replace(hold=assumed.hold.replace(failure=pod.failure))
        if pod.node and pod.held is None:
            # Whatever became of its annotation, it was seen what it holds.
            if assumed is not None and assumed.node == pod.node and assumed.hold is None:
                pod.held = assumed.held
            elif before is not None and before.node == pod.node:
                pod.held = before.held
        self._pods[pod.uid] = pod
        if pod.node and assumed is not None:
            self._forget(pod.uid)
        if before is not None and before.node != pod.node:
            self._leave(pod.uid, before.node)
        node = self._nodes.get(pod.node)
        if node is not None:
            node.pods.add(pod.uid)
            self._changed(node)

    def _remove_pod(self, uid: str) -> None:
        self._gone.pop(uid, None)
        self._gone[uid] = self._clock() + _GONE_S
        self._forget(uid)
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._leave(uid, pod.node)

    def _forget(self, uid: str) -> None:
        assumed = self._assumed.pop(uid, None)
        if assumed is not None:
            pod = self._pods.get(uid)
            if pod is None or pod.node != assumed.node:
                self._leave(uid, assumed.node)

    def _leave(self, uid: str, name: str) -> None:
        node = self._nodes.get(name)
        if node is not None:
            node.pods.discard(uid)
            self._changed(node)

    def _binpack(self, shape: PodShape, node: Node) -> bool:
        return (shape.policy or node.policy or self._policy) == "binpack"

    def _count(self, node: Node) -> None:
        accounting.count(node, self._pods, self._assumed)

    # Without it

    def _verified(self, uid: str, node: str, text: str | None) -> Held | None:
        """What the pod's assignment says, if it is one of ours for that pod on that node; else None."""
        if text is None:
            return None
        try:
            found = assignment.read(text, self._keys())
        except assignment.AssignmentError:
            return None
        return accounting.held_by(found) if (found.uid, found.node) == (uid, node) else None
