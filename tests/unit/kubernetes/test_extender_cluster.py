"""What counts on a node: pods by signed assignments, pods that are being bound, and what authors wrote
themselves."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.kubernetes_objects import GIB, Json, container, device, node, pod
from xpu_runtime.kubernetes.extender import accounting
from xpu_runtime.kubernetes.extender import cluster as cluster_module
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.extender.groups import Member
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
    """A watch's word of a node."""
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


FORGERIES = ["", "v1.k.e30.AAAA", "nonsense", None]


@pytest.mark.parametrize("text", FORGERIES)
def test_whatever_its_author_writes_a_pod_counts_where_it_was_seen_to_be(text: str | None) -> None:
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


def test_such_a_pod_counts_on_a_device_that_holds_what_it_asks_for() -> None:
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


def test_such_a_pod_that_has_no_place_holds_what_it_asks_for_and_no_whole_devices() -> None:
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


def test_a_node_tells_what_it_has_reserved_for_pods_whose_annotation_does_not() -> None:
    asking, gone = pod("p", mem=10), "11111111-0000-0000-0000-000000000000"
    uuids = [device("n1", index)["uuid"] for index in range(3)]
    reserved = {asking["metadata"]["uid"]: [[uuids[1], 10 * GIB, 20]], gone: [[uuids[2], None, None]]}
    of = cluster(node("n1", 3, reserved=reserved))
    of.set_pod(with_node(asking, "n1", "forged"))
    assert free(of) == [16, 6, 0]
    assert of.summaries(["n1"])[0].cores[1] == 80


def test_a_key_that_is_known_later_verifies_what_was_seen_before() -> None:
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


def test_what_others_than_pods_have_and_what_is_not_healthy_is_not_offered() -> None:
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


def test_what_pods_hold_there_counts_when_it_is_used_again() -> None:
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


def test_a_list_of_all_there_is_ends_what_is_not_in_it_but_for_what_is_being_bound() -> None:
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


def test_more_demands_than_are_remembered_are_judged_all_the_same() -> None:
    of = cluster(node("n1"))
    for amount in range(1, 600):
        assert verdict(of, pod("p", mem=amount)) == (NEVER if amount > 16 else pytest.approx(FITS + 5, abs=5))


def test_no_pod_can_make_a_question_take_long_and_what_was_not_found_out_is_found_out_later() -> None:
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


def test_the_place_of_init_containers_is_part_of_what_a_question_may_take() -> None:
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


def test_what_is_read_late_neither_revives_a_pod_nor_unbinds_it() -> None:
    clock = Clock()
    of = cluster(node("n1"), clock=clock)
    asking = pod("p", mem=10)
    uid = asking["metadata"]["uid"]
    told = bound(of, asking)
    of.set_pod(told)
    of.set_pod(asking, is_read=True)
    assert free(of) == [6]
    seen = of.known_pod(uid)
    of.remove_pod(uid)
    of.set_pod(told, is_read=True)
    assert free(of) == [16]
    assert seen is not None
    assert of.assume(seen, "n1", 60) == Decided("")
    assert free(of) == [16]
    # The watch is right, whatever it has told before: a list may be older than what was read.
    of.set_pod(told)
    assert free(of) == [6]
    of.remove_pod(uid)
    clock.now = 61
    of.expire()
    assert of._state.gone == {}


amounts = st.fixed_dictionaries(
    {"mem": st.integers(1, 9)}, optional={"cores": st.sampled_from([20, 50, 100])}
)


