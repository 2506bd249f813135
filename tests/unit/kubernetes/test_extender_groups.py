"""Pods of a group: the place of each is held from filter on, and let go by all that can end it."""

from __future__ import annotations

from typing import Any

import pytest

from support.kubernetes_objects import GIB, Json, device, node, pod
from support.scheduling_api import ApiServer
from unit.kubernetes.replica import ControlPlane, Door, assigned, until
from unit.kubernetes.test_extender_cluster import Clock, bound, cluster, free
from unit.kubernetes.test_extender_verbs import NoBinder
from xpu_runtime.kubernetes.extender import in_flight
from xpu_runtime.kubernetes.extender.groups import AGAIN_S, HOLD_S, VAIN_S
from xpu_runtime.kubernetes.extender.groups import member as member_of
from xpu_runtime.kubernetes.extender.in_flight import InFlight
from xpu_runtime.kubernetes.extender.objects import Assumed
from xpu_runtime.kubernetes.extender.verbs import Verbs
from xpu_runtime.kubernetes.resources import Resources

HELD = "it would fit without the places that are held for pods of groups not bound yet"


def member(name: str, group: str = "train", **amounts: Any) -> Json:
    """A pod that Coscheduling counts to that group."""
    made = pod(name, **amounts)
    made["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": group}
    return made


def members(count: int, **amounts: Any) -> list[Json]:
    return [member(f"p{number}", **amounts) for number in range(count)]


def told(asking: Json, message: str, reason: str = "Unschedulable") -> Json:
    """The pod with kube-scheduler's word that it is not to be bound."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {**asking, "status": {"phase": "Pending", "conditions": [condition]}}


def given(api: ApiServer, *pods: Json) -> list[int]:
    """GiB of each device that these have by their assignments; those that are not bound have none."""
    found: dict[str, int] = {}
    for each in pods:
        name = each["metadata"]["name"]
        if "nodeName" in api.get("pods", name)["spec"]:
            (share,) = assigned(api, name).containers["main"]
            found[share.device_uuid] = found.get(share.device_uuid, 0) + (share.memory_bytes or 0) // GIB
    return sorted(found.values())


def metric(one: Door, state: str) -> int:
    text = one.status("/metrics")[1]
    (line,) = [line for line in text.splitlines() if line.startswith(f'xpu_extender_pods{{state="{state}"}}')]
    return int(float(line.rsplit(" ", 1)[1]))


class Asking:
    """The verbs on a cluster in memory, with the test's own clock."""

    def __init__(self, *nodes: Json) -> None:
        self.clock = Clock()
        self.of = cluster(*nodes, clock=self.clock)
        self.leads = True
        self.verbs = Verbs(self.of, Resources(), NoBinder(), InFlight(), lambda: self.leads)

    def fits(self, asking: Json, *names: str) -> list[str]:
        found: list[str] = self.verbs.filter({"Pod": asking, "NodeNames": list(names or ("n1",))})[
            "NodeNames"
        ]
        return found

    def why(self, asking: Json, *names: str) -> dict[str, str]:
        found = self.verbs.filter({"Pod": asking, "NodeNames": list(names or ("n1",))})
        assert found["NodeNames"] == []
        reasons: dict[str, str] = found["FailedNodes"]
        return reasons

    def bind(self, asking: Json, to: str = "n1") -> bool:
        made = self.of.pod(asking)
        assert made is not None
        return isinstance(self.of.assume(made, to, self.clock.now + 60), Assumed)

    def held(self) -> int:
        return self.of.counts()["held"]

    def after(self, seconds: float) -> int:
        """How many places are held so many seconds later."""
        self.clock.now += seconds
        self.of.expire()
        return self.held()


