"""The assignment that counts for a pod, and the fallback for an invalid one."""

from __future__ import annotations

import pytest

from support.kubernetes_objects import GIB, Json, container, device, node, pod
from unit.kubernetes.test_extender_cluster import KEY, Clock, bound, cluster, free, tell, with_node
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.resources import Resources
from xpu_runtime.request.assignment import ANNOTATION, Assignment, Share, sign

FORGERIES = ["", "v1.k.e30.AAAA", "nonsense", None]


@pytest.mark.parametrize("text", FORGERIES)
def test_a_pod_counts_where_it_was_seen_whatever_its_author_writes(text: str | None) -> None:
    of = cluster(node("n1", 2))
    told = bound(of, pod("p", mem=10))
    of.set_pod(told)
    of.set_pod(with_node(told, "n1", text))
    assert free(of) == [6, 16]
    assert of.counts()["bound"] == 1


@pytest.mark.parametrize("text", FORGERIES)
def test_of_a_pod_whose_assignment_proves_nothing_its_limits_count_no_more_and_no_less(
    text: str | None,
) -> None:
    of = cluster(node("n1", 2))
    of.set_pod(with_node(pod("p", mem=10, cores=40), "n1", text))
    assert sorted(free(of)) == [6, 16]
    assert sorted(of.summaries(["n1"])[0].cores) == [60, 100]
    assert of.counts()["unverified"] == 1


def test_such_a_pod_counts_on_a_device_that_can_hold_its_request() -> None:
    said = [device("n1", 0, cores_strength="none"), device("n1", 1, cores_strength="soft")]
    of = cluster(node("n1", said))
    of.set_pod(pod("p", mem=10, cores=40, bound="n1"))
    assert free(of) == [16, 6]


@pytest.mark.parametrize(
    "greedy",
    [
        pod("p", mem=5, annotations={"yoyoworks.com/xpu-count": "5"}, bound="n1"),
        pod("p", whole=5, bound="n1"),
        pod("p", mem=17, bound="n1"),
        pod("p", container("a", mem=1), container("b", mem=17), bound="n1"),
    ],
)
def test_such_a_pod_that_can_be_on_no_device_of_its_node_holds_nothing(greedy: Json) -> None:
    of = cluster(node("n1", 4))
    of.set_pod(greedy)
    assert free(of) == [16, 16, 16, 16]


def test_such_a_pod_without_a_place_holds_its_request_and_no_whole_devices() -> None:
    of = cluster(node("n1", 4))
    for name in ("a", "b"):
        of.set_pod(bound(of, pod(name, mem=14)))
    asking = pod("p", mem=15, cores=60, annotations={"yoyoworks.com/xpu-count": "3"}, bound="n1")
    of.set_pod(asking)
    assert sorted(free(of)) == [0, 2, 11, 11]
    assert sorted(of.summaries(["n1"])[0].cores) == [80, 80, 80, 100]
    of.remove_pod(asking["metadata"]["uid"])
    of.set_pod(pod("q", container("c", mem=9), container("d", mem=9), container("e", mem=9), bound="n1"))
    assert sorted(free(of)) == [0, 2, 2, 7]


def test_an_assignment_of_another_pod_or_another_node_proves_nothing() -> None:
    of = cluster(node("n1"), node("n2"))
    large = bound(of, pod("large", mem=10))
    of.set_pod(large)
    text = large["metadata"]["annotations"][ANNOTATION]
    small = pod("small", mem=1)
    of.set_pod(with_node(small, "n2", text))
    assert free(of, "n2") == [15]
    of.set_pod(with_node(large, "n2", text))
    assert free(of, "n1") == [16]
    assert free(of, "n2") == [5]


def test_a_node_reports_its_reservation_for_a_pod_without_a_valid_annotation() -> None:
    asking, gone = pod("p", mem=10), "11111111-0000-0000-0000-000000000000"
    uuids = [device("n1", index)["uuid"] for index in range(3)]
    reserved = {asking["metadata"]["uid"]: [[uuids[1], 10 * GIB, 20]], gone: [[uuids[2], None, None]]}
    of = cluster(node("n1", 3, reserved=reserved))
    of.set_pod(with_node(asking, "n1", "forged"))
    assert free(of) == [16, 6, 0]
    assert of.summaries(["n1"])[0].cores[1] == 80


def test_a_key_that_is_known_later_verifies_earlier_assignments() -> None:
    keys: dict[str, bytes] = {}
    of = Cluster(Resources(), lambda: keys, "binpack", Clock())
    tell(of, node("n1", 2))
    asking = pod("p", mem=3)
    share = Share(device("n1", 1)["uuid"], 3 * GIB, None)
    given = Assignment(asking["metadata"]["uid"], "n1", 1.0, {"main": (share,)})
    told = with_node(asking, "n1", sign(given, "k", KEY))
    of.set_pod(told)
    assert of.counts()["unverified"] == 1
    keys["k"] = KEY
    of.set_pod(told)
    assert free(of) == [16, 13]
