"""The cluster: nodes with their devices, the pods on them, and pods that are being bound, or wait for their
group (groups.py). state.py has the data.

The watches (informer.py) and binds feed it; filter, prioritize and bind ask it. A node's result for a demand
is cached, one byte each, and dropped when the node changes. All methods may be called from any thread; they
wait only for one another.

A watch's changes are in order. A pod that a bind has read may be older than a watch's change since: the data
of a pod that is gone is ignored, and a bound pod stays bound.

A bound pod always counts. With a valid assignment it counts on the devices of that. Its author can write
another annotation or none: then it counts on the devices where it was seen; otherwise (after a restart) on
those of the node's report (NodeDevices.reserved); otherwise as if it were placed now, with its whole request.
So an author can neither free his pod's share, nor take more than the request.
"""

from __future__ import annotations

import heapq
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from xpu_runtime.kubernetes.extender import accounting, devices
from xpu_runtime.kubernetes.extender.devices import Held
from xpu_runtime.kubernetes.extender.groups import HOLD_S, Member, failure
from xpu_runtime.kubernetes.extender.objects import Assumed, Decided, NodePods, NodeSummary, Pod
from xpu_runtime.kubernetes.extender.state import State
from xpu_runtime.kubernetes.extender.verdicts import FULL, NEVER, UNKNOWN, judge
from xpu_runtime.kubernetes.node_annotation import ANNOTATION
from xpu_runtime.kubernetes.resources import DemandError, Resources
from xpu_runtime.placement.demand import PodDemand
from xpu_runtime.placement.pod import PodShape, StepBudget
from xpu_runtime.request import assignment

#: Different demands that are kept as one object for all their pods.
_MOST_SHARED = 4096
#: Seconds for which a question of many nodes keeps watches and binds waiting, and those until it goes on.
_LOCKED_S, _PAUSE_S = 0.02, 0.0005

#: The reason for a node that the API has not reported.
_UNKNOWN_NODE = "not known here (yet)"


