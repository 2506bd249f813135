"""Pods that the scheduler's extender places: they get what it has signed, and nothing else."""

from __future__ import annotations

import json

import pytest

from support import GIB

from .cluster import NODE, Cluster
from .conftest import Pods
from .daemons import until
from .objects import container, pod
from .simulated import create_pods, given

pytestmark = pytest.mark.usefixtures("assigned")
MEMORY, CORES = "yoyoworks.com/xpu-mem", "yoyoworks.com/xpu-cores"


def granted(cluster: Cluster) -> dict[str, int]:
    """Bytes of each device that containers have."""
    found: dict[str, int] = {}
    for entry in cluster.node.json("ps"):
        if entry["pid"]:
            found[entry["device_uuid"]] = found.get(entry["device_uuid"], 0) + entry["memory_bytes"]
    return found


def test_a_container_gets_exactly_what_was_signed(cluster: Cluster, pods: Pods) -> None:
    some, more = (
        container(name="some", limits={MEMORY: 2, CORES: 20}),
        container(name="more", limits={MEMORY: 3}),
    )
    pods.create(pod("placed", some, more))
    found = pods.wait("placed", "Running")
    memory, _ = given([found])
    assert granted(cluster) == dict(memory)
    assert sum(memory.values()) == 5 * GIB


def is_refused(pods: Pods, name: str, text: str) -> None:
    """Waits until `kubectl describe` shows `text`: in the pod's state, its container's, or its events."""

    def told() -> str:
        return json.dumps(pods.api.pod(name)["status"]) + pods.reasons(name)

    until(lambda: text in told(), f"it is said of {name}: {text}", explain=told)
    assert "running" not in str(pods.api.pod(name)["status"].get("containerStatuses"))


def test_a_pod_past_the_scheduler_has_no_assignment_and_gets_nothing(cluster: Cluster, pods: Pods) -> None:
    pods.create(pod("past", container(limits={MEMORY: 4}), nodeName=NODE))
    is_refused(pods, "past", "no assignment")
    # The table in docs/reference/kubernetes.md has these words.
    is_refused(pods, "past", "CreateContainerConfigError")
    is_refused(pods, "past", "XPURefused")
    assert granted(cluster) == {}


def test_fifty_pods_at_once_run_each_with_its_own_and_nothing_is_given_twice(
    cluster: Cluster, pods: Pods
) -> None:
    create_pods(pods.api, [pod(f"small-{at}", container(limits={MEMORY: 1})) for at in range(50)])
    until(
        lambda: all(each["status"]["phase"] == "Running" for each in pods.api.pods()),
        "all fifty run", 120, lambda: pods.explain("small-49"),
    )  # fmt: skip
    memory, _ = given(pods.api.pods())
    assert granted(cluster) == dict(memory)
    assert sum(memory.values()) == 50 * GIB and max(memory.values()) <= 15 * GIB
