"""Wrong requests of pods' authors, and the extender's refusals."""

from __future__ import annotations

import json

import pytest

from support.kubernetes_objects import Json, container, node, pod
from unit.kubernetes.test_extender_verbs import verbs, why
from xpu_runtime.kubernetes.resources import Resources


def test_an_unknown_annotation_is_refused_with_the_name_that_was_meant() -> None:
    of = verbs(node("n1", 2))
    misspelt = {"yoyoworks.com/xpu-polcy": "spread"}
    assert why(of, pod("p", mem=4, annotations=misspelt)) == {
        "n1": "the pod's annotation yoyoworks.com/xpu-polcy is unknown: did you mean "
        "yoyoworks.com/xpu-policy?"
    }
    known = {"yoyoworks.com/xpu-policy": "spread", "yoyoworks.com/xpu-sched": "burst", "xpu.example/x": "y"}
    asks, asks_nothing = pod("p", mem=4, annotations=known), pod("p", annotations=misspelt)
    for each in (asks, asks_nothing):
        assert of.filter({"Pod": each, "NodeNames": ["n1"]})["NodeNames"] == ["n1"]


def test_an_amount_beside_the_limits_is_refused_at_once_in_the_words_of_the_node() -> None:
    of = verbs(node("n1", 2))
    todo = (
        "is not for a container of a pod: give amounts in resources.limits, such as yoyoworks.com/xpu-mem: 4 "
    )
    annotated = pod("p", mem=4, annotations={"yoyoworks.com/xpu-mem": "8G"})
    assert why(of, annotated)["n1"].startswith(f"yoyoworks.com/xpu-mem: 8G {todo}")
    main = container("main", mem=4)
    main["env"] = [{"name": "A", "valueFrom": {}}, {"name": "XPU_CORES", "value": "50"}]
    assert why(of, pod("p", main))["n1"].startswith(f"XPU_CORES=50 {todo}")
    bound = pod("p", mem=4, annotations={"yoyoworks.com/xpu-mem": "8G"}, bound="n1")
    made = of._cluster.pod(bound)
    assert made is not None and not made.demand.is_empty


@pytest.mark.parametrize(
    ("asked", "name", "without"),
    [
        ({"cores": 0}, "yoyoworks.com/xpu-cores", " (without it there is no cap on its time)"),
        ({"mem": 4, "cores": 0}, "yoyoworks.com/xpu-cores", " (without it there is no cap on its time)"),
        ({"mem": 0, "cores": 10}, "yoyoworks.com/xpu-mem", ""),
        ({"shares": 0}, "yoyoworks.com/xpu-shares", ""),
        ({"whole": 0}, "yoyoworks.com/xpu", ""),
    ],
)
def test_a_nought_which_a_kubelet_may_never_start_is_refused(asked: Json, name: str, without: str) -> None:
    of = verbs(node("n1", 2))
    reason = f"container main asks for 0 of {name}: leave it out{without}, or give at least 1"
    assert why(of, pod("p", **asked))["n1"] == reason


def test_a_nought_of_an_alias_is_refused_where_the_alias_is_turned_on() -> None:
    main = container("main")
    main["resources"] = {"limits": {"aliyun.com/gpu-mem": "4", "aliyun.com/gpu-core.percentage": "0"}}
    assert "0 of aliyun.com/gpu-core.percentage" in why(verbs(node("n1", 2)), pod("p", main))["n1"]
    # Where it is not, kube-scheduler sends the pod by a name of which nodes may know already.
    told = why(verbs(node("n1", 2), resources=Resources()), pod("p", main))["n1"]
    assert told.startswith(
        "container main asks for aliyun.com/gpu-mem, which the extender does not know: turn"
    )


@pytest.mark.parametrize(
    ("name", "label", "annotation", "is_refused"),
    [
        ("aliyun.com/gpu-mem", "2", None, True),
        ("aliyun.com/gpu-mem", "two", None, True),
        ("aliyun.com/gpu-mem", "1", None, False),
        ("aliyun.com/gpu-mem", "2", "2", False),
        ("yoyoworks.com/xpu-mem", "2", None, False),
    ],
)
def test_acks_label_for_several_cards_does_not_go_unheeded(
    name: str, label: str, annotation: str | None, is_refused: bool
) -> None:
    asking = pod("p", {"name": "main", "resources": {"limits": {name: "4"}}})
    asking["metadata"]["labels"] = {"aliyun.com/gpu-count": label}
    if annotation is not None:
        asking["metadata"]["annotations"] = {"yoyoworks.com/xpu-count": annotation}
    answer = verbs(node("n1", 2)).filter({"Pod": asking, "NodeNames": ["n1"]})
    if is_refused:
        (line,) = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}.values()
        assert line == (
            f"the pod's label aliyun.com/gpu-count='{label}' is not read here: give the number of devices by "
            'the annotation yoyoworks.com/xpu-count, such as "2"'
        )
    else:
        assert answer["NodeNames"] == ["n1"]


@pytest.mark.parametrize("name", ["count", "policy"])
def test_the_answer_has_for_each_node_the_beginning_of_an_authors_text(name: str) -> None:
    of = verbs(*(node(f"n{number}") for number in range(100)))
    asking = pod("p", mem=4, annotations={f"yoyoworks.com/xpu-{name}": "%" * 100_000})
    answer = of.filter({"Pod": asking, "NodeNames": [f"n{number}" for number in range(100)]})
    assert answer["NodeNames"] == []
    assert len(json.dumps(answer)) < 250_000