class Cluster:
    def __init__(
        self,
        resources: Resources,
        keys: Callable[[], Mapping[str, bytes]],
        policy: str,
        clock: Callable[[], float],
    ) -> None:
        """`policy` is for pods and nodes that do not name binpack or spread."""
        self._resources = resources
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._state = State(policy, clock)
        self._shared: dict[PodDemand, tuple[PodDemand, PodShape]] = {}

    # Changes that the watches report

    def set_node(self, name: str, annotations: Mapping[str, str], labels: Mapping[str, str]) -> str:
        """A node is new, or has changed. Returns a new fault of its configuration; "": none."""
        text = annotations.get(ANNOTATION)
        policy = devices.policy(labels)
        stamp = hash((text, policy))
        with self._lock:
            node = self._state.nodes.get(name)
            if node is not None and node.stamp == stamp:
                return ""
        # Outside of the lock: a node's annotation is a few kilobytes of JSON.
        found = devices.read(text, self._resources.memory_unit)
        with self._lock:
            node = self._state.nodes.get(name) or self._state.new_node(name)
            was_told = node.devices.has_other_unit
            node.devices, node.policy, node.stamp = found, policy, stamp
            self._state.changed(node)
        return found.why_not if found.has_other_unit and not was_told else ""

    def remove_node(self, name: str) -> None:
        with self._lock:
            self._state.remove_node(name)

    def keep_nodes(self, names: Collection[str]) -> None:
        """There are these nodes and no others."""
        with self._lock:
            for name in [name for name in self._state.nodes if name not in names]:
                self._state.remove_node(name)

    def set_pod(self, data: Mapping[str, Any], *, is_read: bool = False) -> str | None:
        """A pod is there, or has changed: the API's object. Returns its UID if the pod counts, or did.

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
            known = self._state.pods.get(uid)
            if known is not None and node and known.stamp == stamp and known.held is not None:
                return known.uid
        pod = self.pod(data)
        if pod is None:
            # Its author may have spoiled it since: it keeps its share, and its end must be noticed.
            return uid if known is not None else None
        pod.stamp, pod.node = stamp, sys.intern(node)
        if node:
            pod.held = self._verified(uid, node, text)
        with self._lock:
            if not is_read:
                self._state.gone.pop(uid, None)
            elif uid in self._state.gone:
                return pod.uid
            if metadata.get("deletionTimestamp") and self._state.hold_of(uid) is not None:
                self._state.forget(uid)
            self._state.place_pod(pod)
        return pod.uid

    def remove_pod(self, uid: str) -> None:
        """A pod is gone, or has ended."""
        with self._lock:
            self._state.remove_pod(uid)

    def keep_pods(self, uids: Collection[str], until: float) -> None:
        """There are these pods and no others. Those that have a place may be newer than that: they count
        until then, if the watch does not tell of them."""
        with self._lock:
            for uid in [uid for uid in self._state.pods if uid not in uids]:
                assumed = self._state.assumed.get(uid)
                if assumed is None:
                    self._state.remove_pod(uid)
                elif assumed.until is None or until < assumed.until:
                    self._state.assumed[uid] = assumed.replace(until=until)

    # Questions of filter, prioritize and bind

    def pod(self, data: Mapping[str, Any]) -> Pod | None:
        """The API's pod as one of ours, not bound; None if it asks for nothing, or makes no valid request."""
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
        """The pod with that UID, if a watch has reported it."""
        with self._lock:
            return self._state.pods.get(uid)

    def judge(self, shape: PodShape, names: Iterable[str]) -> list[int]:
        """Each node's verdict for that demand: a score and FITS, FULL or NEVER."""
        found: list[int] = []
        rest, steps = iter(names), StepBudget()
        while not self._judge_some(shape, rest, steps, found):
            # A lock that is taken again at once is not had by those that wait for it.
            time.sleep(_PAUSE_S)
        return found

    def _judge_some(self, shape: PodShape, names: Iterator[str], steps: StepBudget, found: list[int]) -> bool:
        """Goes on with that for a bounded time, as others wait; returns whether it finished."""
        with self._lock:
            until = time.monotonic() + _LOCKED_S
            verdicts = self._state.verdicts.of(shape)
            nodes = self._state.nodes
            for name in names:
                node = nodes.get(name)
                if node is None:
                    found.append(NEVER)
                    continue
                verdict = verdicts[node.number]
                if verdict:
                    found.append(verdict)
                    continue
                self._state.count(node)
                verdict = judge(node, shape, self._state.binpack(shape, node), steps)
                # That there is no place is certain only if the search was not cut short.
                verdicts[node.number] = verdict if verdict < FULL or steps.left >= 0 else UNKNOWN
                found.append(verdict)
                if time.monotonic() >= until:
                    return False
            return True

    def yielding(self, names: Iterable[str], priority: int) -> set[str]:
        """Those of the nodes that have pods of a lower priority: kube-scheduler may end these for another."""
        with self._lock:
            found = set()
            for name in names:
                node = self._state.nodes.get(name)
                if node is not None:
                    self._state.count(node)
                    if node.lowest is not None and node.lowest < priority:
                        found.add(name)
            return found

    def why_not(self, names: Iterable[str]) -> dict[str, str]:
        """The reasons of those nodes on which no pod can be placed."""
        with self._lock:
            nodes = self._state.nodes
            return {
                name: nodes[name].devices.why_not if name in nodes else _UNKNOWN_NODE
                for name in names
                if name not in nodes or nodes[name].devices.why_not
            }

    def summaries(self, names: Iterable[str]) -> list[NodeSummary]:
        """The free part of each of the nodes."""
        with self._lock:
            found = []
            for name in names:
                node = self._state.nodes.get(name)
                if node is None or node.devices.why_not:
                    found.append(NodeSummary(name, node.devices.why_not if node else _UNKNOWN_NODE))
                    continue
                self._state.count(node)
                found.append(NodeSummary(name, "", node.devices, node.memory, node.cores))
            return found

    def roomiest(self, names: Iterable[str], count: int) -> list[str]:
        """The nodes with the most free memory on one device, the most first."""
        with self._lock:

            def most(name: str) -> int:
                node = self._state.nodes.get(name)
                if node is None or node.devices.why_not:
                    return -1
                self._state.count(node)
                return node.most

            return heapq.nlargest(count, names, key=most)

    def node_pods(self, name: str, shape: PodShape) -> NodePods | None:
        """The pods' shares on a node, and the pod's placement there; None if it cannot be placed."""
        with self._lock:
            node = self._state.nodes.get(name)
            if node is None or node.devices.why_not:
                return None
            has = node.devices
            free = list(has.memory), list(has.cores)
            pods = self._state.pods
            held = accounting.holdings(node, pods, self._state.assumed, *free)
            bound = {uid: pods[uid] for uid, _ in held if uid in pods and pods[uid].node}
            members = tuple((uid, bound[uid].priority if uid in bound else None, each) for uid, each in held)
            return NodePods(has, members, self._state.binpack(shape, node))

    def assumed_on(self, uid: str) -> str:
        """The node on which the pod has a place and is not bound; "": none."""
        with self._lock:
            assumed = self._state.assumed.get(uid)
            return assumed.node if assumed is not None else ""

    def ask(self, uid: str, of: Member) -> None:
        """kube-scheduler asks about a pod of a group: nothing is held of it any more, and nothing of the
        others if a new try of all begins with it."""
        with self._lock:
            now = self._clock()
            if self._state.groups.is_idle(of, now):
                self._state.forget_group(of.group, now)
            has_place = self._state.hold_of(uid) is not None
            if self._state.groups.asked(uid, of, has_place, now):
                self._state.forget_group(of.group)
            elif has_place:
                self._state.forget(uid)

    def hold(self, pod: Pod, name: str, of: Member) -> bool:
        """Holds a place on that node for a pod of a group; False if the node has none. Nothing is held for a
        pod that is being bound, is bound, or is gone."""
        with self._lock:
            known, assumed = self._state.pods.get(pod.uid), self._state.assumed.get(pod.uid)
            if (known is not None and known.node) or pod.uid in self._state.gone:
                return True
            if assumed is not None and assumed.hold is None:
                return True
            if known is not None and not of.failure:
                of = of.replace(failure=known.failure)  # the watch may be ahead of kube-scheduler's
            self._state.forget(pod.uid)
            return self._state.take(pod, name, self._clock() + HOLD_S, of) is not None

    def has_no_place(self, of: Member) -> None:
        """Notes that kube-scheduler has found no node for that member."""
        with self._lock:
            self._state.groups.fails(of.group)

    def let_go(self) -> None:
        """Nothing is held any more."""
        with self._lock:
            for uid in [uid for uid, each in self._state.assumed.items() if each.hold is not None]:
                self._state.forget(uid)

    def held_for_groups(self, names: Iterable[str], shape: PodShape, most: int) -> set[str]:
        """The nodes on which only places held for groups keep the pod from fitting; looks at `most` nodes at
        most."""
        with self._lock:
            held = {uid: each.node for uid, each in self._state.assumed.items() if each.hold is not None}
            return self._state.fits_without(held, names, shape, most)

    def to_give_away(
        self, names: Iterable[str], shape: PodShape, of: Member | None, most: int
    ) -> float | None:
        """Seconds since the last question about, or bind of, a group whose held places would make room for
        this pod; None: they would not. The group of `of` is left out."""
        with self._lock:
            held = self._state.preemptible(of)
            if not held or not self._state.fits_without(held, names, shape, most):
                return None
            groups = {hold.group for hold in map(self._state.hold_of, held) if hold is not None}
            return max(self._clock() - self._state.groups.last_asked(groups), 0.0)

    def give_away(self, of: Member | None) -> None:
        """Gives away the held places that `to_give_away` counts, unless their group has bound since."""
        with self._lock:
            for uid in self._state.preemptible(of):
                self._state.forget(uid)

    def assume(self, pod: Pod, name: str, until: float) -> Assumed | Decided | None:
        """Takes the pod's place on that node's devices; None if it has none there. Idempotent: for a pod that
        is assumed there already, the same share."""
        with self._lock:
            # The watch may have reported since the caller looked.
            now = self._state.pods.get(pod.uid)
            if now is not None and now.node:
                return Decided(now.node)
            if pod.uid in self._state.gone:
                return Decided("")
            assumed = self._state.assumed.get(pod.uid)
            if assumed is not None and assumed.node == name and assumed.hold is None:
                return assumed
            hold = self._state.hold_of(pod.uid)
            if hold is not None and assumed is not None and assumed.node != name:
                # kube-scheduler binds on another node than the one of its last question: the group's held
                # places are out of date, and might be in the way.
                self._state.forget_group(hold.group)
            if name in self._state.nodes and not self._state.nodes[name].devices.why_not:
                self._state.forget(pod.uid)
            taken = self._state.take(pod, name, until, None)
            if hold is not None and taken is not None:
                self._state.groups.binds(hold.group, pod.uid, self._clock())
            return taken

    def confirm(self, uid: str) -> None:
        """The API has bound it: it counts until the watch reports it."""
        with self._lock:
            assumed = self._state.assumed.get(uid)
            if assumed is not None:
                self._state.assumed[uid] = assumed.replace(until=None)

    def forget(self, uid: str) -> None:
        """It was not bound, and is not going to be."""
        with self._lock:
            self._state.forget(uid)
            self._state.groups.is_not_bound(uid)

    def expire(self) -> list[Assumed]:
        """Forgets pods that have been assumed for too long, and returns them."""
        with self._lock:
            return self._state.expire()

    def counts(self) -> dict[str, int]:
        """For metrics: nodes by whether they serve, pods by the state of their assignments, bytes of their
        devices."""
        with self._lock:
            return self._state.counts()

    def _verified(self, uid: str, node: str, text: str | None) -> Held | None:
        """The content of the pod's assignment, if it is one of ours for that pod on that node; otherwise
        None."""
        if text is None:
            return None
        try:
            found = assignment.read(text, self._keys())
        except assignment.AssignmentError:
            return None
        return accounting.held_by(found) if (found.uid, found.node) == (uid, node) else None
