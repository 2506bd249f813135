"""Which pods end for one of a higher priority: no more than its place on a device takes."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kubernetes_objects import GIB, Json, container, device, node, pod
from unit.kubernetes.test_extender_cluster import bound, cluster, verdict
from unit.kubernetes.test_extender_verbs import NoBinder
from xpu_runtime.kubernetes.extender import preemption
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.extender.in_flight import InFlight
from xpu_runtime.kubernetes.extender.verbs import Verbs
from xpu_runtime.kubernetes.extender.verdicts import FULL
from xpu_runtime.kubernetes.resources import Resources


def there(of: Cluster, name: str, priority: int, to: str = "n1", **amounts: Any) -> str:
    """A pod with that priority is bound to that node; its UID."""
    asking = pod(name, **amounts)
    asking["spec"]["priority"] = priority
    of.set_pod(bound(of, asking, to))
    uid: str = asking["metadata"]["uid"]
    return uid


def ending(of: Cluster, asking: Json, priority: int, chosen: list[str]) -> list[str] | None:
    """Whom the extender has end on n1, where kube-scheduler has chosen these; None: the node is not
    offered."""
    asking["spec"]["priority"] = priority
    theirs = {"Pods": [{"UID": uid} for uid in chosen], "NumPDBViolations": 1}
    answer = Verbs(of, Resources(), NoBinder(), InFlight(), lambda: True).preempt(
        {"Pod": asking, "NodeNameToMetaVictims": {"n1": theirs}}
    )
    found = answer["NodeNameToMetaVictims"].get("n1")
    if found is None:
        return None
    assert found["NumPDBViolations"] == 1
    return [each["UID"] for each in found["Pods"]]


def test_pods_of_lower_priority_end() -> None:
    of = cluster(node("n1", 2))
    there(of, "middle", 5, mem=10)
    low = there(of, "low", 1, mem=10)
    assert ending(of, pod("high", mem=10), 10, []) == [low]
    assert ending(of, pod("equal", mem=10), 1, []) is None


def test_whom_kube_scheduler_has_chosen_stays_chosen_whether_he_holds_a_device_or_not() -> None:
    of = cluster(node("n1", 2))
    one = there(of, "one", 0, mem=10)
    other = there(of, "other", 0, mem=10)
    assert ending(of, pod("high", mem=10), 10, [other, "without-devices"]) == ["without-devices", other]
    assert one not in (ending(of, pod("high", mem=10), 10, [other]) or [])


def test_a_node_that_no_victims_make_large_enough_is_not_offered() -> None:
    of = cluster(node("n1", 1))
    low = there(of, "low", 0, mem=10)
    assert ending(of, pod("high", mem=17), 10, [low]) is None
    of.remove_node("n1")
    assert ending(of, pod("high", mem=1), 10, [low]) is None


def test_no_pod_can_make_the_question_of_who_ends_take_longer_than_kube_scheduler_waits() -> None:
    names = [f"n{number}" for number in range(10)]
    of = cluster(*(node(name, [device(name, index, 80 * GIB) for index in range(8)]) for name in names))
    for name, number in itertools.product(names, range(100)):
        there(of, f"{name}-{number}", 0, name, mem=5)
    asking = pod("high", *(container(f"c{number}", mem=26 + number % 2) for number in range(23)))
    asking["spec"]["priority"] = 10
    proposed: Json = {name: {"Pods": []} for name in names}
    began = time.monotonic()
    answer = Verbs(of, Resources(), NoBinder(), InFlight(), lambda: True).preempt(
        {"Pod": asking, "NodeNameToMetaVictims": proposed}
    )
    assert time.monotonic() - began < 5
    # Those that were looked at before have a place then.
    assert answer["NodeNameToMetaVictims"]
    for name, found in answer["NodeNameToMetaVictims"].items():
        for each in found["Pods"]:
            of.remove_pod(each["UID"])
        assert verdict(of, asking, name) < FULL


@pytest.mark.parametrize(("looks", "number"), [(0, None), (1, None), (2, 3), (5, 1)])
def test_when_the_time_is_over_all_of_a_lower_priority_end_or_the_node_is_not_offered(
    looks: int, number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = cluster(node("n1", 3))
    pods = [there(of, f"p{number}", 0, mem=10) for number in range(3)]
    times = itertools.chain([0.0] * (1 + looks), itertools.repeat(60.0))
    monkeypatch.setattr(preemption, "time", SimpleNamespace(monotonic=lambda: next(times)))
    found = ending(of, pod("high", mem=10), 10, [])
    assert (None if found is None else len(found)) == number
    assert set(found or ()) <= set(pods)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=6),
    st.integers(1, 12),
    st.integers(0, 4),
)
def test_without_the_victims_there_is_a_place_and_with_any_of_them_there_is_none(
    others: list[tuple[int, int]], amount: int, priority: int
) -> None:
    of = cluster(node("n1", 2))
    told: dict[str, Json] = {}
    for number, (size, theirs) in enumerate(others):
        if verdict(of, pod("x", mem=size)) < FULL:
            one = pod(f"p{number}", mem=size)
            one["spec"]["priority"] = theirs
            uid = one["metadata"]["uid"]
            told[uid] = bound(of, one)
            of.set_pod(told[uid])
    asking = pod("high", container("a", mem=amount), container("b", mem=1))
    if verdict(of, asking) < FULL:
        return
    found = ending(of, asking, priority, [])
    lower = {uid for uid, each in told.items() if each["spec"]["priority"] < priority}
    for uid in found if found is not None else lower:
        of.remove_pod(uid)
    if found is None:
        assert verdict(of, asking) >= FULL
        return
    assert set(found) <= lower
    assert verdict(of, asking) < FULL
    for uid in found:
        of.set_pod(told[uid])
        assert verdict(of, asking) >= FULL
        of.remove_pod(uid)
