"""The free part of a cluster, by nodes' annotations and pods' requests, as in `xpu kubernetes status`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support import kubernetes_objects as objects
from support.kubernetes_objects import GIB, Json, container, device
from support.kubernetes_objects import pod as asking
from xpu_runtime.cli.kubernetes.status import fits
from xpu_runtime.errors import XpuError
from xpu_runtime.kubernetes import node_annotation, report
from xpu_runtime.kubernetes.extender import accounting
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.resources import Resources
from xpu_runtime.request.assignment import Assignment, Share, sign

KEY = bytes(range(32))


def node(name: str = "n1", *rows: Json, **more: Any) -> Json:
    """A node with a card of 15 GiB for each of `rows`, which has its differences; with two without rows."""
    cards = [device(name, at, 15 * GIB, uuid=f"GPU-{at}", **row) for at, row in enumerate(rows or ({}, {}))]
    return objects.node(name, cards, **more)


def pod(uid: str = "u1", on: str = "n1", **containers: tuple[Share, ...]) -> Assignment:
    """A pod's assignment."""
    groups: dict[str, dict[str, tuple[Share, ...]]] = {"containers": {}, "init": {}, "sidecars": {}}
    for name, shares in containers.items():
        kind, _, _ = name.partition("_")
        groups[kind if kind in groups else "containers"][name] = shares
    return Assignment(uid, on, 1.0, **groups)


def counted(pods: list[Assignment], *nodes: Json) -> list[report.Node]:
    """The report of nodes that say what these pods have reserved there, as the API knows them."""
    for data in nodes:
        annotations = data["metadata"]["annotations"]
        told = json.loads(annotations[node_annotation.ANNOTATION])
        here = [each for each in pods if each.node == data["metadata"]["name"]]
        told["reserved"] = {each.uid: accounting.held_by(each) for each in here}
        annotations[node_annotation.ANNOTATION] = json.dumps(told)
    return report.nodes(nodes, [report.Pod(each.uid, each.node) for each in pods])


