"""A node that offers its cards to kubelet and places pods itself: static pods, refusals, restarts."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from support import GIB

from .api import NAMESPACE
from .cluster import NODE, Cluster
from .conftest import Pods
from .daemons import until
from .objects import container, pod
from .services import DevicePlugin

MEMORY, CORES = "yoyoworks.com/xpu-mem", "yoyoworks.com/xpu-cores"


def test_a_static_pod_has_its_amounts_under_the_uid_that_kubelet_gave_it(
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
        # The API's object has another UID.
        mirror = pods.api.pod(f"static-{NODE}")["metadata"]
        assert mirror["annotations"]["kubernetes.io/config.mirror"] != mirror["uid"]
    finally:
        file.unlink()
    until(lambda: cluster.node.json("ps") == [], "it is gone with its file")


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


def test_kubelet_started_again_finds_the_plugin_and_its_pods_as_they_were(
    plugin: DevicePlugin, cluster: Cluster, pods: Pods
) -> None:
    pods.create(pod("before", container(limits={MEMORY: 4})))
    pods.wait("before", "Running")
    (entry,) = cluster.node.json("ps")
    with plugin.registers_again():
        cluster.kubelet.stop(signal.SIGKILL)
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
