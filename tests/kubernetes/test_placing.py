"""Where the scheduler puts pods with the extender's help, on nodes that are objects of the API alone."""

from __future__ import annotations

from support import GIB

from .conftest import Pods
from .daemons import until
from .objects import container, pod
from .services import Extender
from .simulated import SimulatedNodes, create_pods, given, on

MEMORY, CORES = "yoyoworks.com/xpu-mem", "yoyoworks.com/xpu-cores"


def test_while_the_extender_is_down_pods_that_ask_wait_with_an_event_and_others_do_not(
    extender: Extender, simulated: SimulatedNodes, pods: Pods
) -> None:
    (node,) = simulated.create(1, (15,))
    extender.daemon.stop()
    try:
        pods.create(pod("asks", container(limits={MEMORY: 4}), **on(node)))
        pods.create(pod("plain", container(), **on(node)))
        pods.wait_until_bound(1)
        pods.wait_for_reason("asks", "FailedScheduling")
        assert "nodeName" not in pods.api.pod("asks")["spec"]
    finally:
        extender.daemon.start()
    # This scheduler tries a failed pod again after a minute, or when something changes on a node.
    pods.api.patch_node(node, {"metadata": {"labels": {"test.invalid/changed": ""}}})
    pods.wait_until_bound(2)


def test_members_of_a_group_are_bound_where_their_places_are_held_and_one_too_many_waits(
    extender: Extender, simulated: SimulatedNodes, pods: Pods
) -> None:
    """This scheduler knows no groups, and binds each member by itself."""
    names = simulated.create(2, (16, 16))
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": names}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    affinity = {"nodeAffinity": required}
    wanted = [pod(f"member-{at}", container(limits={MEMORY: 10}), affinity=affinity) for at in range(5)]
    for each in wanted:
        each["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "train"}
    create_pods(pods.api, wanted)
    bound = pods.wait_until_bound(4)
    memory, _ = given(bound)
    assert list(memory.values()) == [10 * GIB] * 4
    assert {each["spec"]["nodeName"] for each in bound} == set(names)
    (waits,) = {each["metadata"]["name"] for each in wanted} - {each["metadata"]["name"] for each in bound}
    pods.wait_for_reason(waits, "10 GiB asked")
    pods.api.delete_by_force(bound[0]["metadata"]["name"])
    pods.wait_until_bound(4)
    until(lambda: "nodeName" in pods.api.pod(waits)["spec"], "the last is bound")
