"""The plugin's reservations for pods before the kubelet starts their containers, also during outages."""

from __future__ import annotations

import threading
from pathlib import Path

import grpc
import pytest

from support.stand_in_kubelet import Kubelet, until
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.linux import files

from .plugin import CORES, GIB, MEMORY, WHOLE, Plugin, allocations, devices, events, pod, taken_by_docker


def test_a_pod_has_its_place_in_the_ledger_before_its_container_starts(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.start()
    made = pod(plugin.api, "a", {MEMORY: "4", CORES: "30"})
    assert kubelet.allocate("a", MEMORY, 4) == {"XPU_KUBERNETES": "allocated"}
    kubelet.allocate("a", CORES, 30)
    kubelet.pre_start("a", CORES)
    (allocation,) = allocations().values()
    assert allocation.uid == made["metadata"]["uid"]
    ((share,),) = allocation.containers.values()
    assert (share.memory_bytes, share.cores) == (4 * GIB, 30)
    until(lambda: events(plugin.api, "a"), "the pod says what it has")
    assert events(plugin.api, "a") == [("XPUReserved", "main: 4 GiB of GPU 0 and 30% of its cores")]
    # The plugin does not subtract the pods' own amounts: the scheduler does.
    until(lambda: kubelet.healthy(WHOLE) == 3, "the card is no whole one any more")
    assert (kubelet.healthy(MEMORY), kubelet.healthy(CORES)) == (60, 400)
    plugin.api.delete("/api/v1/namespaces/default/pods/a")
    kubelet.remove("a")
    until(lambda: not allocations(), "it is free again")
    until(lambda: kubelet.healthy(WHOLE) == 4, "the card is whole again")


def test_a_pod_that_does_not_fit_is_refused_with_figures_and_reserved_when_it_fits(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.start()
    grants = [taken_by_docker(uuid, 10) for uuid in devices()]
    pod(plugin.api, "a", {MEMORY: "10"})
    until(lambda: events(plugin.api, "a"), "the pod says why")
    ((reason, message),) = events(plugin.api, "a")
    assert reason == "XPURefused"
    figures = "GPU 0-3: 5 GiB free, 10 GiB requested"
    assert f"container main: no device has 10 GiB of memory free ({figures})" in message
    assert message.endswith("; the nearest request that fits now: yoyoworks.com/xpu-mem: 5")
    # The kubelet must not fail the pod for good: it may start once there is room.
    until(lambda: kubelet.healthy(MEMORY) == 20, "the rest is not offered")
    kubelet.allocate("a", MEMORY, 10)
    with pytest.raises(grpc.RpcError) as refused:
        kubelet.pre_start("a", MEMORY)
    assert isinstance(refused.value, grpc.Call)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "5 GiB free, 10 GiB requested" in str(refused.value.details())
    with PodLedger() as ledger:
        ledger.release(grants[:1])
    kubelet.pre_start("a", MEMORY)
    assert allocations()["a"].containers["main"][0].device_uuid == devices()[0]


def test_while_the_api_server_is_away_pods_that_it_told_of_can_start(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.start()
    pod(plugin.api, "a", {MEMORY: "4"})
    until(allocations, "it is reserved")
    plugin.api.down()
    kubelet.allocate("a", MEMORY, 4)
    kubelet.pre_start("a", MEMORY)
    assert plugin.stop() == 0
    kubelet.devices.clear()
    plugin.start()
    # The ledger knows it still.
    kubelet.pre_start("a", MEMORY)
    assert len(allocations()) == 1
    # An unreported pod waits until the API server can be asked.
    pod(plugin.api, "b", {MEMORY: "4"})
    kubelet.allocate("b", MEMORY, 4)
    timer = threading.Timer(1, plugin.api.up)
    timer.start()
    kubelet.pre_start("b", MEMORY)
    timer.join()
    assert set(allocations()) == {"a", "b"}


def test_a_ledger_that_is_locked_is_waited_for(plugin: Plugin, kubelet: Kubelet, run_dir: Path) -> None:
    plugin.start()
    with files.Lock(str(run_dir / "ledger.db.lock")):
        pod(plugin.api, "a", {MEMORY: "4"})
        kubelet.allocate("a", MEMORY, 4)
        start = threading.Thread(target=kubelet.pre_start, args=("a", MEMORY))
        start.start()
        kubelet.registered.clear()
        kubelet.endpoint(CORES).path.unlink()
        until(lambda: CORES in kubelet.registered, "the rest goes on")
        start.join(0.5)
        assert start.is_alive()
    start.join(30)
    assert allocations()