class Life(RuleBasedStateMachine):
    """Pods come, are bound, forged and deleted, in any order; devices are never given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.names = ["n1", "n2"]
        self.clock = Clock()
        self.of = cluster(node("n1", 2), node("n2", 1), clock=self.clock)
        #: By UID: the pod, its node and its assignment; what the API would have.
        self.bound: dict[str, tuple[Json, str, Assignment]] = {}
        self.asking: list[Json] = []
        #: UIDs of those of which a place is held for their group.
        self.holding: set[str] = set()
        #: Those that have gone of late, as they were.
        self.gone: list[Json] = []

    @rule(amounts=amounts, containers=st.integers(1, 2))
    def come(self, amounts: Json, containers: int) -> None:
        made = pod(f"p{len(self.asking)}", *(container(f"c{n}", **amounts) for n in range(containers)))
        self.asking.append(made)
        self.of.set_pod(made)

    @precondition(lambda self: self.asking)
    @rule(number=st.integers(0), name=st.sampled_from(["n1", "n2"]), succeeds=st.booleans())
    def bind(self, number: int, name: str, succeeds: bool) -> None:
        asking = self.asking[number % len(self.asking)]
        uid = asking["metadata"]["uid"]
        if uid in self.holding:
            is_there = self.of.assumed_on(uid) == name
            given = assume(self.of, asking, name, self.clock.now + 60)
            assert given is not None or not is_there
            if is_there:
                self.holding.discard(uid)
            else:
                self.holding.clear()
        else:
            fits = verdict(self.of, asking, name) < FULL
            given = assume(self.of, asking, name, self.clock.now + 60)
            assert (given is not None) == fits
        if given is None:
            return
        if not succeeds:
            self.of.forget(uid)
            return
        self.of.confirm(uid)
        self.asking.remove(asking)
        self.bound[uid] = (asking, name, given)

    @precondition(lambda self: self.asking)
    @rule(number=st.integers(0), name=st.sampled_from(["n1", "n2"]))
    def hold(self, number: int, name: str) -> None:
        asking = self.asking[number % len(self.asking)]
        uid, wanted = asking["metadata"]["uid"], self.of.pod(asking)
        assert wanted is not None
        of = Member("default/train", False, "", "")
        self.holding.discard(uid)
        self.of.ask(uid, of)
        fits = verdict(self.of, asking, name) < FULL
        assert self.of.hold(wanted, name, of) == fits
        if fits:
            self.holding.add(uid)

    @rule(number=st.integers(0))
    def let_go(self, number: int) -> None:
        """A pod that waits is deleted, or what is held ends with the lead."""
        uids = [asking["metadata"]["uid"] for asking in self.asking]
        if number % 2 or not uids:
            self.of.let_go()
            self.holding.clear()
            return
        gone = uids[number // 2 % len(uids)]
        self.of.remove_pod(gone)
        self.asking = [asking for asking in self.asking if asking["metadata"]["uid"] != gone]
        self.holding.discard(gone)

    @precondition(lambda self: self.bound)
    @rule(number=st.integers(0), name=st.sampled_from(["n1", "n2"]))
    def bind_again(self, number: int, name: str) -> None:
        """A bind that has looked before the watch told of the pod as bound; the API refuses it then."""
        asking, bound_to, given = list(self.bound.values())[number % len(self.bound)]
        told = with_node(asking, bound_to, sign(given, "k", KEY))
        self.of.set_pod(told)
        assert assume(self.of, asking, name, self.clock.now + 60) is None
        self.of.set_pod(told, is_read=True)
        self.of.confirm(asking["metadata"]["uid"])

    @precondition(lambda self: self.gone)
    @rule(number=st.integers(0))
    def read_late(self, number: int) -> None:
        self.of.set_pod(self.gone[number % len(self.gone)], is_read=True)

    @precondition(lambda self: self.bound)
    @rule(number=st.integers(0), is_forged=st.booleans())
    def watch_tells(self, number: int, is_forged: bool) -> None:
        asking, name, given = list(self.bound.values())[number % len(self.bound)]
        self.of.set_pod(with_node(asking, name, "forged" if is_forged else sign(given, "k", KEY)))

    @precondition(lambda self: self.bound)
    @rule(number=st.integers(0))
    def go(self, number: int) -> None:
        uid = list(self.bound)[number % len(self.bound)]
        asking, name, given = self.bound.pop(uid)
        self.gone.append(with_node(asking, name, sign(given, "k", KEY)))
        self.of.remove_pod(uid)

    @rule()
    def time_passes(self) -> None:
        self.clock.now += 100
        held = {each.uid for each in self.of.expire()}
        assert held <= self.holding
        self.holding -= held
        self.gone.clear()  # no request lasts so long

    @invariant()
    def nothing_is_given_twice(self) -> None:
        for name, devices in (("n1", 2), ("n2", 1)):
            for index in range(devices):
                uuid = device(name, index)["uuid"]
                held = [self.of._state.assumed[uid].assignment for uid in self.holding]
                shares = [
                    share
                    for given in [*held, *(given for _, _, given in self.bound.values())]
                    for shares in given.containers.values()
                    for share in shares
                    if share.device_uuid == uuid
                ]
                used = sum(share.memory_bytes or 0 for share in shares)
                cores = sum(share.cores or 0 for share in shares)
                assert used <= 16 * GIB
                assert cores <= 100
                figures = self.of.summaries([name])[0]
                assert (figures.memory[index], figures.cores[index]) == (16 * GIB - used, 100 - cores)


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
test_devices_are_never_given_twice_whatever_happens_in_which_order = Life.TestCase
