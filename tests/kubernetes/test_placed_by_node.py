"""A node that offers its cards to kubelet and places pods itself: what they get, and who is told of no."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from typing import Any

import pytest

from support import GIB

from .api import NAMESPACE
from .cluster import NODE, Cluster
from .conftest import Pods
from .daemons import until
from .objects import container, pod
from .services import DevicePlugin

MEMORY, CORES, SHARES, WHOLE = (f"yoyoworks.com/xpu{kind}" for kind in ("-mem", "-cores", "-shares", ""))


def allocatable(cluster: Cluster, name: str) -> int:
    return int(cluster.api.node(NODE)["status"]["allocatable"].get(name, 0))


def test_four_cards_of_15_gib_are_60_of_memory_and_400_of_cores(
    plugin: DevicePlugin, cluster: Cluster
) -> None:
    wanted = {
        MEMORY: 60, CORES: 400, SHARES: 400, WHOLE: 4,
        "aliyun.com/gpu-mem": 60, "aliyun.com/gpu-core.percentage": 400,
    }  # fmt: skip
    for key, number in wanted.items():
        assert (key, allocatable(cluster, key)) == (key, number)


@pytest.mark.parametrize("names", [(MEMORY, CORES), (CORES, MEMORY)])
def test_memory_and_cores_of_one_container_are_one_slice_in_whichever_order(
    plugin: DevicePlugin, cluster: Cluster, pods: Pods, names: tuple[str, str]
) -> None:
    amounts = {MEMORY: 4, CORES: 30}
    pods.create(
        pod(
            "slice",
            container(
                "sh", "-c", "cuda-probe info; exec sleep 1000", limits={name: amounts[name] for name in names}
            ),
        )
    )
    pods.wait("slice", "Running")
    (entry,) = cluster.node.json("ps")
    assert (entry["memory_bytes"], entry["cores"]) == (4 * GIB, 30)
    until(lambda: "of 4096 MiB" in pods.log("slice"), "it has seen its slice")


def test_each_of_a_pods_containers_has_its_own_amounts(
    plugin: DevicePlugin, cluster: Cluster, pods: Pods
) -> None:
    some = container(name="some", limits={MEMORY: 2})
    more = container(name="more", limits={MEMORY: 5, CORES: 50})
    none = container("sh", "-c", "ls /dev; exec sleep 1000", name="none")
    pods.create(pod("several", some, more, none))
    pods.wait("several", "Running")
    found = sorted((entry["memory_bytes"], entry["cores"]) for entry in cluster.node.json("ps"))
    assert found == [(2 * GIB, None), (5 * GIB, 50)]
    until(lambda: "null" in pods.log("several", "none"), "the third has listed its devices")
    assert "nvidia" not in pods.log("several", "none")


def said_by_node(cluster: Cluster) -> dict[str, str]:
    """The annotations of the node."""
    found: dict[str, str] = cluster.api.node(NODE)["metadata"]["annotations"]
    return found


def refusal(pods: Pods, name: str) -> str:
    """Why a pod's container was not started, as `kubectl describe` shows it."""
    found = pods.wait(name, "Failed")
    (status,) = found["status"]["containerStatuses"]
    return str(status["state"]["terminated"]["message"])


def test_a_pod_of_kubelets_own_folder_has_its_amounts_under_the_uid_that_kubelet_gave_it(
    plugin: DevicePlugin, cluster: Cluster, pods: Pods
) -> None:
    static = pod("static", container(limits={MEMORY: 5, CORES: 40}))
    static["metadata"]["namespace"] = NAMESPACE
    file = cluster.static_pods / "static.json"
    file.write_text(json.dumps(static))
    try:
        until(lambda: [row["pid"] for row in cluster.node.json("ps") if row["pid"]], "it runs")
        (row,) = cluster.node.json("ps")
        assert (row["memory_bytes"], row["cores"]) == (5 * GIB, 40)
        # The API's object of it has a UID of its own.
        mirror = pods.api.pod(f"static-{NODE}")["metadata"]
        assert mirror["annotations"]["kubernetes.io/config.mirror"] != mirror["uid"]
    finally:
        file.unlink()
    until(lambda: cluster.node.json("ps") == [], "it is gone with its file")


def test_no_pod_has_another_one_ask_for_it_as_if_it_were_static(
    plugin: DevicePlugin, cluster: Cluster, pods: Pods
) -> None:
    waits = container("sleep", "4", name="waits")
    pods.create(pod("thief", container(env={"XPU_CAPABILITIES": "compute"}), initContainers=[waits]))
    uid = pods.api.pod("thief")["metadata"]["uid"]
    reserved: set[str] = set()
    # kubelet deletes them as soon as it has seen them.
    for number in itertools.count():
        if pods.phase("thief") != "Pending":
            break
        asks, mirror = container(limits={MEMORY: 15}), {"kubernetes.io/config.mirror": uid}
        pods.create(pod(f"mirror-{number}", asks, annotations=mirror, nodeName=NODE))
        time.sleep(0.5)
        reserved.update(json.loads(said_by_node(cluster)["yoyoworks.com/xpu-devices"])["reserved"])
    assert "nothing is reserved on this node for container main of pod" in refusal(pods, "thief")
    assert uid not in reserved


@pytest.mark.parametrize("variable", ["XPU_MEM", "XPU_VISIBLE_DEVICES"])
def test_who_asks_by_a_variable_alone_is_refused_and_told_of_limits(
    plugin: DevicePlugin, cluster: Cluster, pods: Pods, variable: str
) -> None:
    value = "4G" if variable == "XPU_MEM" else "all"
    pods.create(pod("sly", container(env={variable: value})))
    assert "resources.limits" in refusal(pods, "sly")
    assert cluster.node.json("ps") == []


