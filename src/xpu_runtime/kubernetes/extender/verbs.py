"""kube-scheduler's questions to an extender: filter, prioritize, preempt and bind, as JSON values.

The types are those of k8s.io/kube-scheduler/extender/v1, which have no JSON names: Go writes the fields as
they are called (`NodeNames`), and reads them in any case, as is done here. kube-scheduler takes any status
but 200 for a failure without a reason; so every failure is answered with an Error, which it shows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii
from typing import Any

from xpu_runtime.errors import XpuError
from xpu_runtime.kubernetes.extender import groups, preemption
from xpu_runtime.kubernetes.extender.binding import NO_PLACE, Binder, NotBound
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.extender.in_flight import MOST_S, InFlight
from xpu_runtime.kubernetes.extender.reasons import Reasons
from xpu_runtime.kubernetes.extender.verdicts import FITS, FULL, NEVER
from xpu_runtime.kubernetes.resources import DemandError, Resources
from xpu_runtime.placement.demand import PodDemand

_HIGHEST = 10
#: Nodes on which places to give away are looked for.
_MOST_GIVEN = 256


class WrongRequest(XpuError):
    """The question is not in kube-scheduler's form."""


class Verbs:
    """Answers by the cluster's state."""

    def __init__(
        self,
        cluster: Cluster,
        resources: Resources,
        binder: Binder,
        in_flight: InFlight,
        may_hold: Callable[[], bool],
    ) -> None:
        """`may_hold`: whether this replica leads at the moment, so that places that it holds for groups
        count."""
        self._cluster = cluster
        self._resources = resources
        self._binder = binder
        self._in_flight = in_flight
        self._may_hold = may_hold

    def filter(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """ExtenderArgs to ExtenderFilterResult."""
        pod, names, nodes = _pod_and_nodes(args)
        try:
            demand = self._resources.new_pod(pod)
        except DemandError as error:
            why = dict.fromkeys(names, str(error))
            return _filtered([], nodes, why, why)
        if demand.is_empty:
            return _filtered(names, nodes, {}, {})
        uid = _uid_of(pod)
        self._in_flight.wait(uid)
        member = groups.member(pod) if uid and self._may_hold() else None
        if member is not None:
            self._cluster.ask(uid, member)
        verdicts = self._judge(pod, demand, names)
        if min(verdicts, default=FULL) >= FULL and self._gives_away(demand, names, verdicts, member):
            verdicts = self._judge(pod, demand, names)
        if member is not None:
            # No other question need wait for its bind: its place is held.
            held = self._hold(pod, member, names, verdicts)
            if held:
                return _filtered([held], nodes, {}, {})
        elif any(verdict < FULL for verdict in verdicts):
            self._in_flight.begin(uid)
        if all(verdict < FULL for verdict in verdicts):
            return _filtered(names, nodes, {}, {})
        fitting = [name for name, verdict in zip(names, verdicts) if verdict < FULL]
        full = [name for name, verdict in zip(names, verdicts) if verdict == FULL]
        never = [name for name, verdict in zip(names, verdicts) if verdict == NEVER]
        failed, impossible = Reasons(self._cluster, self._resources, pod, demand).of(full, never)
        # Where no pod is of a lower priority, ending pods changes nothing: kube-scheduler need not look.
        yielding = self._cluster.yielding(full, _priority(pod))
        impossible.update({name: why for name, why in failed.items() if name not in yielding})
        # Versions that know FailedAndUnresolvableNodes look there first; older ones show what is in
        # FailedNodes.
        return _filtered(fitting, nodes, {**failed, **impossible}, impossible)

    def prioritize(self, args: Mapping[str, Any]) -> list[dict[str, Any]]:
        """ExtenderArgs to HostPriorityList, with scores from 0 to 10."""
        pod, names, _ = _pod_and_nodes(args)
        try:
            demand = self._resources.of_pod(pod)
        except DemandError:
            demand = PodDemand()
        if demand.is_empty:
            return [{"Host": name, "Score": 0} for name in names]
        verdicts = self._judge(pod, demand, names)
        if not self._cluster.assumed_on(_uid_of(pod)):
            self._in_flight.begin(_uid_of(pod))
        return [
            {"Host": name, "Score": verdict - FITS if verdict < FULL else 0}
            for name, verdict in zip(names, verdicts)
        ]

    def preempt(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """ExtenderPreemptionArgs to ExtenderPreemptionResult: of each node that would do, the pods that must
        end."""
        pod = _field(args, "Pod")
        proposed = _field(args, "NodeNameToMetaVictims") or _field(args, "NodeNameToVictims")
        if not isinstance(pod, dict) or not isinstance(proposed, dict):
            raise WrongRequest("preempt takes Pod and NodeNameToMetaVictims or NodeNameToVictims")
        _, shape = self._cluster.shape(self._resources.of_pod(pod))
        found, budget = {}, preemption.SearchBudget()
        for name, theirs in proposed.items():
            chosen = [_uid_of_victim(each) for each in _field(theirs, "Pods") or ()]
            node_pods = None if budget.is_spent else self._cluster.node_pods(name, shape)
            if node_pods is None:
                continue
            ending = preemption.victims(node_pods, shape, _priority(pod), chosen, budget)
            # One without victims would have passed the filter; kube-scheduler refuses such an answer.
            if ending:
                violations = _field(theirs, "NumPDBViolations") or 0
                found[name] = {"Pods": [{"UID": uid} for uid in ending], "NumPDBViolations": violations}
        return {"NodeNameToMetaVictims": found}

    def bind(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """ExtenderBindingArgs to ExtenderBindingResult."""
        fields = ("PodNamespace", "PodName", "PodUID", "Node")
        namespace, name, uid, node = (_field(args, field) for field in fields)
        if not all(isinstance(each, str) for each in (namespace, name, uid or "", node)):
            raise WrongRequest(f"bind takes {', '.join(fields)}")
        try:
            self._binder.bind(namespace, name, uid or "", node)
        except NotBound as error:
            self._in_flight.end(uid or "")
            why = str(error)
            return {"Error": without_percent(self._no_place(uid or "", node) if why == NO_PLACE else why)}
        return {"Error": ""}

    def _judge(self, pod: Mapping[str, Any], demand: PodDemand, names: list[str]) -> list[int]:
        _, shape = self._cluster.shape(demand)
        verdicts = self._cluster.judge(shape, names)
        # A pod whose bind has begun, with an unknown outcome, keeps its place on that node.
        assumed = self._cluster.assumed_on(_uid_of(pod))
        if assumed and assumed in names:
            verdicts[names.index(assumed)] = FITS + _HIGHEST
        return verdicts

    def _gives_away(
        self, demand: PodDemand, names: list[str], verdicts: list[int], member: groups.Member | None
    ) -> bool:
        """Whether a place may have become free for a pod that has none: places held for a failed group are
        given away, if that helps and if no bind comes in the time that one may take."""
        full = [name for name, verdict in zip(names, verdicts) if verdict == FULL]
        _, shape = self._cluster.shape(demand)
        since = self._cluster.to_give_away(full, shape, member, _MOST_GIVEN)
        if since is None:
            return False
        time.sleep(max(MOST_S - since, 0.0))
        self._cluster.give_away(member)
        return True

    def _hold(
        self, pod: Mapping[str, Any], member: groups.Member, names: list[str], verdicts: list[int]
    ) -> str:
        """The node on which a place is held for the pod: that of a bind under way, or the nominated one, or
        one with the highest score; "": none has a place by `verdicts`."""
        made = self._cluster.pod(pod)
        assert made is not None  # its demand is well-formed, and not empty
        first = self._cluster.assumed_on(_uid_of(pod)) or member.nominated
        number = names.index(first) if first in names else _best(verdicts)
        while number is not None:
            if verdicts[number] < FULL and self._cluster.hold(made, names[number], member):
                return names[number]
            verdicts[number] = max(verdicts[number], FULL)  # since it was judged
            number = _best(verdicts)
        self._cluster.has_no_place(member)
        return ""

    def _no_place(self, uid: str, node: str) -> str:
        """The node's present state, for a refused bind."""
        pod = self._cluster.known_pod(uid)
        if pod is None:
            return f"node {node} has no place for the pod"
        failed, impossible = Reasons(self._cluster, self._resources, {}, pod.demand).of([node], [])
        return (failed or impossible)[node]


def _best(verdicts: list[int]) -> int | None:
    """The first of those with the highest score; None: none fits. The list may have ten thousand."""
    scores = range(FULL - 1, FITS - 1, -1)
    return next((verdicts.index(score) for score in scores if score in verdicts), None)


def encoded(answer: Any) -> bytes:
    """The JSON of a verb's answer. Ten thousand nodes may have one reason, which is encoded once."""
    maps = ("FailedNodes", "FailedAndUnresolvableNodes") if isinstance(answer, dict) else ()
    reasons = {name: answer[name] for name in maps if name in answer}
    rest = {name: answer[name] for name in answer if name not in reasons} if reasons else answer
    text = json.dumps(rest, separators=(",", ":"))
    if reasons:
        texts = {why: encode_basestring_ascii(why) for each in reasons.values() for why in set(each.values())}
        parts = []
        for name, each in reasons.items():
            members = [f"{encode_basestring_ascii(node)}:{texts[why]}" for node, why in each.items()]
            parts.append(f'"{name}":{{{",".join(members)}}}')
        text = f"{{{','.join(filter(None, [*parts, text[1:-1]]))}}}"
    return text.encode()


def without_percent(text: str) -> str:
    """kube-scheduler takes messages for formats of Go's fmt: 30% would be shown as 30%!(NOVERB)."""
    return text.replace("%", " percent")


def _pod_and_nodes(args: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str], Any]:
    """The pod, the names of the nodes, and the nodes themselves if they were sent (otherwise None)."""
    pod, names, nodes = (_field(args, field) for field in ("Pod", "NodeNames", "Nodes"))
    if not isinstance(pod, dict):
        raise WrongRequest("there is no Pod")
    if names is None and nodes is None:
        raise WrongRequest("there are neither NodeNames nor Nodes")
    if names is not None:
        if not isinstance(names, list):
            raise WrongRequest("NodeNames is not a list")
        return pod, names, None
    items = nodes.get("items") or []
    return pod, [node["metadata"]["name"] for node in items], items


def _field(args: Mapping[str, Any], name: str) -> Any:
    """A field by its name, in any case of letters, as Go reads it; None if it is missing."""
    if name in args:
        return args[name]
    lower = name.lower()
    return next((value for key, value in args.items() if key.lower() == lower), None)


def _uid_of(pod: Mapping[str, Any]) -> str:
    return str((pod.get("metadata") or {}).get("uid") or "")


def _priority(pod: Mapping[str, Any]) -> int:
    return int((pod.get("spec") or {}).get("priority") or 0)


def _uid_of_victim(victim: Mapping[str, Any]) -> str:
    """The UID of a MetaPod, or of a whole pod."""
    return str(_field(victim, "UID") or victim["metadata"]["uid"])


def _filtered(
    fitting: list[str], nodes: Any, failed: Mapping[str, str], impossible: Mapping[str, str]
) -> dict[str, Any]:
    words = {why: without_percent(why) for why in (*set(failed.values()), *set(impossible.values()))}
    found: dict[str, Any] = {
        "FailedNodes": {name: words[why] for name, why in failed.items()},
        "FailedAndUnresolvableNodes": {name: words[why] for name, why in impossible.items()},
        "Error": "",
    }
    if nodes is None:
        found["NodeNames"] = fitting
    else:
        kept = set(fitting)
        items = [node for node in nodes if node["metadata"]["name"] in kept]
        found["Nodes"] = {"metadata": {}, "items": items}
    return found
