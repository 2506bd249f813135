"""The scheduler extender with a real scheduler and API server: replicas, rights, figures, and places.

The nodes are objects of the API alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from support import GIB

from . import manifests
from .cluster import Cluster
from .conftest import Pods
from .daemons import until
from .objects import container, pod
from .services import Extender
from .simulated import ONLY, SimulatedNodes, create_pods, given, on

MEMORY = "yoyoworks.com/xpu-mem"
NODES = 1000


def ask(cluster: Cluster, extender: Extender) -> None:
    """Configures the scheduler to ask that replica."""
    cluster.restart_scheduler(extenders=manifests.scheduler_extenders(cluster.secrets, extender.port))


@pytest.fixture
def standby(cluster: Cluster, extender: Extender) -> Iterator[Extender]:
    """A second replica; the scheduler asks it while the first one leads."""
    found = Extender(cluster)
    found.daemon.start()
    ask(cluster, found)
    yield found
    found.daemon.stop()
    extender.daemon.ensure()
    ask(cluster, extender)


def test_a_replica_that_does_not_lead_forwards_and_takes_over_and_no_pod_fails(
    cluster: Cluster, extender: Extender, standby: Extender, simulated: SimulatedNodes, pods: Pods
) -> None:
    (node,) = simulated.create(1, (16, 16))
    for number in range(4):
        pods.create(pod(f"before-{number}", container(limits={MEMORY: 4}), **on(node)))
    pods.wait_until_bound(4)
    extender.daemon.stop()  # as a rollout does it
    for number in range(4):
        pods.create(pod(f"after-{number}", container(limits={MEMORY: 4}), **on(node)))
    memory, _ = given(pods.wait_until_bound(8))
    assert list(memory.values()) == [16 * GIB] * 2
    assert not any("FailedScheduling" in pods.reasons(f"after-{number}") for number in range(4))


def test_the_extenders_account_may_read_the_clusters_state(
    cluster: Cluster, extender: Extender, simulated: SimulatedNodes
) -> None:
    (node,) = simulated.create(1, (16, 16))

    # People call it by `kubectl exec` in the extender's pod.
    kubeconfig = f"--kubeconfig={cluster.folder}/extender.kubeconfig"
    done = cluster.node.xpu("kubernetes", "status", node, kubeconfig, "--json")

    (found,) = json.loads(done.stdout)["nodes"]
    assert [card["free_memory_bytes"] for card in found["cards"]] == [16 * GIB] * 2


def test_a_scheduler_that_does_not_count_our_resources_always_shows_the_extenders_figures(
    cluster: Cluster, extender: Extender, simulated: SimulatedNodes, pods: Pods
) -> None:
    (node,) = simulated.create(1, (16, 16))
    pods.create(pod("counted", container(limits={MEMORY: 33}), **on(node)))
    # No node has that much in sum, so that the scheduler does not ask the extender.
    assert "GiB" not in pods.wait_for_reason("counted", f"Insufficient {MEMORY}")
    (found,) = manifests.scheduler_extenders(cluster.secrets, extender.port)
    for each in found["managedResources"]:
        each["ignoredByScheduler"] = True

    cluster.restart_scheduler(extenders=[found])
    try:
        pods.create(pod("not-counted", container(limits={MEMORY: 33}), **on(node)))
        reasons = pods.wait_for_reason("not-counted", "33 GiB asked")
    finally:
        ask(cluster, extender)

    assert "16 GiB" in reasons and "Insufficient" not in reasons


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


def test_a_thousand_nodes_are_filled_to_the_last_slice_and_no_further(
    extender: Extender, simulated: SimulatedNodes, pods: Pods
) -> None:
    # The sum of its cards would be enough for three pods on each node.
    simulated.create(NODES, (6, 6))
    wanted = container(limits={"yoyoworks.com/xpu-mem": 4, "yoyoworks.com/xpu-cores": 50})
    create_pods(pods.api, [pod(f"filling-{at}", wanted, nodeSelector=ONLY) for at in range(2 * NODES + 1)])
    bound = pods.wait_until_bound(2 * NODES, 240)
    (waiting,) = (each["metadata"]["name"] for each in pods.api.pods() if "nodeName" not in each["spec"])
    pods.wait_for_reason(waiting, "4 GiB and 50 percent of its cores asked")
    memory, cores = given(bound)
    assert len(memory) == 2 * NODES
    assert set(memory.values()) == {4 * GIB} and set(cores.values()) == {50}
