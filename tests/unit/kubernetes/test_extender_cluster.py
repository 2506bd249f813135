"""The pods that count on a node: by signed assignment, while they are being bound, by their annotations."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.kubernetes_objects import GIB, Json, container, device, node, pod
from xpu_runtime.kubernetes.extender import accounting
from xpu_runtime.kubernetes.extender import cluster as cluster_module
from xpu_runtime.kubernetes.extender import devices as devices_module
from xpu_runtime.kubernetes.extender import verdicts as verdicts_module
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.extender.objects import Assumed, Decided
from xpu_runtime.kubernetes.extender.verdicts import FITS, FULL, NEVER
from xpu_runtime.kubernetes.resources import Resources
from xpu_runtime.placement import pod as placement
from xpu_runtime.request.assignment import ANNOTATION, Assignment, Share, sign

KEY = bytes(range(32))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def cluster(*nodes: Json, clock: Clock | None = None, policy: str = "binpack") -> Cluster:
    found = Cluster(Resources(), lambda: {"k": KEY}, policy, clock or Clock())
    for each in nodes:
        tell(found, each)
    return found


def tell(of: Cluster, each: Json) -> None:
    """A watch's report of a node."""
    metadata = each["metadata"]
    of.set_node(metadata["name"], metadata["annotations"], metadata["labels"])


def free(of: Cluster, name: str = "n1") -> list[float]:
    """GiB free of each device."""
    return [each / GIB for each in of.summaries([name])[0].memory]


def verdict(of: Cluster, asking: Json, name: str = "n1") -> int:
    _, shape = of.shape(Resources().of_pod(asking))
    return of.judge(shape, [name])[0]


def assume(of: Cluster, asking: Json, name: str = "n1", until: float = 60.0) -> Assignment | None:
    wanted = of.pod(asking)
    assert wanted is not None
    assumed = of.assume(wanted, name, until)
    return assumed.assignment if isinstance(assumed, Assumed) else None


def bound(of: Cluster, asking: Json, name: str = "n1") -> Json:
    """The pod as the API has it once it was bound."""
    assigned = assume(of, asking, name)
    assert assigned is not None
    return with_node(asking, name, sign(assigned, "k", KEY))


def with_node(asking: Json, name: str, text: str | None) -> Json:
    annotations = {**asking["metadata"]["annotations"]}
    annotations.pop(ANNOTATION, None)
    if text is not None:
        annotations[ANNOTATION] = text
    metadata = {**asking["metadata"], "annotations": annotations}
    return {**asking, "metadata": metadata, "spec": {**asking["spec"], "nodeName": name}}


def test_a_pod_that_is_being_bound_counts_at_once_and_until_it_is_given_up() -> None:
    clock = Clock()
    of = cluster(node("n1"), clock=clock)
    asking = pod("p", mem=10)
    assert assume(of, asking) is not None
    assert free(of) == [6]
    assert verdict(of, pod("q", mem=7)) == FULL
    assert assume(of, pod("q", mem=7)) is None
    assert assume(of, asking) == assume(of, asking)
    of.forget(asking["metadata"]["uid"])
    assert free(of) == [16]
    assert assume(of, asking, until=60) is not None
    clock.now = 60
    assert [each.uid for each in of.expire()] == [asking["metadata"]["uid"]]
    assert free(of) == [16]


def test_a_pod_that_the_api_has_bound_counts_until_the_watch_tells_of_its_end() -> None:
    clock = Clock()
    of = cluster(node("n1"), clock=clock)
    asking = pod("p", mem=10)
    of.set_pod(asking)
    told = bound(of, asking)
    of.confirm(asking["metadata"]["uid"])
    clock.now = 1000
    of.set_pod(asking)  # an older event, of before it was bound
    assert of.expire() == []
    assert free(of) == [6]
    of.set_pod(told)
    assert free(of) == [6]
    assert of.counts()["assumed"] == 0
    of.remove_pod(asking["metadata"]["uid"])
    assert free(of) == [16]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_holds_nothing(phase: str) -> None:
    of = cluster(node("n1"))
    told = bound(of, pod("p", mem=10))
    of.set_pod(told)
    of.set_pod({**told, "status": {"phase": phase}})
    assert free(of) == [16]


