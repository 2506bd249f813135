"""The scheduler extender on a real scheduler and API server: replicas, and forgers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support import GIB

from . import manifests
from .cluster import Cluster
from .conftest import Pods
from .objects import container, pod
from .services import Extender
from .simulated import SimulatedNodes, given

MEMORY = "yoyoworks.com/xpu-mem"
ASSIGNMENT = "yoyoworks.com/xpu-assignment"


def on(node: str) -> dict[str, Any]:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def ask(cluster: Cluster, extender: Extender) -> None:
    """Has the scheduler ask that replica."""
    cluster.restart_scheduler(extenders=manifests.scheduler_extenders(cluster.secrets, extender.port))


@pytest.fixture
def standby(cluster: Cluster, extender: Extender) -> Iterator[Extender]:
    """A second replica, which the scheduler asks, while the first leads."""
    found = Extender(cluster)
    found.daemon.start()
    ask(cluster, found)
    yield found
    found.daemon.stop()
    extender.daemon.ensure()
    ask(cluster, extender)


def test_a_replica_that_does_not_lead_passes_on_and_takes_over_without_a_pod_that_fails(
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


def test_its_account_may_show_the_cluster_s_state(
    cluster: Cluster, extender: Extender, simulated: SimulatedNodes
) -> None:
    (node,) = simulated.create(1, (16, 16))

    # By `kubectl exec` in its pod, that is.
    kubeconfig = f"--kubeconfig={cluster.folder}/extender.kubeconfig"
    done = cluster.node.xpu("kubernetes", "status", node, kubeconfig, "--json")

    (found,) = json.loads(done.stdout)["nodes"]
    assert [card["free_memory_bytes"] for card in found["cards"]] == [16 * GIB] * 2


def test_a_scheduler_that_does_not_count_our_resources_has_the_extender_s_figures_always(
    cluster: Cluster, extender: Extender, simulated: SimulatedNodes, pods: Pods
) -> None:
    (node,) = simulated.create(1, (16, 16))
    pods.create(pod("counted", container(limits={MEMORY: 33}), **on(node)))
    # No node has that much in sum: nobody else is asked.
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


def test_what_an_author_writes_into_his_pod_frees_nothing(
    extender: Extender, simulated: SimulatedNodes, pods: Pods
) -> None:
    (node,) = simulated.create(1, (16, 16))
    pods.create(pod("honest", container(limits={MEMORY: 10}), **on(node)))
    pods.create(pod("forger", container(limits={MEMORY: 10}), **on(node)))
    honest, _ = sorted(pods.wait_until_bound(2), key=lambda each: each["metadata"]["name"] != "honest")
    copied = honest["metadata"]["annotations"][ASSIGNMENT]
    pods.api.call(
        "PATCH",
        "/api/v1/namespaces/default/pods/forger",
        {"metadata": {"annotations": {ASSIGNMENT: copied}}},
        "application/merge-patch+json",
    )
    for restart in (False, True):
        if restart:
            extender.daemon.stop()
            extender.daemon.start()
        name = f"more-{restart}".lower()
        pods.create(pod(name, container(limits={MEMORY: 7}), **on(node)))
        pods.wait_for_reason(name, "GPUs 0, 1 each 6 GiB free, 7 GiB asked")
