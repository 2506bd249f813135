"""Pods of a group, which are bound together or not at all: the members, and how long each one's place is
held.

kube-scheduler asks about all members of a group before it binds the first, in its own pod groups and with the
plugin Coscheduling alike. Where a place counts from bind on, one place is answered to several members, and a
part of the group runs. So a member is answered one node, and its place there is held from then on.

Places are held only in the memory of the leading replica. In the API each would cost a write for each
question and a right to change pods, and would outlive a crash. A crash loses only a promise: a bind takes its
place anew, so no place is given twice, and none stays held.

The ends of a held place, and the function of Cluster (cluster.py) for each:

- the pod's bind: `assume`. One on another node than the place's ends the places of the whole group:
  kube-scheduler takes an earlier of its tries. Where the watch tells of a bind first: `set_pod`.
- the pod's next question: `ask`. Where a new try of a group begins with it that is asked about at once
  (`Groups.asked`), the places of all members end: an extender is not told which tries are trials (topologies,
  preemption for the whole group).
- the pod's end or deletion: `remove_pod`, `set_pod`; a while after a list lacks it: `keep_pods`.
- the end of the replica's lead: `let_go`.
- HOLD_S: `expire`.
- for a member that has failed, as far as is known, AGAIN_S after the last question about its group or the
  last bind, and with Coscheduling VAIN_S where tries of the group come to nothing: `expire`, and `ask` of any
  member, by `Groups.is_over`.
- for such a member, another pod that needs the place: `give_away`, by `Groups.is_preemptible`.

A failure alone ends no place. When kube-scheduler gives a member up, it says so by the pod's condition
PodScheduled. That may come after the member's next question already, and is not written a second time in the
same words.

kube-scheduler asks about all members of a group of its own without another pod in between (from 1.36 on,
schedule_one_podgroup.go), and binds them at once. So of such a group places are given away as soon as no bind
has come: 1.36 tries a group that cannot run thousands of times a second, and would keep its places from all
others. Knows no node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from xpu_runtime.value import Value

#: The label of Coscheduling (sigs.k8s.io/scheduler-plugins, apis/scheduling/v1alpha1), and the annotation of
#: kube-batch and Volcano (volcano.sh/apis, scheduling/v1beta1, KubeGroupNameAnnotationKey); another scheduler
#: may get the pods of these two.
_LABEL, _ANNOTATION = "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name"

#: Seconds that a place is held. kube-scheduler has a member wait for the others for 60 with Coscheduling
#: (permitWaitingTimeSeconds), for 300 with its own groups of 1.35 and 1.36 (permitTimeoutDuration).
HOLD_S = 330.0
#: Seconds after the last question about the group for which the place of a member is held that has failed
#: before: longer than kube-scheduler's backoff (podMaxBackoffSeconds, 10), after which it asks about the
#: next.
AGAIN_S = 15.0
#: Like AGAIN_S, for a group whose members come one by one, and whose tries fail.
VAIN_S = 0.5

#: Reasons of PodScheduled that kube-scheduler gives where it has tried a pod; a pod that waits for its gates
#: has another one.
_FAILED = ("Unschedulable", "SchedulerError")


class Member(Value):
    """A pod of a group, as it was asked about."""

    #: NAMESPACE/NAME of its group.
    group: str
    #: Whether kube-scheduler asks about all members without another pod in between, as from 1.36 on.
    is_at_once: bool
    #: kube-scheduler's failure with it, reported then or later; "": none.
    failure: str
    #: The node for which others may have been ended; "": none.
    nominated: str


def member(pod: Mapping[str, Any]) -> Member | None:
    """The pod as a member of its group; None: it is in none.

    `schedulingGroup` is kube-scheduler's own from 1.36 on, `workloadRef` that of 1.35 (KEP-4671).
    """
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    name = own = (spec.get("schedulingGroup") or {}).get("podGroupName")
    if not name and spec.get("workloadRef"):
        of = spec["workloadRef"]
        name = "/".join(str(of[key]) for key in ("name", "podGroup", "podGroupReplicaKey") if of.get(key))
    name = name or (metadata.get("labels") or {}).get(_LABEL)
    name = name or (metadata.get("annotations") or {}).get(_ANNOTATION)
    if not name:
        return None
    nominated = str((pod.get("status") or {}).get("nominatedNodeName") or "")
    return Member(f"{metadata.get('namespace') or 'default'}/{name}", bool(own), failure(pod), nominated)


def failure(pod: Mapping[str, Any]) -> str:
    """The reason and the words of kube-scheduler's last failure with the pod; "": it has reported none."""
    for each in (pod.get("status") or {}).get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            reason = each.get("reason")
            return f"{reason}: {each.get('message')}" if reason in _FAILED else ""
    return ""