def test_a_pod_counts_where_its_assignment_says_whichever_is_known_first_the_pod_or_its_node() -> None:
    asking = pod("p", mem=3)
    other = device("n1", 1)["uuid"]
    text = sign(
        Assignment(asking["metadata"]["uid"], "n1", 1.0, {"main": (Share(other, 3 * GIB, None),)}), "k", KEY
    )
    of = cluster()
    of.set_pod(with_node(asking, "n1", text))
    tell(of, node("n1", 2))
    assert free(of) == [16, 13]
    tell(of, node("n1", 3))
    assert free(of) == [16, 13, 16]
    of.remove_node("n1")
    assert verdict(of, pod("q", mem=1)) == NEVER


def test_slices_outside_of_pods_and_unhealthy_devices_are_not_offered() -> None:
    said = [
        device("n1", 0, others={"memory": 10 * GIB, "cores": 60, "whole": False}),
        device("n1", 1, others={"memory": 0, "cores": 0, "whole": True}),
        device("n1", 2, healthy=False, why="Xid 79"),
    ]
    of = cluster(node("n1", said))
    assert free(of) == [6, 0, -1 / GIB]
    assert verdict(of, pod("p", mem=6, cores=40)) == FITS + 10
    assert verdict(of, pod("p", mem=6, cores=45)) == NEVER
    assert verdict(of, pod("p", whole=1)) == NEVER


def saying(memory: str = "1024", cores: str = "100", reserved: str = "1") -> str:
    """An annotation with these figures."""
    return (
        '{"v": 1, "placement": "extender", "devices": [{"uuid": "GPU-a", "index": "0", "healthy": true,'
        f'"memory": {memory}, "cores": {cores}}}], "reserved": {{"u": [["GPU-a", {reserved}, 1]]}}}}'
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"v": 2}',
        '{"v": 1, "placement": "extender", "devices": [{}]}',
        "[" * 100_000,
        "null",
        saying(memory="1e999"),
        saying(memory="NaN"),
        saying(memory="9" * 400),
        saying(cores="1e999"),
        saying(cores="-1"),
        saying(reserved="9" * 400),
    ],
)
def test_a_node_whose_annotation_cannot_be_read_serves_nobody_and_says_so(text: str) -> None:
    of = cluster()
    of.set_node("n1", {"yoyoworks.com/xpu-devices": text}, {})
    assert verdict(of, pod("p", mem=1)) == NEVER
    assert "annotation yoyoworks.com/xpu-devices" in of.summaries(["n1"])[0].why_not


def test_a_card_that_tells_no_memory_leaves_its_node_the_others() -> None:
    of = cluster(node("n1", [device("n1", 0, 0, healthy=False, why="lost"), device("n1", 1)]))
    assert verdict(of, pod("p", mem=16)) < FULL


def test_a_node_that_places_pods_itself_is_left_alone() -> None:
    of = cluster(node("n1", placement="node"))
    assert verdict(of, pod("p", mem=1)) == NEVER
    assert "kubernetes.placement" in of.summaries(["n1"])[0].why_not


def test_a_node_that_counts_memory_in_another_unit_is_not_used_until_it_counts_as_the_extender_does() -> None:
    of = cluster(node("n1", memory_unit=256 << 20))
    assert verdict(of, pod("p", mem=4)) == NEVER
    assert of.summaries(["n1"])[0].why_not == (
        "kubernetes.memory_unit is 256 MiB there and 1 GiB for the extender: restart daemonset/xpu-node and "
        "deployment/xpu-extender, which read it when they start"
    )
    tell(of, node("n1", memory_unit=1 << 30))
    assert verdict(of, pod("p", mem=4)) < FULL


def test_pods_slices_on_a_node_count_when_it_serves_again() -> None:
    of = cluster(node("n1"))
    of.set_pod(bound(of, pod("p", mem=10)))
    tell(of, node("n1", memory_unit=256 << 20))
    tell(of, node("n1"))
    assert free(of) == [6]


