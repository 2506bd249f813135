"""Binds of a group, its new tries, and the end of the lead: which places end with them, and which stay."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.kubernetes_objects import node, pod
from unit.kubernetes.replica import ControlPlane, Process, until
from unit.kubernetes.test_extender_cluster import bound, free, with_node
from unit.kubernetes.test_extender_groups import HELD, Asking, given, member, members, metric, own, told
from xpu_runtime.kubernetes.extender import verbs as verbs_module
from xpu_runtime.kubernetes.extender.groups import VAIN_S
from xpu_runtime.request.assignment import sign


def test_a_bind_that_is_refused_is_no_bind_of_the_group() -> None:
    asking, other = Asking(node("n1", 2)), pod("other", mem=16)
    pods = [told(own(f"p{number}", mem=16), "pod group is unschedulable") for number in range(2)]
    assert [asking.fits(each) for each in pods] == [["n1"]] * 2
    assert asking.bind(pods[0])
    assert asking.why(other)  # as long as it may succeed
    asking.of.forget(pods[0]["metadata"]["uid"])
    assert asking.fits(pod("first", mem=16)) == ["n1"]  # by the place of the refused one
    asking.of.set_pod(bound(asking.of, pod("first", mem=16)))
    assert asking.fits(other) == ["n1"]
    # A node without a place.
    asking = Asking(node("n1", 2), node("n2", []))
    assert [asking.fits(each) for each in pods] == [["n1"]] * 2
    assert not asking.bind(pods[0], "n2")
    assert asking.fits(other) == ["n1"]
    # With Coscheduling.
    asking = Asking(node("n1", 2))
    pods = [told(each, "optimistic rejection in PostFilter") for each in members(2, mem=16)]
    for refused in (True, False):
        assert [asking.fits(each) for each in pods] == [["n1"]] * 2
        assert asking.bind(pods[0])
        answered = asking.of.forget if refused else asking.of.confirm
        answered(pods[0]["metadata"]["uid"])
        assert asking.after(VAIN_S) == (0 if refused else 1)


def test_of_two_binds_one_that_succeeds_is_enough() -> None:
    asking, other = Asking(node("n1", 3)), pod("other", mem=16)
    pods = [told(own(f"p{number}", mem=16), "pod group is unschedulable") for number in range(3)]
    assert [asking.fits(each) for each in pods] == [["n1"]] * 3
    assert asking.bind(pods[0]) and asking.bind(pods[1])
    asking.of.confirm(pods[0]["metadata"]["uid"])
    asking.of.forget(pods[1]["metadata"]["uid"])
    assert asking.fits(other) == ["n1"]
    asking.of.set_pod(bound(asking.of, other))
    assert asking.why(pod("second", mem=16))
    assert asking.held() == 1


def test_a_pod_that_needs_a_held_place_waits_for_a_possible_bind(
    api: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs_module, "MOST_S", 1.0)
    other, pods = pod("other", mem=10), [told(own(f"p{number}", mem=10), "failed") for number in range(3)]
    api.create(node("n1", 2), other, *pods)
    one = api.replica()
    # Two are enough for the group, and the third has no place.
    assert [one.fits(each) for each in pods] == [["n1"], ["n1"], []]
    found: list[list[str]] = []
    waits = threading.Event()

    def sleep(seconds: float) -> None:
        waits.set()
        time.sleep(seconds)

    monkeypatch.setattr(verbs_module, "time", SimpleNamespace(sleep=sleep))
    asks = threading.Thread(target=lambda: found.append(one.fits(other)))
    asks.start()
    assert waits.wait(10)
    assert one.bind(pods[0]) == ""
    asks.join()
    assert found == [[]]
    assert one.bind(pods[1]) == ""


def test_a_new_try_of_a_group_ends_the_places_of_the_one_before() -> None:
    # kube-scheduler tries a group in several topologies.
    asking = Asking(node("n1", 2), node("n2", 2))
    pods = [own(f"p{number}", mem=16) for number in range(2)]
    assert [asking.fits(each, "n1") for each in pods] == [["n1"]] * 2
    assert asking.fits(pods[0], "n2") == ["n2"]
    assert (free(asking.of), free(asking.of, "n2")) == ([16, 16], [0, 16])


def test_no_member_is_in_the_way_of_another_that_is_asked_about_first() -> None:
    asking = Asking(node("n1"))
    large, small = own("large", mem=16), own("small", mem=4)
    there = pod("there", mem=8)
    asking.of.set_pod(bound(asking.of, there))
    assert [asking.fits(large), asking.fits(small)] == [[], ["n1"]]
    asking.of.remove_pod(there["metadata"]["uid"])
    assert [asking.fits(large), asking.fits(small)] == [["n1"], []]


def test_an_expired_place_hinders_no_member_even_before_a_look() -> None:
    asking = Asking(node("n1", 2))
    pods = [told(each, "optimistic rejection in PostFilter") for each in members(3, mem=16)]
    assert [asking.fits(each) for each in pods] == [["n1"], ["n1"], []]
    asking.clock.now += VAIN_S
    assert [asking.fits(each) for each in reversed(pods)] == [["n1"], ["n1"], []]


def test_a_question_about_the_nominated_node_and_then_about_all_is_one_try() -> None:
    asking = Asking(node("n1"), node("n2"))
    first, second = own("p", mem=16), own("q", mem=16)
    second["status"]["nominatedNodeName"] = "n1"
    assert asking.fits(first, "n1") == ["n1"]
    assert asking.fits(second, "n1") == []
    assert asking.fits(second, "n1", "n2") == ["n2"]
    assert asking.held() == 2


def test_a_bind_on_another_node_than_the_last_answer_ends_the_groups_places() -> None:
    # kube-scheduler tries a group in several topologies, and the last it tries need not be the one it takes.
    asking = Asking(node("n1", 2), node("n2", 2))
    pods, stranger = members(2, mem=16), member("stranger", "other", mem=16)
    assert [asking.fits(each, "n1") for each in pods] == [["n1"]] * 2
    assert [asking.fits(each, "n2") for each in pods] == [["n2"]] * 2
    assert asking.fits(stranger, "n1") == ["n1"]
    assert asking.bind(pods[0], "n1")
    assert (free(asking.of), free(asking.of, "n2"), asking.held()) == ([0, 0], [16, 16], 1)
    assert not asking.bind(pods[1], "n1")
    assert asking.bind(pods[1], "n2")


def test_a_bind_takes_no_place_that_another_has_got_from_elsewhere() -> None:
    # Another replica that led meanwhile has bound it.
    asking, pods = Asking(node("n1", 2)), members(2, mem=16)
    assert asking.fits(pods[0]) == ["n1"]
    elsewhere = pod("elsewhere", mem=16)
    (held,) = (each.assignment for each in asking.of._state.assumed.values())
    theirs = held.replace(uid=elsewhere["metadata"]["uid"])
    asking.of.set_pod(with_node(elsewhere, "n1", sign(theirs, "k", bytes(range(32)))))
    assert asking.bind(pods[0])
    assert free(asking.of) == [0, 0]
    assert not asking.bind(pods[1])


def test_a_pod_whose_bind_is_under_way_keeps_its_place_when_it_is_asked_about() -> None:
    asking, one = Asking(node("n1"), node("n2")), member("p", mem=16)
    assert asking.fits(one, "n2") == ["n2"]
    assert asking.bind(one, "n2")
    assert asking.fits(one, "n1", "n2") == ["n2"]
    assert asking.fits(one, "n1") == ["n1"]
    assert (asking.held(), free(asking.of), free(asking.of, "n2")) == (0, [16], [0])


def test_of_many_nodes_one_sentence_tells_that_places_are_held() -> None:
    names = [f"n{number}" for number in range(20)]
    asking = Asking(*(node(name) for name in names))
    pods = [member(f"p{number}", mem=10) for number in range(20)]
    assert len({asking.fits(each, *names)[0] for each in pods}) == 20
    reasons = asking.why(pod("other", mem=10), *names)
    assert len(set(reasons.values())) == 1
    assert HELD in reasons["n0"]
    # More than any node has, or than the cards of one node: held places are not the reason.
    assert HELD not in asking.why(pod("large", mem=17), *names)["n0"]
    assert HELD not in asking.why(pod("two", whole=2), *names)["n0"]


def test_a_replica_that_does_not_lead_holds_nothing() -> None:
    asking, one = Asking(node("n1"), node("n2")), member("p", mem=16)
    asking.leads = False
    assert asking.fits(one, "n1", "n2") == ["n1", "n2"]
    assert asking.held() == 0


def test_held_places_end_with_the_lead(api: ControlPlane) -> None:
    pods = members(2, mem=10)
    api.create(node("n1", 2), *pods)
    cut_off = threading.Event()
    first = api.leader("first", cut_off)
    assert [first.fits(each) for each in pods] == [["n1"]] * 2
    assert metric(first, "held") == 2
    cut_off.set()
    second = api.candidate("second")
    until(lambda: second.election.is_leading, "the second leads")
    until(lambda: metric(first, "held") == 0, "the first has let go")
    # The binds come to the second, which has not been asked about them.
    assert [second.bind(each) for each in pods] == ["", ""]
    assert given(api, *pods) == [10, 10]


def test_an_extender_that_is_killed_between_filter_and_bind_gives_nothing_twice_and_holds_nothing(
    api: ControlPlane, tmp_path: Path
) -> None:
    pods, other = members(3, mem=10), pod("other", mem=10)
    api.create(node("n1", 3), *pods, other)
    one = Process(api, tmp_path)
    try:
        assert [one.fits(each) for each in pods] == [["n1"]] * 3
        assert one.fits(other) == []
        assert one.bind(pods[0]) == ""
        one.kill()
        one = Process(api, tmp_path)
        assert (metric(one, "held"), metric(one, "bound")) == (0, 1)
        # The held places are forgotten, so another pod may come before the group.
        assert one.fits(other) == ["n1"]
        assert one.bind(other) == ""
        assert [one.bind(each) for each in pods[1:]] == [
            "",
            "node n1: GPUs 0-2 each 6 GiB free, 10 GiB asked; the nearest request that fits now: "
            "yoyoworks.com/xpu-mem: 6",
        ]
        assert given(api, *pods, other) == [10, 10, 10]
        assert metric(one, "held") == 0
    finally:
        one.kill()