class _Try:
    """kube-scheduler's present try of a group."""

    __slots__ = ("asked", "at", "bound", "is_vain", "last")

    def __init__(self) -> None:
        #: UIDs of the members that it has asked about, where it asks about all at once, and the last of any.
        self.asked: set[str] = set()
        self.last = ""
        #: Clock's seconds of the last question or bind.
        self.at = 0.0
        #: Whether a try came to nothing since a member was bound.
        self.is_vain = False
        #: UIDs of the members that are bound, or being bound, since it asked about one last.
        self.bound: set[str] = set()


class Groups:
    """The groups that are asked about, by their names."""

    def __init__(self) -> None:
        self._tries: dict[str, _Try] = {}

    def asked(self, uid: str, of: Member, has_place: bool, now: float) -> bool:
        """A question about a member, with a held place or without. Returns whether a new try of the whole
        group begins with it."""
        found = self._tries.setdefault(of.group, _Try())
        # The nominated node is asked for alone at first, then all.
        goes_on = uid == found.last and bool(of.nominated)
        is_new = of.is_at_once and uid in found.asked and not goes_on
        found.is_vain |= has_place
        if is_new:
            found.asked.clear()
        if of.is_at_once:
            found.asked.add(uid)
        found.last, found.at = uid, now
        found.bound.clear()
        return is_new

    def fails(self, group: str) -> None:
        """A member has no place, or its held place was not used."""
        if group in self._tries:
            self._tries[group].is_vain = True

    def binds(self, group: str, uid: str, now: float) -> None:
        """A member is being bound, and the others may be next: none waits for the API's answer, in which time
        their places must not go."""
        found = self._tries.setdefault(group, _Try())
        found.asked.clear()
        found.last, found.at, found.is_vain = "", now, False
        found.bound.add(uid)

    def is_not_bound(self, uid: str) -> None:
        """The bind of that pod, which may be no member, was refused."""
        for each in self._tries.values():
            if uid in each.bound:
                each.bound.remove(uid)
                each.is_vain = not each.bound

    def is_preemptible(self, of: Member, now: float) -> bool:
        """Whether another pod that needs the member's place gets it, as long as no bind comes."""
        found = self._tries.get(of.group)
        is_at_end = of.is_at_once and (found is None or not found.bound)
        return bool(of.failure) and (is_at_end or self.is_over(of, now))

    def is_over(self, of: Member, now: float) -> bool:
        """Whether that member's place has ended, apart from HOLD_S."""
        return bool(of.failure) and (of.group not in self._tries or self.is_idle(of, now))

    def is_idle(self, of: Member, now: float) -> bool:
        """Whether the group has been asked about, and not for as long as places of members are held that have
        failed."""
        found = self._tries.get(of.group)
        if found is None:
            return False
        return found.at + (VAIN_S if found.is_vain and not of.is_at_once else AGAIN_S) <= now

    def last_asked(self, groups: Collection[str]) -> float:
        """The time of the last question about one of them, or of the last bind."""
        return max((self._tries[name].at for name in groups if name in self._tries), default=0.0)

    def expire(self, now: float) -> None:
        """Forgets groups that have not been asked about for long."""
        for name in [name for name, each in self._tries.items() if each.at + HOLD_S <= now]:
            del self._tries[name]