@pytest.mark.parametrize(
    ("default", "labels", "annotation", "device_of_two"),
    [
        ("binpack", {}, None, 1),
        ("spread", {}, None, 0),
        ("binpack", {"yoyoworks.com/xpu.placement": "spread"}, None, 0),
        ("binpack", {"ack.node.gpu.placement": "spread"}, None, 0),
        ("binpack", {"ack.node.gpu.placement": "spread", "yoyoworks.com/xpu.placement": "binpack"}, None, 1),
        ("binpack", {"yoyoworks.com/xpu.placement": "spread"}, "binpack", 1),
        ("binpack", {"yoyoworks.com/xpu.placement": "nonsense"}, None, 1),
    ],
)
def test_the_pod_decides_how_devices_are_filled_then_its_node_then_the_option(
    default: str, labels: Json, annotation: str | None, device_of_two: int
) -> None:
    said = [device("n1", 0), device("n1", 1, others={"memory": GIB, "cores": 0, "whole": False})]
    of = cluster(node("n1", said, labels=labels), policy=default)
    asking = pod("p", mem=2, annotations={"yoyoworks.com/xpu-policy": annotation} if annotation else {})
    assigned = assume(of, asking)
    assert assigned is not None
    assert assigned.containers["main"][0].device_uuid == device("n1", device_of_two)["uuid"]


def test_an_assignment_says_what_each_container_gets() -> None:
    of = cluster(node("n1", [device("n1", index, 15 * GIB) for index in range(4)]))
    asking = pod(
        "p",
        container("whole", whole=1),
        container("shares", shares=20),
        container("slice", mem=4, cores=60),
        container("nothing"),
    )
    asking["spec"]["initContainers"] = [
        {**container("first", mem=2), "restartPolicy": "Never"},
        {**container("beside", mem=1), "restartPolicy": "Always"},
    ]
    found = assume(of, asking)
    assert found is not None
    assert [len(found.containers), len(found.init), len(found.sidecars)] == [3, 1, 1]
    assert (found.containers["whole"][0].memory_bytes, found.containers["whole"][0].cores) == (None, None)
    assert (found.containers["shares"][0].memory_bytes, found.containers["shares"][0].cores) == (3 * GIB, 20)
    assert (found.containers["slice"][0].memory_bytes, found.containers["slice"][0].cores) == (4 * GIB, 60)
    assert found.containers["whole"][0].device_uuid != found.containers["slice"][0].device_uuid
    before = free(of)
    of.set_pod(with_node(asking, "n1", sign(found, "k", KEY)))
    assert free(of) == before
    assert of.counts()["bound"] == 1


def test_a_whole_list_ends_pods_that_it_lacks_except_those_being_bound() -> None:
    clock = Clock()
    of = cluster(node("n1", 2), node("n2"), clock=clock)
    gone, new = pod("gone", mem=10), pod("new", mem=16)
    of.set_pod(bound(of, gone))
    assume(of, new)
    of.confirm(new["metadata"]["uid"])
    of.keep_pods(set(), until=60)
    of.keep_nodes({"n1"})
    assert sorted(free(of)) == [0, 16]
    assert verdict(of, pod("p", mem=1), "n2") == NEVER
    clock.now = 60
    of.expire()
    assert free(of) == [16, 16]


def test_more_demands_than_are_remembered_are_judged_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "_MOST_SHARED", 8)
    monkeypatch.setattr(verdicts_module, "_MOST_DEMANDS", 8)
    of = cluster(node("n1"))
    for amount in (*range(1, 33), *range(1, 33)):
        assert verdict(of, pod("p", mem=amount)) == (NEVER if amount > 16 else pytest.approx(FITS + 5, abs=5))
        assert max(len(of._shared), len(of._state.verdicts._by_demand)) <= 9


def test_amounts_that_no_two_nodes_have_alike_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_module, "_MOST_SHARED", 8)
    of = cluster(*(node(f"n{gib}", [device("n", 0, gib * GIB)]) for gib in range(1, 100)))
    assert max(len(devices_module._tuples), len(devices_module._alike)) <= 9
    assert [free(of, f"n{gib}") for gib in range(1, 100)] == [[gib] for gib in range(1, 100)]