def test_a_pod_without_the_runtime_class_is_refused_and_told_which_line_it_lacks(
    plugin: DevicePlugin, cluster: Cluster, pods: Pods
) -> None:
    pods.create(pod("classless", container(limits={MEMORY: 4}), runtimeClassName=None))
    pods.wait_for_reason("classless", "XPURefused: the pod asks for yoyoworks.com/xpu-mem and has no runtime")
    assert "add runtimeClassName: xpu" in pods.reasons("classless")

    def waiting() -> dict[str, Any]:
        (status,) = pods.api.pod("classless")["status"].get("containerStatuses") or [{}]
        found: dict[str, Any] = status.get("state", {}).get("waiting", {})
        return found

    until(lambda: "add runtimeClassName: xpu" in waiting().get("message", ""), "its status says it, too")
    assert "XPUReserved" not in pods.reasons("classless")
    assert cluster.node.json("ps") == []


def test_a_variable_besides_limits_cannot_change_the_amount(plugin: DevicePlugin, pods: Pods) -> None:
    pods.create(pod("sly", container(env={"XPU_MEM": "14G"}, limits={MEMORY: 1})))
    assert "XPU_MEM" in refusal(pods, "sly")


def test_a_container_that_ends_and_starts_again_finds_its_slice_although_all_others_are_taken(
    plugin: DevicePlugin, cluster: Cluster, pods: Pods
) -> None:
    pods.create(pod("again", container(limits={MEMORY: 15}), restartPolicy="Always"))
    pods.wait("again", "Running")
    (before,) = cluster.node.json("ps")
    for name in ("two", "three", "four"):
        pods.create(pod(name, container(limits={MEMORY: 15})))
        pods.wait(name, "Running")
    os.kill(before["pid"], signal.SIGKILL)

    def now() -> dict[str, Any]:
        found: dict[str, Any] = pods.api.pod("again")["status"]["containerStatuses"][0]
        return found

    until(lambda: now()["restartCount"] == 1 and "running" in now()["state"], "it runs again")
    (entry,) = (each for each in cluster.node.json("ps") if each["device_uuid"] == before["device_uuid"])
    assert entry["pid"] != before["pid"] and entry["memory_bytes"] == 15 * GIB


def test_what_is_no_pods_is_not_offered(plugin: DevicePlugin, cluster: Cluster, pods: Pods) -> None:
    words = [
        "run",
        "--detach",
        "--net-host",
        "--runc-binary",
        str(cluster.node.runtime),
        "--env",
        "XPU_MEM=10G",
    ]
    cluster.ctr(*words, "test.invalid/xpu-test:1", "foreign", "sleep", "1000")
    try:
        until(lambda: allocatable(cluster, MEMORY) == 50, "kubelet knows of 50 GiB")
    finally:
        cluster.ctr("task", "delete", "--force", "foreign")
        cluster.ctr("container", "delete", "foreign")
    until(lambda: allocatable(cluster, MEMORY) == 60, "kubelet knows of 60 GiB")


def test_a_card_that_is_lost_is_offered_again_when_it_is_back(
    plugin: DevicePlugin, cluster: Cluster, pods: Pods
) -> None:
    cluster.change_cards([True, False, True, True])
    try:
        until(lambda: allocatable(cluster, MEMORY) == 45, "kubelet knows of 45 GiB")
        assert allocatable(cluster, WHOLE) == 3
        for name in ("one", "two", "three", "four"):
            pods.create(pod(name, container(limits={MEMORY: 15})))
        until(lambda: len(pods.bound()) == 3, "three have a card")
        (waiting,) = {"one", "two", "three", "four"} - {each["metadata"]["name"] for each in pods.bound()}
        pods.wait_for_reason(waiting, "Insufficient")
    finally:
        pods.delete_all()
        until(lambda: cluster.node.json("ps") == [], "the cards are unused")
        cluster.change_cards([True] * 4)
    until(lambda: allocatable(cluster, MEMORY) == 60, "kubelet knows of 60 GiB")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_kubelet_started_again_finds_the_plugin_and_its_pods_as_they_were(
    plugin: DevicePlugin, cluster: Cluster, pods: Pods, number: int
) -> None:
    pods.create(pod("before", container(limits={MEMORY: 4})))
    pods.wait("before", "Running")
    (entry,) = cluster.node.json("ps")
    with plugin.registers_again():
        cluster.kubelet.stop(number)
        cluster.kubelet.start()
    pods.create(pod("after", container(limits={MEMORY: 6, CORES: 20})))
    pods.wait("after", "Running")
    assert entry in cluster.node.json("ps")
    assert sorted(each["memory_bytes"] for each in cluster.node.json("ps")) == [4 * GIB, 6 * GIB]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_plugin_started_again_leaves_pods_as_they_are_and_serves_the_next(
    plugin: DevicePlugin, cluster: Cluster, pods: Pods, number: int
) -> None:
    pods.create(pod("before", container(limits={MEMORY: 9})))
    pods.wait("before", "Running")
    (entry,) = cluster.node.json("ps")
    with plugin.registers_again():
        plugin.daemon.stop(number)
        assert cluster.node.json("ps") == [entry]
        plugin.daemon.start()
    pods.create(pod("after", container(limits={MEMORY: 9})))
    pods.wait("after", "Running")
    found = cluster.node.json("ps")
    assert entry in found
    assert len({each["device_uuid"] for each in found}) == 2
