"""The answers to kube-scheduler: nodes, scores, and reasons with figures and the nearest request that
fits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kubernetes_objects import GIB, Json, container, device, node, pod
from xpu_runtime.kubernetes.extender.binding import NO_PLACE, Binder, NotBound
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.extender.in_flight import InFlight
from xpu_runtime.kubernetes.extender.objects import NodeSummary
from xpu_runtime.kubernetes.extender.reasons import nearest
from xpu_runtime.kubernetes.extender.verbs import Verbs, WrongRequest, encoded
from xpu_runtime.kubernetes.extender.verdicts import FULL
from xpu_runtime.kubernetes.resources import Resources
from xpu_runtime.placement.demand import Demand, PodDemand


class NoBinder(Binder):
    """For tests that bind nothing."""

    def __init__(self) -> None:
        pass

    def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        raise NotBound(NO_PLACE)


def verbs(*nodes: Json, resources: Resources | None = None) -> Verbs:
    resources = resources or Resources(aliases=("aliyun.com/gpu",))
    of = Cluster(resources, dict, "binpack", lambda: 0.0)
    for each in nodes:
        of.set_node(each["metadata"]["name"], each["metadata"]["annotations"], each["metadata"]["labels"])
    return Verbs(of, resources, NoBinder(), InFlight(), lambda: True)


def why(of: Verbs, asking: Json, *names: str) -> Any:
    """The reasons of all nodes, by their names."""
    found = of.filter({"Pod": asking, "NodeNames": list(names or ["n1"])})
    assert found["NodeNames"] == []
    assert set(found["FailedAndUnresolvableNodes"]) <= set(found["FailedNodes"])
    return found["FailedNodes"]


def taken(of: Verbs, name: str, **amounts: Any) -> None:
    """Enters a pod that holds this much."""
    made = of._cluster.pod(pod("taken", **amounts))
    assert made is not None
    assert of._cluster.assume(made, name, 60) is not None


ALIASES = {"aliyun.com/gpu-mem": "4", "aliyun.com/gpu-core.percentage": "10"}
_TEXTS = st.dictionaries(st.text(), st.text())


@given(_TEXTS, _TEXTS, st.lists(st.text()), st.booleans())
def test_what_is_sent_is_the_json_of_the_answer(
    failed: dict[str, str], never: dict[str, str], names: list[str], is_whole: bool
) -> None:
    answer: dict[str, Any] = {"FailedNodes": failed, "FailedAndUnresolvableNodes": never}
    answer.update({"NodeNames": names, "Error": ""} if is_whole else {})

    assert json.loads(encoded(answer)) == answer
    assert json.loads(encoded([answer, names])) == [answer, names]


#: By what is asked for: the cards of 16 GiB, the pods that are there, the pod that asks, and its answer.
REASONS: dict[str, tuple[int, list[Json], Json, str]] = {
    "memory": (
        2,
        [{"mem": 13}, {"mem": 14}],
        pod("p", mem=4),
        "GPU 0 3 GiB free, GPU 1 2 GiB free, 4 GiB asked; "
        "the nearest request that fits now: yoyoworks.com/xpu-mem: 3",
    ),
    "memory and cores": (
        2,
        [{"mem": 13, "cores": 20}, {"mem": 4, "cores": 90}],
        pod("p", mem=4, cores=30),
        "GPU 0 3 GiB and 80 percent of its cores free, GPU 1 12 GiB and 10 percent of its cores free, "
        "4 GiB and 30 percent of its cores asked; "
        "the nearest request that fits now: yoyoworks.com/xpu-mem: 3, yoyoworks.com/xpu-cores: 30",
    ),
    "shares": (
        2,
        [{"shares": 80}, {"shares": 60}],
        pod("p", shares=50),
        "GPU 0 20 shares free, GPU 1 40 shares free, 50 shares asked; "
        "the nearest request that fits now: yoyoworks.com/xpu-shares: 40",
    ),
    "whole cards": (
        2,
        [{"shares": 80}, {"shares": 60}],
        pod("p", whole=2),
        "GPUs 0, 1 in use, 2 whole GPUs asked",
    ),
    "more cards than have room": (
        3,
        [{"mem": 8}, {"mem": 10}, {"mem": 16}],
        pod("p", mem=15, annotations={"yoyoworks.com/xpu-count": "3"}),
        "GPU 0 8 GiB free, GPU 1 6 GiB free, GPU 2 0 GiB free, 5 GiB on each of 3 GPUs asked; "
        "the nearest request that fits now: yoyoworks.com/xpu-mem: 10, "
        'annotation yoyoworks.com/xpu-count: "2"',
    ),
    "an alias's names": (
        1,
        [{"mem": 13}],
        pod("p", {"name": "main", "resources": {"limits": ALIASES}}),
        "GPU 0 3 GiB and 100 percent of its cores free, 4 GiB and 10 percent of its cores asked; "
        "the nearest request that fits now: aliyun.com/gpu-mem: 3, aliyun.com/gpu-core.percentage: 10",
    ),
    "several containers": (
        1,
        [{"mem": 10}],
        pod("p", container("a", mem=4), container("b", mem=4, cores=10)),
        "GPU 0 6 GiB and 100 percent of its cores free, "
        "4 GiB for a, 4 GiB and 10 percent of its cores for b asked",
    ),
}


@pytest.mark.parametrize("asked", REASONS)
def test_a_refusal_says_what_is_free_what_is_asked_and_what_would_fit(asked: str) -> None:
    cards, there, asking, reason = REASONS[asked]
    of = verbs(node("n1", cards))
    for amounts in there:
        taken(of, "n1", **amounts)
    assert why(of, asking) == {"n1": f"node n1: {reason}"}


def test_devices_with_equal_figures_are_told_together_and_mig_devices_by_their_name() -> None:
    alike = [device("n1", index) for index in range(5)]
    mig = {**device("n1", 5, 5 * GIB), "index": "5:0"}
    sick = device("n1", 6, healthy=False, why="Xid 79")
    of = verbs(node("n1", [*alike, mig, sick]))
    assert why(of, pod("p", mem=20)) == {
        "n1": "node n1: GPUs 0-4 each have 16 GiB, MIG device 5:0 has 5 GiB, "
        "GPU 6 Xid 79, 20 GiB asked; the nearest request that fits now: yoyoworks.com/xpu-mem: 16"
    }


def test_devices_that_docker_has_something_of_are_said_to_be_partly_used_by_no_pods() -> None:
    others = {"memory": 4 * GIB, "cores": 10, "whole": False}
    of = verbs(node("n1", [device("n1", index, others=others) for index in range(4)]))
    assert why(of, pod("p", whole=1)) == {
        "n1": "node n1: GPUs 0-3 are partly used by containers outside of pods, 1 whole GPU asked"
    }
    assert why(of, pod("p", mem=15))["n1"].startswith("node n1: GPUs 0-3 each have 12 GiB for pods, 15 GiB")


def test_requests_that_never_fit_are_told_apart_from_those_that_do_not_fit_now() -> None:
    of = verbs(node("small", 1), node("full", 2), node("free", [device("free", 0, 40 * GIB)]))
    taken(of, "full", whole=1)
    taken(of, "full", whole=1)
    found = of.filter({"Pod": pod("p", mem=16), "NodeNames": ["small", "full", "free", "gone"]})
    assert found["NodeNames"] == ["small", "free"]
    found = of.filter({"Pod": pod("p", mem=17), "NodeNames": ["small", "full", "free", "gone"]})
    assert found["NodeNames"] == ["free"]
    assert set(found["FailedAndUnresolvableNodes"]) == {"small", "full", "gone"}
    assert found["FailedNodes"]["gone"] == "not known here (yet)"


def test_ending_pods_is_worth_a_look_only_where_some_have_a_lower_priority() -> None:
    of = verbs(node("n1", 1), node("n2", 1))
    for name, priority in (("n1", 5), ("n2", 0)):
        asking = pod("there", mem=10, bound=name)
        asking["spec"]["priority"] = priority
        of._cluster.set_pod(asking)

    def unresolvable(priority: int) -> set[str]:
        asking = pod("p", mem=10)
        asking["spec"]["priority"] = priority
        found = of.filter({"Pod": asking, "NodeNames": ["n1", "n2"]})
        assert set(found["FailedNodes"]) == {"n1", "n2"}
        return set(found["FailedAndUnresolvableNodes"])

    assert [unresolvable(priority) for priority in (0, 1, 9)] == [{"n1", "n2"}, {"n1"}, set()]


def test_many_nodes_give_one_reason_with_the_figures_of_the_best() -> None:
    names = [f"n{index}" for index in range(30)]
    of = verbs(*(node(name, 1) for name in names))
    for index, name in enumerate(names):
        taken(of, name, mem=16 - index // 6)
    found = why(of, pod("p", mem=5), *names)
    assert set(found.values()) == {
        "without a place now (node n24 has GPU 0 4 GiB free), 5 GiB asked; "
        "the nearest request that fits now: yoyoworks.com/xpu-mem: 4"
    }


def test_nodes_without_devices_say_why_and_are_not_tried_again_for_nothing() -> None:
    of = verbs()
    of._cluster.set_node("n1", {}, {})
    found = of.filter({"Pod": pod("p", mem=1), "NodeNames": ["n1"]})
    reason = "no annotation yoyoworks.com/xpu-devices: is xpu's device plugin running there?"
    assert found["FailedAndUnresolvableNodes"] == found["FailedNodes"] == {"n1": reason}


def test_limits_that_make_no_sense_are_the_reason_of_every_node() -> None:
    of = verbs(node("n1", 1), node("n2", 1))
    found = of.filter({"Pod": pod("p", cores=10), "NodeNames": ["n1", "n2"]})
    assert found["NodeNames"] == []
    (reason,) = set(found["FailedAndUnresolvableNodes"].values())
    assert reason.startswith("container main asks for yoyoworks.com/xpu-cores without yoyoworks.com/xpu-mem")


def test_nothing_that_is_said_has_a_percent_sign_which_kube_scheduler_takes_for_a_format() -> None:
    of = verbs(node("n1", [device("n1", 0, healthy=False, why="97% worn")]))
    assert "GPU 0 97 percent worn" in why(of, pod("p", mem=1))["n1"]
    asking = pod("p", mem=1, annotations={"yoyoworks.com/xpu-count": "50%"})
    assert "xpu-count='50 percent'" in why(of, asking)["n1"]


def test_a_pod_that_asks_for_nothing_of_ours_fits_everywhere() -> None:
    of = verbs(node("n1", 1))
    found = of.filter({"Pod": {"metadata": {}, "spec": {}}, "NodeNames": ["n1", "unknown"]})
    assert found["NodeNames"] == ["n1", "unknown"]
    scores = of.prioritize({"Pod": {"metadata": {}, "spec": {}}, "NodeNames": ["n1"]})
    assert scores == [{"Host": "n1", "Score": 0}]


def test_whole_nodes_are_answered_with_nodes() -> None:
    of = verbs(node("n1", 1))
    sent = [{"metadata": {"name": "n1"}, "status": {"x": 1}}, {"metadata": {"name": "n2"}}]
    found = of.filter({"Pod": pod("p", mem=1), "Nodes": {"items": sent}, "NodeNames": None})
    assert "NodeNames" not in found
    assert found["Nodes"]["items"] == sent[:1]
    assert set(found["FailedNodes"]) == {"n2"}


def test_fields_are_read_in_any_case_as_go_reads_them() -> None:
    of = verbs(node("n1", 1))
    assert of.filter({"pod": pod("p", mem=1), "nodenames": ["n1"]})["NodeNames"] == ["n1"]


@pytest.mark.parametrize("args", [{}, {"Pod": 1}, {"Pod": {}}, {"Pod": {}, "NodeNames": None, "Nodes": None}])
def test_requests_that_are_not_kube_schedulers_are_refused(args: Json) -> None:
    with pytest.raises(WrongRequest):
        verbs().filter(args)


def test_binpack_prefers_the_fuller_node_and_spread_the_emptier() -> None:
    of = verbs(node("full", 1), node("half", 1), node("empty", 1))
    taken(of, "full", mem=12)
    taken(of, "half", mem=6)
    names = ["full", "half", "empty"]

    def scores(**annotations: str) -> list[int]:
        asking = pod("p", mem=4, annotations={f"yoyoworks.com/xpu-{k}": v for k, v in annotations.items()})
        return [each["Score"] for each in of.prioritize({"Pod": asking, "NodeNames": names})]

    assert scores() == sorted(scores(), reverse=True)
    assert scores()[0] == 10
    assert scores(policy="spread") == [10 - each for each in scores()]


def two_vendors() -> Verbs:
    """A node with two cards of a vendor without a cap on cores, and two cards of another vendor."""
    amd: Json = {"vendor": "amd", "memory_strength": "soft", "cores_strength": "none"}
    nvidia: Json = {"vendor": "nvidia", "memory_strength": "hard", "cores_strength": "soft"}
    return verbs(node("n1", [device("n1", n, **(amd if n < 2 else nvidia)) for n in range(4)]))


def test_a_device_that_cannot_hold_what_is_asked_is_not_given() -> None:
    of = two_vendors()
    taken(of, "n1", mem=13, cores=10)
    taken(of, "n1", mem=14, cores=10)
    assert of.filter({"Pod": pod("p", mem=4), "NodeNames": ["n1"]})["NodeNames"] == ["n1"]
    assert of.filter({"Pod": pod("p", mem=4, cores=100), "NodeNames": ["n1"]})["NodeNames"] == ["n1"]
    assert why(of, pod("p", mem=4, cores=10)) == {
        "n1": "node n1: GPUs 0, 1 cannot hold a cap on cores (amd), "
        "GPU 2 3 GiB and 90 percent of its cores free (nvidia), "
        "GPU 3 2 GiB and 90 percent of its cores free (nvidia), "
        "4 GiB and 10 percent of its cores asked; the nearest request that fits now: "
        "yoyoworks.com/xpu-mem: 3, yoyoworks.com/xpu-cores: 10"
    }


def test_a_container_has_devices_of_one_vendor() -> None:
    of = two_vendors()
    taken(of, "n1", mem=10)
    taken(of, "n1", mem=10, cores=10)
    two = {"yoyoworks.com/xpu-count": "2"}
    assert of.filter({"Pod": pod("p", mem=12, annotations=two), "NodeNames": ["n1"]})["NodeNames"] == ["n1"]
    assert why(of, pod("p", mem=16, annotations=two))["n1"].endswith(
        "8 GiB on each of 2 GPUs asked, of one vendor; the nearest request that fits now: "
        'yoyoworks.com/xpu-mem: 12, annotation yoyoworks.com/xpu-count: "2"'
    )
    assert why(of, pod("p", whole=2))["n1"].startswith(
        "node n1: GPU 0 in use (amd), GPU 1 unused (amd), GPU 2 in use (nvidia), GPU 3 unused (nvidia)"
    )


def test_a_node_whose_devices_never_hold_what_is_asked_is_not_tried_again_for_nothing() -> None:
    of = verbs(node("n1", [device("n1", 0, memory_strength="none", cores_strength="none")]))
    found = of.filter({"Pod": pod("p", mem=1, cores=10), "NodeNames": ["n1"]})
    reason = "node n1: GPU 0 cannot hold a memory limit and a cap on cores, "
    assert found["FailedAndUnresolvableNodes"]["n1"].startswith(reason)
    assert of.filter({"Pod": pod("p", whole=1), "NodeNames": ["n1"]})["NodeNames"] == ["n1"]


def test_a_bind_without_a_place_says_what_is_free() -> None:
    of = verbs(node("n1", 1))
    taken(of, "n1", mem=14)
    asking = pod("p", mem=3)
    of._cluster.set_pod(asking)
    args = {"PodName": "p", "PodNamespace": "default", "PodUID": asking["metadata"]["uid"], "Node": "n1"}
    assert of.bind(args)["Error"].startswith("node n1: GPU 0 2 GiB free, 3 GiB asked")
    with pytest.raises(WrongRequest):
        of.bind({**args, "Node": 1})


demands = st.one_of(
    st.builds(
        lambda m, c, n: Demand(n, m * GIB, c),
        st.integers(1, 20),
        st.sampled_from([None, 30, 80]),
        st.integers(1, 3),
    ),
    st.builds(lambda p, n: Demand(n, None, p, p), st.integers(1, 100), st.integers(1, 3)),
    st.builds(lambda n: Demand(n, None, None), st.integers(1, 3)),
)
devices_now = st.lists(st.tuples(st.integers(0, 16), st.integers(0, 100)), min_size=1, max_size=4)


@settings(max_examples=300)
@given(demands, devices_now)
def test_the_offered_alternative_fits_and_is_no_more_than_the_request(
    demand: Demand, devices: list[tuple[int, int]]
) -> None:
    given_away = [{"memory": (16 - memory) * GIB, "cores": 100 - cores} for memory, cores in devices]
    of = verbs(node("n1", [device("n1", index, others=each) for index, each in enumerate(given_away)]))
    figures: NodeSummary = of._cluster.summaries(["n1"])[0]
    offered = nearest(demand, figures, GIB)

    def fits(each: Demand) -> bool:
        _, shape = of._cluster.shape(PodDemand((("main", each),)))
        return of._cluster.judge(shape, ["n1"])[0] < FULL

    if offered is None:
        smallest = {True: Demand(1, None, None), False: Demand(1, GIB, 1 if demand.cores else None)}
        if demand.memory_percent:
            smallest[False] = Demand(1, None, 1, 1)
        assert not fits(smallest[demand.is_whole])
        return
    other = offered[1]
    assert fits(other)
    assert other.count <= demand.count
    assert (other.memory_bytes or 0) <= (demand.memory_bytes or 0)
    assert (other.memory_percent or 0) <= (demand.memory_percent or 0)
    assert (other.cores or 0) <= (demand.cores or 0)
    assert (other.cores is None) == (demand.cores is None)
    if fits(demand):
        assert other == demand