def test_no_pod_makes_a_question_take_long_and_open_answers_come_later() -> None:
    names = [f"n{number}" for number in range(300)]
    of = cluster(*(node(name, 8) for name in names))
    # In bytes that no two have alike: 33 of more than a fifth of a device each, where 32 have room.
    of._resources = Resources(memory_unit=1)
    sizes = [int(3.3 * GIB) + number for number in range(33)]
    asking = pod("p", *(container(f"c{size}", mem=size) for size in sizes))
    _, shape = of.shape(of._resources.of_pod(asking))
    assert set(of.judge(shape, names)) <= {FULL, NEVER}
    known = of._state.verdicts.of(shape)
    found_out = sum(map(bool, known))
    of.judge(shape, names)
    assert found_out < sum(map(bool, known)) <= len(names)


def test_the_search_for_init_containers_is_within_a_questions_limit() -> None:
    names = [f"n{number}" for number in range(600)]
    of = cluster(*(node(name, 1) for name in names))
    asking = pod("p", mem=1)
    asking["spec"]["initContainers"] = [container(f"i{number}", mem=1) for number in range(200)]
    _, shape = of.shape(Resources().of_pod(asking))
    of.judge(shape, names)
    known = of._state.verdicts.of(shape)
    found_out = sum(map(bool, known))
    assert 100 < found_out < len(names)
    of.judge(shape, names)
    assert found_out < sum(map(bool, known))


def test_a_place_that_was_found_with_the_last_of_the_effort_is_known_when_scores_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = cluster(node("n1"))
    asking = pod("p", mem=1)
    asking["spec"]["initContainers"] = [container("first", mem=2)]
    monkeypatch.setattr(placement, "MOST_STEPS", 14)  # it takes 16
    assert verdict(of, asking) < FULL
    monkeypatch.setattr(placement, "place", lambda *_: pytest.fail("it was looked for again"))
    assert verdict(of, asking) < FULL


def test_a_question_of_many_nodes_lets_others_go_on_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"n{number}" for number in range(60)]
    of = cluster(*(node(name) for name in names))
    _, shape = of.shape(Resources().of_pod(pod("p", mem=1)))
    began, judged = threading.Event(), []

    def slowly(*_: object) -> int:
        began.set()
        time.sleep(0.005)
        judged.append(FITS)
        return FITS

    def told() -> int:
        began.wait()
        of.remove_pod("some pod's UID")
        return len(judged)

    monkeypatch.setattr(cluster_module, "judge", slowly)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(told)
        assert of.judge(shape, names) == [FITS] * len(names)
        assert other.result() < len(names)


def test_a_pod_of_more_containers_than_can_be_placed_harms_no_other() -> None:
    of = cluster(node("n1", 16))
    many = pod("many", *(container(f"c{number}", shares=1) for number in range(1_200)), bound="n1")
    many["spec"]["initContainers"] = [container("first", mem=1)]
    of.set_pod(bound(of, pod("p", mem=10)))
    of.set_pod(many)
    assert verdict(of, pod("q", mem=16)) < FULL
    assert sorted(free(of))[:2] == [6, 16]


def test_a_node_that_could_not_be_counted_does_not_pass_for_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = cluster(node("n1"))
    of.set_pod(bound(of, pod("p", mem=10)))

    def fail(*_: object) -> None:
        raise RecursionError

    with monkeypatch.context() as patch:
        patch.setattr(accounting, "holdings", fail)
        with pytest.raises(RecursionError):
            verdict(of, pod("q", mem=7))
    assert verdict(of, pod("q", mem=7)) == FULL
    assert free(of) == [6]


def test_a_pod_that_the_watch_tells_as_bound_while_it_is_to_be_bound_has_one_place() -> None:
    of = cluster(node("n1", 2))
    asking = pod("p", mem=4)
    of.set_pod(asking)
    told = bound(of, asking)
    seen = of.known_pod(asking["metadata"]["uid"])
    of.set_pod(told)
    assert seen is not None and seen.node == ""  # as a bind has looked before that
    assert of.assume(seen, "n1", 60) == Decided("n1")
    assert of.assume(seen, "n2", 60) == Decided("n1")
    of.confirm(seen.uid)
    assert of.counts()["assumed"] == 0
    assert sorted(free(of)) == [12, 16]
