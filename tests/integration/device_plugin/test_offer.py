"""The plugin's offer of the node's devices to a kubelet, and its reports to the API server.

The process, with the real ledger and a simulated driver. tests/unit/kubernetes/device_plugin tests its parts,
and tests/kubernetes runs it with a real kubelet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from support.kubernetes_api import ApiServer, Object
from support.stand_in_kubelet import Kubelet, until
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.request import assignment
from xpu_runtime.request.assignment import Assignment, Share
from xpu_simulator import simulator

from .plugin import (
    CORES,
    GIB,
    KEY,
    MAIN,
    MEMORY,
    NODE,
    NODE_PATH,
    SHARES,
    WHOLE,
    Plugin,
    allocations,
    described,
    devices,
    pod,
    taken_by_docker,
)


def _offers(kubelet: Kubelet, resource: str, number: int) -> bool:
    return (kubelet.healthy(resource), kubelet.capacity(resource)) == (number, number)


def test_four_cards_of_15_gib_are_60_units_of_memory_and_400_percent_of_cores(
    plugin: Plugin, kubelet: Kubelet, api_server: ApiServer
) -> None:
    plugin.configure(aliases=["aliyun.com/gpu", "nvidia.com/mps"])
    plugin.start()
    assert until(lambda: described(api_server), "the node is described")["memory_unit"] == GIB
    expected = {
        MEMORY: 60,
        CORES: 400,
        SHARES: 400,
        WHOLE: 4,
        "aliyun.com/gpu-mem": 60,
        "aliyun.com/gpu-core.percentage": 400,
        "nvidia.com/mps-memory": 60,
        "nvidia.com/mps-core": 400,
    }
    for resource, number in expected.items():
        until(partial(_offers, kubelet, resource, number), f"{resource} is {number}")
    told = until(lambda: described(api_server), "the node is described")
    assert [(each["index"], each["memory"], each["cores"]) for each in told["devices"]] == [
        (str(number), 15 * GIB, 100) for number in range(4)
    ]
    assert all(each["healthy"] and not each["why"] for each in told["devices"])
    held = {(each["vendor"], each["memory_strength"], each["cores_strength"]) for each in told["devices"]}
    assert held == {("nvidia", "hard", "soft")}
    labels = api_server.objects[NODE_PATH]["metadata"]["labels"]
    assert {name.partition("xpu.")[2]: value for name, value in labels.items()} == {
        "vendor": "nvidia",
        "product": "Tesla-T4",
        "count": "4",
        "memory": "15360",
        "driver": told["driver"],
        "cuda": labels["yoyoworks.com/xpu.cuda"],
        "mig": "false",
        "memory-strength": "hard",
        "cores-strength": "soft",
    }


def test_a_unit_that_makes_too_long_a_list_is_refused_with_one_that_fits(
    plugin: Plugin, up: Callable[..., simulator.SimState]
) -> None:
    simulator.down()
    up("8xA100-80GB")
    plugin.configure(memory_unit="1MiB")
    assert plugin.refused().splitlines()[-1] == (
        "xpu: kubernetes.memory_unit: 1MiB: the list of yoyoworks.com/xpu-mem has 18 MiB with it, and the "
        "kubelet accepts 4 MiB: a unit that fits this node is 8MiB"
    )
    plugin.configure(memory_unit="8MiB")
    plugin.start(offers=8 * 80 * 128)


def test_dockers_slices_are_not_offered_and_the_node_says_so(
    plugin: Plugin, kubelet: Kubelet, api_server: ApiServer
) -> None:
    plugin.start()
    first = devices()[0]
    grant = taken_by_docker(first, 4, 30)
    until(lambda: kubelet.healthy(MEMORY) == 56, "4 GiB are not offered")
    until(lambda: kubelet.healthy(CORES) == 370, "30 % are not offered")
    until(lambda: kubelet.healthy(WHOLE) == 3, "the card is not offered as a whole")
    until(lambda: kubelet.healthy(SHARES) == 300 + 70, "shares are of both")
    until(lambda: described(api_server)["devices"][0]["others"]["memory"] == 4 * GIB, "the node says so")
    assert described(api_server)["devices"][0]["others"] == {"memory": 4 * GIB, "cores": 30, "whole": False}
    assert kubelet.capacity(MEMORY) == 60
    with PodLedger() as ledger:
        ledger.release([grant])
    until(lambda: (kubelet.healthy(MEMORY), kubelet.healthy(WHOLE)) == (60, 4), "it is offered again")


def assigned(uid: str, uuid: str, gib: int) -> dict[str, str]:
    """Annotations of a pod that the scheduler extender has placed."""
    made = Assignment(uid, NODE, time.time(), {"main": (Share(uuid, gib * GIB, None),)})
    return {assignment.ANNOTATION: assignment.sign(made, *KEY)}


def test_a_card_that_is_lost_is_unhealthy_in_the_status_of_its_pods_alone_and_recovers(
    plugin: Plugin, kubelet: Kubelet, up: Callable[..., simulator.SimState]
) -> None:
    simulator.down()
    well: Object = {"gpus": [{"model": "T4"} for _ in range(4)]}
    lost: Object = {"gpus": [{"model": "T4"} for _ in range(3)]}
    lost["gpus"].insert(
        1, {"model": "T4", "fail": {"nvmlDeviceGetHandleByIndex_v2": "NVML_ERROR_GPU_IS_LOST"}}
    )
    up(well)
    second = devices()[1]
    plugin.configure(placement="extender")
    plugin.start()
    # Cards of one size, bound in another order than the kubelet allocates them.
    cards = dict(zip("abcdefgh", [*devices(), *devices()], strict=True))
    for name, uuid in cards.items():
        pod(plugin.api, name, {MEMORY: "4"}, uid=f"u-{name}", annotations=assigned(f"u-{name}", uuid, 4))
    until(lambda: len(allocations()) == 8, "all are reserved")
    for name in "hcafgebd":
        kubelet.allocate(name, MEMORY, 4)
        kubelet.pre_start(name, MEMORY)
    simulator.down()
    up(lost)

    def sick() -> set[str]:
        """The pods with an unhealthy ID."""
        return {name for name in cards if "Unhealthy" in kubelet.resource_status(name)[MEMORY].values()}

    until(lambda: sick() == {"b", "f"}, "the pods of the second card know, and no others")
    assert set(kubelet.resource_status("b")[MEMORY].values()) == {"Unhealthy"}
    until(lambda: kubelet.healthy(MEMORY) == 45, "one card is not offered")
    assert kubelet.capacity(MEMORY) == 60
    told_ids = {each for name in cards for each in kubelet.resource_status(name)[MEMORY]}
    assert not [each for each in told_ids for uuid in cards.values() if uuid in each]
    until(lambda: described(plugin.api)["devices"][1]["why"], "the node says why")
    told = described(plugin.api)["devices"][1]
    assert (told["uuid"], told["healthy"], told["memory"]) == (second, False, 15 * GIB)
    simulator.down()
    up(well)
    until(lambda: kubelet.healthy(MEMORY) == 60, "it has recovered")
    until(lambda: sick() == set(), "its pods know")


def test_neither_a_plugin_nor_a_kubelet_that_starts_has_a_look_waited_for(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    """Until then the kubelet fails each pod that comes."""
    slow = "offering._LOOK_S = plugin._KUBELET_S = 60.0"
    plugin.code = MAIN.replace(
        "; ", f"; from xpu_runtime.kubernetes.device_plugin import offering, plugin; {slow}; "
    )
    plugin.start()
    kubelet.stop()
    kubelet.devices.clear()
    kubelet.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered again")
