"""A pod's slices as its containers start and end: the ledger has what runs, at each step.

Sidecars (init containers that are always restarted) are newer than this kubelet. tests/integration/pods runs
their containers on a real runc, and tests/unit/kubernetes/device_plugin/test_decisions.py has the plugin's
part.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

from support import GIB

from .api import NAMESPACE
from .cluster import IMAGE, NODE, Cluster
from .conftest import Pods
from .daemons import until
from .objects import container, pod
from .simulated import assignment

pytestmark = pytest.mark.usefixtures("assigned")
MEMORY, CORES = "yoyoworks.com/xpu-mem", "yoyoworks.com/xpu-cores"
#: A container that ends with status 0 on SIGUSR1.
WAITS = ("sh", "-c", "trap 'exit 0' USR1; while :; do sleep 0.1; done")


def running(cluster: Cluster) -> list[dict[str, Any]]:
    """The rows of containers that run; reservations are left out."""
    return [row for row in cluster.node.json("ps") if row["pid"]]


def row_of(cluster: Cluster, pods: Pods, name: str, container_name: str) -> dict[str, Any]:
    """The row of that container of a pod, before or after a restart; {}: there is none."""
    status = pods.api.pod(name)["status"]
    for kind in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(kind, ()):
            if each["name"] == container_name:
                container_id = each.get("containerID", "").removeprefix("containerd://")
                return next((row for row in running(cluster) if row["container_id"] == container_id), {})
    return {}  # kubelet has reported nothing yet


def wait_for_row(cluster: Cluster, pods: Pods, name: str, container_name: str, other_than: int = 0) -> None:
    """Waits until that container runs, in another process than `other_than`."""
    until(
        lambda: row_of(cluster, pods, name, container_name).get("pid", other_than) != other_than,
        f"{container_name} runs",
        explain=lambda: pods.explain(name),
    )


def assert_all_is_offered(cluster: Cluster) -> None:
    """The node must offer everything for as long as the plugin and the kubelet need to report a change."""
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        assert cluster.api.node(NODE)["status"]["allocatable"][MEMORY] == "60"
        time.sleep(0.2)


def reserved_on(cluster: Cluster, name: str) -> bool:
    """Whether the node reports a reservation for the pod."""
    told = json.loads(cluster.api.node(NODE)["metadata"]["annotations"]["yoyoworks.com/xpu-devices"])
    return cluster.api.pod(name)["metadata"]["uid"] in told["reserved"]


def test_init_containers_have_their_own_amounts_one_after_the_other(cluster: Cluster, pods: Pods) -> None:
    init = [
        container(*WAITS, name="first", limits={MEMORY: 10, CORES: 50}),
        container(*WAITS, name="second", limits={MEMORY: 2}),
    ]
    pods.create(pod("steps", container(limits={MEMORY: 4}), initContainers=init))
    for name, amount, cores in (("first", 10, 50), ("second", 2, None)):
        # The container before it may have ended a moment ago.
        wait_for_row(cluster, pods, "steps", name)
        # The scheduler subtracts the pod's own amounts. The plugin must not subtract them from the node once
        # more.
        until(lambda: reserved_on(cluster, "steps"), "it is reserved")
        assert_all_is_offered(cluster)
        (row,) = running(cluster)
        assert (row["memory_bytes"], row["cores"]) == (amount * GIB, cores)
        os.kill(row["pid"], signal.SIGUSR1)
    found = pods.wait("steps", "Running")
    ((device, amount, _),) = assignment(found)["containers"]["main"]
    (row,) = running(cluster)
    assert (row["device_uuid"], row["memory_bytes"]) == (device, amount) == (device, 4 * GIB)


def test_a_container_that_is_killed_starts_again_with_what_was_signed(cluster: Cluster, pods: Pods) -> None:
    some, more = (
        container(name="some", limits={MEMORY: 15}),
        container(name="more", limits={MEMORY: 15}),
    )
    pods.create(pod("again", some, more, restartPolicy="Always"))
    pods.wait("again", "Running")
    before = {name: row_of(cluster, pods, "again", name) for name in ("some", "more")}
    os.kill(before["some"]["pid"], signal.SIGKILL)
    wait_for_row(cluster, pods, "again", "some", other_than=before["some"]["pid"])
    assert row_of(cluster, pods, "again", "more") == before["more"]
    assert row_of(cluster, pods, "again", "some")["device_uuid"] == before["some"]["device_uuid"]
    assert len(running(cluster)) == 2


def test_a_pod_deleted_by_force_leaves_its_place_to_the_next(cluster: Cluster, pods: Pods) -> None:
    names = ("one", "two", "three", "four")
    for name in names:
        pods.create(pod(name, container(limits={MEMORY: 15})))
    for name in names:
        pods.wait(name, "Running")
    # The API's object is gone at once; the container runs until kubelet notices.
    pods.api.delete_by_force("one")
    pods.create(pod("next", container(limits={MEMORY: 15})))
    pods.wait("next", "Running")
    assert len({row["device_uuid"] for row in running(cluster)}) == 4


def test_a_container_that_runs_after_its_pod_has_failed_keeps_its_memory(
    cluster: Cluster, pods: Pods
) -> None:
    # The container's first process ignores SIGTERM, so it runs for the pod's whole grace period.
    pods.create(pod("late", container(limits={MEMORY: 15}), terminationGracePeriodSeconds=60))
    uid = pods.wait("late", "Running")["metadata"]["uid"]
    (row,) = running(cluster)
    # At a deadline this kubelet reports the pod as failed before its containers have ended; newer ones report
    # it afterwards. The test cannot write the phase itself: the kubelet would write it back.
    pods.api.patch_pod("late", {"spec": {"activeDeadlineSeconds": 1}})

    def is_of_others() -> bool:
        annotations = cluster.api.node(NODE)["metadata"]["annotations"]
        told: dict[str, Any] = json.loads(annotations["yoyoworks.com/xpu-devices"])
        (device,) = (each for each in told["devices"] if each["uuid"] == row["device_uuid"])
        return uid not in told["reserved"] and bool(device["others"]["memory"] == 15 * GIB)

    until(is_of_others, "its memory is of nobody's pod", explain=lambda: pods.explain("late"))
    assert pods.phase("late") == "Failed"
    pods.create(pod("next", container(limits={MEMORY: 15})))
    pods.wait("next", "Running")
    assert len({each["device_uuid"] for each in running(cluster)}) == 2


def test_an_ephemeral_container_has_no_device_and_takes_nothing(cluster: Cluster, pods: Pods) -> None:
    pods.create(pod("looked-at", container(limits={MEMORY: 4})))
    pods.wait("looked-at", "Running")
    before = cluster.node.json("ps")
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/looked-at/ephemeralcontainers"
    found = pods.api.call("GET", path)
    found["ephemeralContainers"] = [
        {"name": "looker", "image": IMAGE, "command": ["sh", "-c", "ls /dev; exec sleep 1000"]}
    ]
    pods.api.call("PUT", path, found)
    until(
        lambda: "null" in pods.log("looked-at", "looker"),
        "it has listed its devices", explain=lambda: pods.explain("looked-at"),
    )  # fmt: skip
    assert "nvidia" not in pods.log("looked-at", "looker")
    assert cluster.node.json("ps") == before
