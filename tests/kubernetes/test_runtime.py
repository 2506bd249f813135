"""A pod of the runtime class, from the API server to its container, without plugin and extender."""

from __future__ import annotations

from support import GIB
from support.engine_table import tried

from .cluster import Cluster
from .conftest import Pods
from .objects import container, pod


@tried("cri")
def test_a_pod_of_the_runtime_class_gets_the_slice_that_its_variable_asks_for(pods: Pods) -> None:
    pods.create(pod("slice", container("cuda-probe", "info", env={"XPU_MEM": "4G"})))
    pods.wait("slice", "Succeeded")
    assert "of 4096 MiB" in pods.log("slice")


def test_a_pods_annotation_asks_for_each_of_its_containers(pods: Pods, cluster: Cluster) -> None:
    both = [container(name=name) for name in ("one", "two")]
    pods.create(pod("both", *both, annotations={"yoyoworks.com/xpu-mem": "3G"}))
    pods.wait("both", "Running")
    assert [entry["memory_bytes"] for entry in cluster.node.json("ps")] == [3 * GIB, 3 * GIB]


def test_a_refusal_stands_whole_in_the_pods_status(pods: Pods) -> None:
    pods.create(pod("large", container(env={"XPU_MEM": "16G"})))
    found = pods.wait("large", "Failed")
    (status,) = found["status"]["containerStatuses"]
    assert "xpu: refused: no device has 16G of memory" in status["state"]["terminated"]["message"]
