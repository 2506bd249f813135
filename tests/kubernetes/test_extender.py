"""The scheduler extender with a real scheduler and API server: replicas, its rights, and its figures."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from support import GIB

from . import manifests
from .cluster import Cluster
from .conftest import Pods
from .objects import container, pod
from .services import Extender
from .simulated import SimulatedNodes, given, on

MEMORY = "yoyoworks.com/xpu-mem"


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