KINDS: dict[str, Json] = {
    "kube-scheduler of 1.36": {"spec": {"schedulingGroup": {"podGroupName": "train"}}},
    "kube-scheduler of 1.35": {"spec": {"workloadRef": {"name": "train", "podGroup": "workers"}}},
    "Coscheduling": {"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "train"}}},
    "Volcano's annotation": {"metadata": {"annotations": {"scheduling.k8s.io/group-name": "train"}}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_of_three_members_on_two_cards_the_third_is_refused_before_any_is_bound(
    kind: str, api: ControlPlane
) -> None:
    pods = [pod(f"p{number}", mem=10) for number in range(3)]
    for each in pods:
        for part, fields in KINDS[kind].items():
            each[part].update(fields)
    api.create(node("n1", 2), *pods)
    one = api.replica()
    assert [one.fits(each) for each in pods] == [["n1"], ["n1"], []]
    assert metric(one, "held") == 2
    assert [one.bind(each) for each in pods[:2]] == ["", ""]
    assert metric(one, "held") == 0
    assert given(api, *pods) == [10, 10]


def test_groups_of_different_kinds_and_namespaces_are_told_apart() -> None:
    def group(made: Json) -> str:
        found = member_of(made)
        return found.group if found is not None else ""

    of: Json = {"name": "train", "podGroup": "workers", "podGroupReplicaKey": "1"}
    made = {"metadata": {"name": "p", "namespace": "ml"}, "spec": {"workloadRef": of}}
    assert group(made) == "ml/train/workers/1"
    assert group(member("p")) == "default/train"
    assert group(pod("p")) == ""
    assert group({"metadata": {"name": "p"}, "spec": {"schedulingGroup": {}}}) == ""


def test_places_of_a_group_go_to_no_other_pod_until_the_group_is_bound(api: ControlPlane) -> None:
    pods, other = members(4, mem=8), pod("other", mem=8)
    api.create(node("n1", 2), *pods, other)
    one = api.replica()
    assert [one.fits(each) for each in pods] == [["n1"]] * 4
    # Coscheduling has the members wait, and other pods are asked about and bound meanwhile.
    found = one.ask("filter", {"Pod": other, "NodeNames": ["n1"]})
    assert found["NodeNames"] == []
    assert found["FailedNodes"]["n1"] == f"node n1: GPUs 0, 1 each 0 GiB free, 8 GiB asked; {HELD}"
    assert HELD in one.bind(other)
    assert [one.bind(each) for each in reversed(pods)] == [""] * 4
    assert given(api, *pods, other) == [16, 16]
    assert HELD not in one.ask("filter", {"Pod": other, "NodeNames": ["n1"]})["FailedNodes"]["n1"]


def test_a_member_is_answered_the_one_node_that_scores_best(api: ControlPlane) -> None:
    pods, names = members(3, mem=8), ["n1", "n2", "n3"]
    api.create(node("n1"), node("n2", [device("n2", 0, 8 * GIB)]), node("n3"), *pods)
    one = api.replica()
    # The smallest is filled first; then both members share one.
    assert [one.fits(each, *names) for each in pods] == [["n2"], ["n1"], ["n1"]]
    # Nodes that are sent whole are answered so.
    nodes = {"items": [{"metadata": {"name": name}} for name in names]}
    found = one.ask("filter", {"Pod": pods[0], "Nodes": nodes})
    assert [each["metadata"]["name"] for each in found["Nodes"]["items"]] == ["n2"]


def test_a_thousand_members_do_not_wait_for_each_other(
    api: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.create(*(node(f"n{number}", 8) for number in range(125)))
    names = [f"n{number}" for number in range(125)]
    monkeypatch.setattr(in_flight, "MOST_S", 600.0)
    one = api.replica()
    pods = members(1001, mem=16)
    found = [one.fits(each, *names) for each in pods[:500]]
    # kube-scheduler does not ask for the score of the only node; such a question delays nobody.
    assert one.ask("prioritize", {"Pod": pods[499], "NodeNames": found[499]})[0]["Score"] == 10
    found += [one.fits(each, *names) for each in pods[500:]]
    assert {len(each) for each in found[:1000]} == {1}
    assert found[1000] == []


def test_a_pod_of_a_group_that_asks_for_nothing_of_ours_is_left_alone() -> None:
    asking = Asking(node("n1"))
    assert asking.fits(member("p"), "n1", "n2", "bare") == ["n1", "n2", "bare"]
    assert asking.held() == 0


def test_a_member_that_is_asked_about_again_and_again_has_one_place() -> None:
    asking, one = Asking(node("n1"), node("n2")), member("p", mem=16)
    for _ in range(3):
        assert asking.fits(one, "n1", "n2") == ["n1"]
    assert asking.fits(one, "n2") == ["n2"]
    assert (asking.held(), free(asking.of), free(asking.of, "n2")) == (1, [16], [0])
    assert asking.why(one, "n3")
    assert asking.held() == 0


def test_the_nominated_node_comes_first_where_it_has_a_place() -> None:
    asking, one = Asking(node("n1"), node("n2"), node("n3")), member("p", mem=16)
    one["status"]["nominatedNodeName"] = "n3"
    assert asking.fits(one, "n1", "n2", "n3") == ["n3"]
    assert asking.fits(member("q", "other", mem=16), "n3") == []
    assert asking.fits(member("q", "other", mem=16), "n1", "n2") == ["n1"]
    one["status"]["nominatedNodeName"] = "n2"
    assert asking.fits(one, "n1", "n2", "n3") == ["n2"]
    one["status"]["nominatedNodeName"] = "n1"
    assert asking.fits(one, "n1", "n2", "n3") == ["n2"]


def test_the_tries_of_a_preemption_hold_nothing() -> None:
    asking, one = Asking(node("n1")), member("p", mem=16)
    there = pod("there", mem=16)
    asking.of.set_pod(bound(asking.of, there))
    one["spec"]["priority"] = 10
    found = asking.verbs.preempt({"Pod": one, "NodeNameToMetaVictims": {"n1": {"Pods": []}}})
    assert found["NodeNameToMetaVictims"]["n1"]["Pods"] == [{"UID": there["metadata"]["uid"]}]
    assert asking.held() == 0


def test_a_place_is_let_go_with_the_pod() -> None:
    asking, one, other = Asking(node("n1", 2)), member("p", mem=16), member("q", mem=16)
    assert asking.fits(one) == asking.fits(other) == ["n1"]
    asking.of.set_pod(one)
    asking.of.remove_pod(one["metadata"]["uid"])
    assert (asking.held(), free(asking.of)) == (1, [16, 0])
    # A question that was on its way holds nothing for it.
    assert asking.fits(one) == ["n1"]
    assert asking.held() == 1
    # A pod that is being deleted is not bound any more, even if something delays its end.
    other["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    asking.of.set_pod(other)
    assert asking.held() == 0


def test_a_place_is_held_for_a_moment_more_when_kube_scheduler_says_that_the_pod_has_failed() -> None:
    asking, one = Asking(node("n1")), member("p", mem=16)
    assert asking.fits(one) == ["n1"]
    asking.of.set_pod(one)
    asking.of.set_pod(told(one, "waits", reason="SchedulingGated"))
    asking.of.expire()
    assert asking.after(1) == 1
    # That may be the failure before this question: Coscheduling tries it again within a millisecond.
    asking.of.set_pod(told(one, "pod group is unschedulable"))
    assert asking.after(AGAIN_S - 2) == 1
    assert asking.after(1) == 0
    assert free(asking.of) == [16]


def test_a_word_of_a_failure_that_comes_after_the_next_question_ends_no_place() -> None:
    asking = Asking(node("n1", 2))
    pods = members(3, mem=10)
    for _ in range(2):
        assert [asking.fits(each) for each in pods] == [["n1"], ["n1"], []]
    for each in pods:
        asking.of.set_pod(told(each, "optimistic rejection in PostFilter"))
    assert asking.fits(pods[2]) == []
    assert asking.held() == 2


def test_a_place_is_held_for_longer_than_kube_scheduler_has_members_wait_and_not_for_ever() -> None:
    asking, one = Asking(node("n1")), member("p", mem=16)
    assert asking.fits(one) == ["n1"]
    assert asking.after(300) == 1
    assert asking.after(HOLD_S - 300) == 0
    assert free(asking.of) == [16]


def test_of_a_group_that_has_failed_before_places_are_held_while_it_is_asked_about() -> None:
    asking = Asking(node("n1", 4))
    pods = [told(each, "pod group is unschedulable") for each in members(4, mem=16)]
    for each in pods:
        assert asking.fits(each) == ["n1"]
        asking.after(AGAIN_S - 1)
    assert asking.held() == 4
    assert asking.fits(pod("other", mem=16)) == []
    assert asking.bind(pods[0])  # binds are on their way
    assert asking.after(AGAIN_S - 1) == 3
    assert asking.after(1) == 0
    assert free(asking.of) == [0, 16, 16, 16]


def test_a_failure_that_the_watch_reports_counts_before_kube_scheduler_knows_it() -> None:
    asking, one = Asking(node("n1")), member("p", mem=16)
    asking.of.set_pod(told(one, "pod group is unschedulable"))
    assert asking.fits(one) == ["n1"]
    asking.of.set_pod(told(one, "pod group is unschedulable"))
    assert asking.held() == 1
    assert asking.after(AGAIN_S) == 0


def own(name: str, **amounts: Any) -> Json:
    """A pod of a group of kube-scheduler's own, which asks about all members at once."""
    made = pod(name, **amounts)
    made["spec"]["schedulingGroup"] = {"podGroupName": "train"}
    return made


def test_a_group_that_is_asked_about_at_once_and_never_runs_keeps_its_places_from_nobody() -> None:
    asking = Asking(node("n1", 2))
    pods = [own(f"p{number}", mem=16) for number in range(3)]
    assert [asking.fits(each) for each in pods] == [["n1"], ["n1"], []]
    assert asking.fits(pod("other", mem=16)) == []
    for each in pods:
        asking.of.set_pod(told(each, "pod group is unschedulable"))
    for _ in range(20):  # kube-scheduler 1.36 tries it again at once
        assert [asking.fits(each) for each in pods] == [["n1"], ["n1"], []]
    assert HELD not in asking.why(pod("large", mem=17))["n1"]
    assert asking.held() == 2
    assert asking.fits(pod("other", mem=16)) == ["n1"]
    assert asking.held() == 0
    # Where the third lacks what is not asked for here, too; for a member of another group, too.
    assert [asking.fits(each) for each in pods[:2]] == [["n1"], ["n1"]]
    assert asking.fits(member("one", "other", mem=16)) == ["n1"]
    assert asking.fits(pods[0]) == ["n1"]
    assert asking.after(AGAIN_S - 1) == 2
    assert asking.after(1) == 1


def test_a_group_of_coscheduling_that_never_runs_keeps_its_places_from_others_for_a_moment() -> None:
    asking, other = Asking(node("n1", 2)), pod("other", mem=16)
    pods = [told(each, "optimistic rejection in PostFilter") for each in members(3, mem=16)]
    for _ in range(3):
        assert [asking.fits(each) for each in pods] == [["n1"], ["n1"], []]
        assert asking.fits(other) == []
        asking.clock.now += VAIN_S
        assert asking.fits(other) == ["n1"]
        assert asking.after(0) == 0
    # As where the third lacks what is not asked for here.
    asking = Asking(node("n1", 2))
    assert [asking.fits(each) for each in pods[:2]] == [["n1"], ["n1"]]
    assert asking.after(VAIN_S) == 2
    assert [asking.fits(each) for each in pods[:2]] == [["n1"], ["n1"]]
    assert asking.after(VAIN_S) == 0
    # A bind shows that the group runs.
    assert [asking.fits(each) for each in pods[:2]] == [["n1"], ["n1"]]
    assert asking.bind(pods[0])
    assert asking.after(VAIN_S) == 1


def test_a_list_without_a_pod_ends_its_place_in_time() -> None:
    asking, one = Asking(node("n1")), member("p", mem=16)
    assert asking.fits(one) == ["n1"]
    asking.of.keep_pods((), 60)  # the pod may be newer than the list
    assert asking.after(59) == 1
    asking.of.keep_pods((), 119)
    assert asking.after(1) == 0


def test_a_group_that_is_not_bound_in_time_is_told_in_the_log(
    api: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpu_runtime.kubernetes.extender.cluster.HOLD_S", 0.5)
    pods = members(2, mem=10)
    api.create(node("n1", 2), *pods)
    one = api.replica()
    assert [one.fits(each) for each in pods] == [["n1"]] * 2
    until(lambda: metric(one, "held") == 0, "nothing is held any more")
    said = "group default/train: 2 held places are free again, because no bind came"
    until(lambda: said in one.said, "it is told")