def free(*found: report.Node) -> list[tuple[int, int]]:
    return [(card.free_memory // GIB, card.free_cores) for each in found for card in each.cards]


def test_slices_of_pods_and_others_are_subtracted() -> None:
    others = {"memory": 2 * GIB, "cores": 10, "whole": False}
    pods = [
        pod("u1", a=(Share("GPU-0", 4 * GIB, 30),), b=(Share("GPU-0", 1 * GIB, None),)),
        pod("u2", a=(Share("GPU-0", 3 * GIB, 20), Share("GPU-1", 3 * GIB, 20))),
        pod("u3", on="n2", a=(Share("GPU-0", 1 * GIB, 5),)),
    ]

    first, second = counted(pods, node("n2"), node("n1", {"others": others}, {}))

    assert (first.name, second.name) == ("n1", "n2")
    assert free(first) == [(5, 40), (12, 80)]
    assert [card.pods for card in first.cards] == [2, 1]
    assert free(second) == [(14, 95), (15, 100)]


def test_an_init_container_and_the_others_take_turns() -> None:
    pods = [
        pod(
            init_a=(Share("GPU-0", 6 * GIB, 10),),
            sidecars_b=(Share("GPU-0", 1 * GIB, 5),),
            main=(Share("GPU-0", 2 * GIB, 30),),
        )
    ]

    (found,) = counted(pods, node())

    assert free(found) == [(8, 65), (15, 100)]


def test_the_nodes_report_of_a_pod_counts_and_not_its_annotation() -> None:
    """The author's annotation cannot be verified here."""
    forged = asking("u1", mem=1, bound="n1")
    text = sign(pod(forged["metadata"]["uid"], main=(Share("GPU-1", 14 * GIB, 100),)), "k1", KEY)
    forged["metadata"]["annotations"] = {"yoyoworks.com/xpu-assignment": text}
    found = report.pod_of(forged)
    assert found is not None

    (told,) = report.nodes([node(reserved={found.uid: [["GPU-0", 8 * GIB, 50]]})], [found])
    (silent,) = report.nodes([node()], [found])

    assert (free(told), told.waiting) == ([(7, 50), (15, 100)], ())
    assert (free(silent), silent.waiting) == ([(14, 100), (15, 100)], (f"default/{found.name}",))


def test_a_pod_that_asks_for_nothing_has_no_assignment() -> None:
    data = {
        "metadata": {"uid": "u1", "annotations": {"yoyoworks.com/xpu-assignment": "v1.k.e30.m"}},
        "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"cpu": 1}}}, {}]},
    }
    assert report.pod_of(data) is None


def test_a_pod_that_its_node_refused_counts_as_the_extender_counts_it_and_is_named() -> None:
    there = node(aliases=["aliyun.com/gpu", "of a newer plugin"])
    refused = asking("a", mem=4, cores=30, bound="n1")
    alias = asking("b", container("main"), bound="n1")
    alias["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu-mem": "2"}}
    nonsense = asking("c", cores=30, bound="n1")
    counting = Cluster(Resources(aliases=("aliyun.com/gpu",)), dict, "binpack", lambda: 0.0)
    counting.set_node("n1", there["metadata"]["annotations"], {})
    for each in (refused, alias, nonsense):
        counting.set_pod(each)

    pods = [report.pod_of(each) for each in (refused, alias, nonsense)]
    (found,) = report.nodes([there], [each for each in pods if each is not None])

    (figures,) = counting.summaries(["n1"])
    assert free(found) == [(each // GIB, cores) for each, cores in zip(figures.memory, figures.cores)]
    assert sum(memory for memory, _ in free(found)) == 24
    assert found.waiting == ("default/a", "default/b")


def test_a_pod_with_names_that_its_node_does_not_offer_is_somebody_elses() -> None:
    theirs = asking("p", container("main"), bound="n1")
    theirs["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/mps-memory": "2"}}
    kept = report.pod_of(theirs)
    assert kept is not None

    (found,) = report.nodes([node()], [kept])

    assert (free(found), found.waiting) == ([(15, 100), (15, 100)], ())


def test_a_whole_card_leaves_nothing() -> None:
    pods = [pod(a=(Share("GPU-0", None, None),))]

    (found,) = counted(pods, node("n1", {}, {"others": {"whole": True}}))

    assert [card.free_memory for card in found.cards] == [0, 0]
    assert [fits(card) for card in found.cards] == ["-", "-"]


def test_the_largest_request_that_fits() -> None:
    ill = {"healthy": False, "why": "Xid 79"}
    pods = [pod(a=(Share("GPU-0", 4 * GIB + 1, 30),), b=(Share("GPU-1", 1 * GIB, 100),))]

    (found,) = counted(pods, node("n1", {}, {}, {}, ill))

    assert [fits(card) for card in found.cards[:3]] == ["10 GiB, 70%", "14 GiB without a cap", "whole"]
    assert (found.cards[3].why, found.cards[3].is_unused) == ("Xid 79", False)


def test_the_largest_request_is_in_units_of_its_node() -> None:
    pods = [
        pod(a=(Share("GPU-0", 14 * GIB + GIB // 2, 30),), b=(Share("GPU-1", 4 * GIB + GIB // 4 + 1, 30),)),
        pod("u2", a=(Share("GPU-2", 15 * GIB - 1, 30),)),
    ]

    (small,) = counted(pods, node("n1", {}, {}, {}, memory_unit=256 << 20))
    (large,) = counted(pods, node("n1", {}, {}, {}))

    assert [fits(card) for card in small.cards] == ["512 MiB, 70%", "10.5 GiB, 70%", "-"]
    assert [fits(card) for card in large.cards] == ["-", "10 GiB, 70%", "-"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"v": 2}', '{"v": 1, "devices": [{}]}', '{"v": 1, "devices": 3}']
)
def test_a_node_whose_annotation_cannot_be_read_is_shown_with_the_reason(text: str) -> None:
    found = report.nodes(
        [{"metadata": {"name": "n1", "annotations": {node_annotation.ANNOTATION: text}}}], []
    )

    assert [each.name for each in found] == ["n1"]
    assert "cannot be read" in found[0].problem


OFFERED = {"yoyoworks.com/xpu": "2", "yoyoworks.com/xpu-mem": "30"}
NOTHING = dict.fromkeys(OFFERED, "0")


def _ready(word: str) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": word}], "allocatable": OFFERED, "capacity": OFFERED}


@pytest.mark.parametrize(
    ("why", "more"),
    [
        ("", {"status": _ready("True")}),
        ("cordoned", {"spec": {"unschedulable": True}, "status": _ready("True")}),
        ("not ready", {"status": _ready("False")}),
        ("not ready", {"spec": {"unschedulable": True}, "status": _ready("Unknown")}),
        ("plugin gone", {"status": {"allocatable": NOTHING, "capacity": OFFERED}}),
        ("plugin gone", {"status": {"allocatable": {"cpu": "4"}, "capacity": {"cpu": "4"}}}),
    ],
)
def test_no_card_is_free_where_no_pod_comes_to_its_node(why: str, more: dict[str, Any]) -> None:
    (found,) = report.nodes([{**node(), **more}], [])

    assert (found.why, [card.why for card in found.cards]) == (why, [why, why])
    assert [card.is_unused for card in found.cards] == [not why, not why]


def test_a_plugin_that_has_nothing_to_offer_is_not_gone_and_a_cards_fault_comes_first() -> None:
    ill = {"healthy": False, "why": "Xid 79"}
    dockers = {"others": {"memory": 0, "cores": 0, "whole": True}}
    status = {"allocatable": NOTHING, "capacity": OFFERED}

    there, cordoned = report.nodes(
        [
            {**node("n1", ill, dockers), "status": status},
            {**node("n2", ill), "spec": {"unschedulable": True}},
        ],
        [],
    )

    assert [card.why for card in there.cards] == ["Xid 79", ""]
    assert [card.why for card in cordoned.cards] == ["Xid 79"]


def test_nodes_without_our_plugin_are_left_out_and_said_so_by_name() -> None:
    found = report.nodes([{"metadata": {"name": "n0"}}, node()], [])

    assert [each.name for each in found] == ["n1"]
    assert report.named(found, ["n1"]) == found
    with pytest.raises(XpuError, match="n0"):
        report.named(found, ["n0"])
