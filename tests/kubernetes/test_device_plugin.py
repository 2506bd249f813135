"""`xpu kubernetes device-plugin` as a process, before a kubelet and an API server of the tests' own.

Both speak the real protocols; the ledger, the drivers' simulation and everything between are the real ones.
What the real kubelet and API server make of it is tested beside this file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.containerd_files import configured
from support.kubernetes_api import ApiServer, Object
from support.stand_in_kubelet import Kubelet, needed, until
from xpu_runtime.config.defaults import Config
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.grants import Grant, Holding, Slice, Use
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.linux import files, proc
from xpu_runtime.request import assignment
from xpu_runtime.request.assignment import Assignment, Share
from xpu_runtime.vendors import discovery, marks
from xpu_simulator import simulator

GIB = 1 << 30
MEMORY, CORES, SHARES, WHOLE = (f"yoyoworks.com/xpu{each}" for each in ("-mem", "-cores", "-shares", ""))
NODE = "n1"
NODE_PATH = f"/api/v1/nodes/{NODE}"
KEY = "k1", bytes(range(32))
_MAIN = "from xpu_runtime.cli.main import main; main()"


class Plugin:
    """The process, started and ended by the test."""

    def __init__(self, folder: Path, installed: Path, kubelet: Kubelet, api: ApiServer) -> None:
        library = installed / "lib" / "xpu-container-runtime"
        self.environ = {**os.environ, "PYTHONPATH": f"{library}/python:{library}/vendor"}
        self.log_file = folder / "log"
        self.config = folder / "config.yaml"
        self.environ["XPU_CONFIG"] = str(self.config)
        #: Not there, until a test writes it.
        self.containerd = folder / "containerd.toml"
        self.kubelet, self.api = kubelet, api
        self._kubeconfig = folder / "kubeconfig"
        self.keys = folder / "keys"
        self.keys.write_text(f"{KEY[0]} {KEY[1].hex()}\n")
        context = {"name": "c", "context": {"cluster": "k"}}
        cluster = {"name": "k", "cluster": {"server": api.url}}
        self._kubeconfig.write_text(
            json.dumps({"current-context": "c", "contexts": [context], "clusters": [cluster]})
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.code = _MAIN
        self.configure()

    def configure(self, **kubernetes: Any) -> None:
        keys = {"keys": str(self.keys), **kubernetes}
        self.config.write_text(json.dumps({"kubernetes": keys}))

    def command(self, *options: str) -> list[str]:
        where = ("--plugins", str(self.kubelet.plugins), "--pod-resources", str(self.kubelet.pod_resources))
        how = ("--node-name", NODE, "--kubeconfig", str(self._kubeconfig), "--health-every", "1")
        engine = ("--containerd-config", str(self.containerd))
        words = ("kubernetes", "device-plugin", *where, *how, *engine, *options)
        return [sys.executable, "-c", self.code, *words]

    def start(self, *options: str) -> None:
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(self.command(*options), env=self.environ, stderr=log)
        needed[self.process] = self.log_file

    def may_end(self) -> None:
        """It ends by itself: what is waited for then does not need it."""
        assert self.process is not None
        needed.pop(self.process)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.may_end()
        self.process.send_signal(number)
        status = self.process.wait(30)
        self.process = None
        return status

    def log(self) -> str:
        return self.log_file.read_text()


@pytest.fixture
def plugin(
    tmp_path: Path,
    installed: Path,
    run_dir: Path,
    kubelet: Kubelet,
    api_server: ApiServer,
    up: Callable[..., simulator.SimState],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Plugin]:
    """Not started; with four T4 on the node, and a Node object."""
    up("4xT4")
    # Without NVML's binding there are none, and each test would wait for them.
    assert len(devices()) == 4
    api_server.put(NODE_PATH, {"kind": "Node"})
    found = Plugin(tmp_path, installed, kubelet, api_server)
    monkeypatch.setenv("XPU_CONFIG", str(found.config))
    yield found
    if found.process is not None:
        needed.pop(found.process, None)
        found.process.kill()
        found.process.wait()


def pod(
    api: ApiServer,
    name: str,
    limits: Object,
    *,
    bound: bool = True,
    sidecar: Object | None = None,
    init: Object | None = None,
    runtime_class: str | None = "xpu",
    **meta: Any,
) -> Object:
    """A pod with one container, on our node; a sidecar and an init container, where they are to have some."""
    spec: Object = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    if runtime_class is not None:
        spec["runtimeClassName"] = runtime_class
    before: list[Object] = [
        {"name": name, "resources": {"limits": amounts}, **more}
        for name, amounts, more in (("side", sidecar, {"restartPolicy": "Always"}), ("init", init, {}))
        if amounts is not None
    ]
    if before:
        spec["initContainers"] = before
    if bound:
        spec["nodeName"] = NODE
    body = {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}
    return api.put(f"/api/v1/namespaces/default/pods/{name}", body)


def allocations() -> dict[str, Allocation]:
    with PodLedger() as ledger:
        return {each.pod: each for each in ledger.allocations()}


def uses() -> dict[str, Use]:
    with PodLedger() as ledger:
        return ledger.uses()


def devices() -> list[str]:
    """Their UUIDs, in their order."""
    return [each.uuid for each in discovery.refresh(*discovery.driver_root(Config())).devices]


def events(api: ApiServer, name: str) -> list[tuple[str, str]]:
    found = api.under("/api/v1/namespaces/default/events")
    return [(each["reason"], each["message"]) for each in found if each["involvedObject"]["name"] == name]


def described(api: ApiServer) -> Object:
    """The node's annotation."""
    annotations = api.objects[NODE_PATH]["metadata"].get("annotations") or {}
    found: Object = json.loads(annotations.get("yoyoworks.com/xpu-devices", "{}"))
    return found


def devices_of(api: ApiServer) -> list[str]:
    """The UUIDs that the node's annotation has."""
    return [each["uuid"] for each in described(api)["devices"]]


def taken_by_docker(uuid: str, gib: int, cores: int | None = None, pid: int | None = None) -> Grant:
    """A grant of a container that is no pod's: process `pid`, or this one."""
    pid = pid or os.getpid()
    started = proc.start_time(pid) or 0
    slice_ = Slice("0", uuid, gib * GIB, True, cores, Holding("none", "unenforced"))
    bundle = f"/bundles/{uuid}"
    wanted = Grant(0, uuid[-12:], bundle, pid, started, "", "running", "hook", 0.0, ())
    with PodLedger() as ledger:
        granted, _ = ledger.grant(wanted, lambda _: (slice_,))
    assert granted is not None
    return granted


def _offers(kubelet: Kubelet, resource: str, number: int) -> bool:
    return (kubelet.healthy(resource), kubelet.capacity(resource)) == (number, number)


# What is offered


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


def test_mig_devices_are_offered_each_by_itself(
    plugin: Plugin, kubelet: Kubelet, api_server: ApiServer, up: Callable[..., simulator.SimState]
) -> None:
    simulator.down()
    up("2xA100-MIG")
    plugin.start()
    told = until(lambda: described(api_server), "the node is described")
    assert all(":" in each["index"] for each in told["devices"])
    number = len(told["devices"])
    memory = sum(each["memory"] // GIB for each in told["devices"])
    until(lambda: kubelet.healthy(WHOLE) == number, "each is offered")
    until(lambda: kubelet.healthy(MEMORY) == memory, "with its memory")
    until(lambda: kubelet.healthy(CORES) == 100 * number, "and with cores of its own")
    assert api_server.objects[NODE_PATH]["metadata"]["labels"]["yoyoworks.com/xpu.mig"] == "true"


def test_a_unit_that_makes_too_long_a_list_is_refused_with_one_that_fits(
    plugin: Plugin, up: Callable[..., simulator.SimState]
) -> None:
    simulator.down()
    up("8xA100-80GB")
    plugin.configure(memory_unit="1MiB")
    done = subprocess.run(plugin.command(), env=plugin.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "xpu: kubernetes.memory_unit: 1MiB: the list of yoyoworks.com/xpu-mem has 18 MiB with it, and the "
        "kubelet takes 4 MiB: a unit that fits this node is 8MiB"
    )
    plugin.configure(memory_unit="8MiB")
    plugin.start()
    until(lambda: plugin.kubelet.healthy(MEMORY) == 8 * 80 * 128, "that fits")


def test_what_docker_has_is_not_offered_and_the_node_says_so(
    plugin: Plugin, kubelet: Kubelet, api_server: ApiServer
) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
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


def test_the_node_says_which_keys_it_verifies_with(
    plugin: Plugin, kubelet: Kubelet, api_server: ApiServer
) -> None:
    plugin.start()
    until(lambda: described(api_server).get("keys") == [KEY[0]], "the node says which key it has")

    plugin.keys.write_text(f"{plugin.keys.read_text()}new {'ab' * 32}\n")

    until(lambda: described(api_server)["keys"] == [KEY[0], "new"], "the node says that it has a new one")


def test_what_a_dead_container_holds_is_taken_back_and_offered(plugin: Plugin, kubelet: Kubelet) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    with subprocess.Popen(["sleep", "infinity"]) as container:
        taken_by_docker(devices()[0], 4, pid=container.pid)
        until(lambda: kubelet.healthy(MEMORY) == 56, "4 GiB are not offered")
        container.kill()
    until(lambda: kubelet.healthy(MEMORY) == 60, "they are offered again")
    with PodLedger() as ledger:
        assert ledger.grants() == []


def test_a_drained_card_is_not_offered_until_it_is_undrained(plugin: Plugin, kubelet: Kubelet) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    first = devices()[0]
    kubelet.allocate("a", MEMORY, 2)
    marks.drain(first, "a fan is loud")
    until(lambda: kubelet.healthy(CORES) == 300, "its cores are not offered")
    until(lambda: described(plugin.api)["devices"][0]["why"] == "drained: a fan is loud", "the node says so")
    marks.remove(marks.DRAINED, first)
    until(lambda: kubelet.healthy(CORES) == 400, "they are again")


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
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    # Of one size, and bound in another order than the kubelet comes to them.
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
        """The pods that are told by an ID that it is not healthy."""
        return {name for name in cards if "Unhealthy" in kubelet.resource_status(name)[MEMORY].values()}

    until(lambda: sick() == {"b", "f"}, "the pods of the second card know, and no others")
    assert set(kubelet.resource_status("b")[MEMORY].values()) == {"Unhealthy"}
    until(lambda: kubelet.healthy(MEMORY) == 45, "one card is not offered")
    assert kubelet.capacity(MEMORY) == 60
    told_ids = {each for name in cards for each in kubelet.resource_status(name)[MEMORY]}
    assert not [each for each in told_ids for uuid in devices_of(plugin.api) if uuid in each]
    until(lambda: described(plugin.api)["devices"][1]["why"], "the node says why")
    told = described(plugin.api)["devices"][1]
    assert (told["uuid"], told["healthy"], told["memory"]) == (second, False, 15 * GIB)
    simulator.down()
    up(well)
    until(lambda: kubelet.healthy(MEMORY) == 60, "it has recovered")
    until(lambda: sick() == set(), "its pods know")


def test_a_driver_that_hangs_makes_all_unhealthy_and_nothing_else_hang(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.start("--health-timeout", "2")
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    daemons = _daemons()
    for each in daemons:
        os.kill(each, signal.SIGSTOP)
    try:
        until(lambda: kubelet.healthy(MEMORY) == 0, "nothing is offered")
        assert "the driver does not answer: it did not end within 2 s" in plugin.log()
        kubelet.stop()
        kubelet.registered.clear()
        kubelet.start()
        until(lambda: set(kubelet.registered) >= {MEMORY, CORES}, "it is registered again all the same")
    finally:
        for each in daemons:
            os.kill(each, signal.SIGCONT)
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered again")


def _daemons() -> list[int]:
    """The simulated driver's processes of this test's run folder."""
    folder = os.environ["XPU_RUN_DIR"]
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"xpu-sim-driver" in words[0] and any(word.startswith(folder.encode()) for word in words):
            found.append(int(each.parent.name))
    assert found
    return found


# The kubelet


def test_a_kubelet_that_starts_again_knows_the_plugin_again(plugin: Plugin, kubelet: Kubelet) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    pod(plugin.api, "a", {MEMORY: "4"})
    kubelet.allocate("a", MEMORY, 4)
    kubelet.pre_start("a", MEMORY)
    before = allocations()
    kubelet.stop()
    kubelet.registered.clear()
    kubelet.devices.clear()
    kubelet.start()
    until(lambda: {MEMORY, CORES, SHARES, WHOLE} <= set(kubelet.registered), "it is registered again")
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered again")
    assert allocations() == before


@pytest.mark.parametrize("ends_by_name", [False, True], ids=["1.20", "1.25"])
def test_a_socket_that_is_removed_is_made_again(plugin: Plugin, kubelet: Kubelet, ends_by_name: bool) -> None:
    kubelet.ends_by_name = ends_by_name
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    path = kubelet.endpoint(MEMORY).path
    path.unlink()
    until(lambda: kubelet.endpoint(MEMORY).path != path, "there is another one")
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered again")
    kubelet.allocate("a", MEMORY, 4)
    assert kubelet.registered.count(MEMORY) == 2  # another one would cost seconds


def test_what_the_kubelet_has_dropped_is_registered_again(plugin: Plugin, kubelet: Kubelet) -> None:
    """As when another plugin has offered the same, and has ended."""
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    kubelet.endpoint(MEMORY).close()
    until(lambda: kubelet.healthy(MEMORY) == 0, "the kubelet has dropped it")
    until(lambda: kubelet.healthy(MEMORY) == 60, "it is offered again")
    assert kubelet.registered.count(MEMORY) == 2
    assert f"the kubelet has dropped {MEMORY}" in plugin.log()


def test_a_plugin_beside_which_another_could_run_ends(
    plugin: Plugin, kubelet: Kubelet, run_dir: Path
) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    plugin.may_end()
    (run_dir / "kubernetes.lock").unlink()
    until(lambda: "the lock of the node's one device plugin was removed" in plugin.log(), "it ends")
    until(lambda: kubelet.healthy(MEMORY) == 0, "it has ended")


def test_no_kubelet_is_waited_for(plugin: Plugin, kubelet: Kubelet) -> None:
    kubelet.stop()
    plugin.start()
    until(lambda: "there is no kubelet" in plugin.log(), "it says so")
    kubelet.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")


def test_a_plugin_that_starts_is_offered_as_soon_as_the_drivers_have_told(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    """Until then the kubelet fails each pod that comes: no look may be waited for."""
    plugin.code = _with_looks_a_minute_apart()
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")


def test_a_kubelet_that_starts_again_has_the_plugin_without_a_look_that_is_waited_for(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.code = _with_looks_a_minute_apart()
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    kubelet.stop()
    kubelet.devices.clear()
    kubelet.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered again")


def _with_looks_a_minute_apart() -> str:
    slow = "offering._LOOK_S = plugin._KUBELET_S = 60.0"
    return _MAIN.replace(
        "; ", f"; from xpu_runtime.kubernetes.device_plugin import offering, plugin; {slow}; "
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_plugin_that_starts_again_leaves_pods_as_they_are(
    plugin: Plugin, kubelet: Kubelet, number: int
) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    pod(plugin.api, "a", {MEMORY: "4"})
    kubelet.allocate("a", MEMORY, 4)
    kubelet.pre_start("a", MEMORY)
    before = allocations()
    assert plugin.stop(number) == (0 if number == signal.SIGTERM else -number)
    until(lambda: kubelet.healthy(MEMORY) == 0, "the kubelet sees that it is gone")
    if number == signal.SIGTERM:
        assert [each.name for each in kubelet.plugins.iterdir()] == ["kubelet.sock"]
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered again")
    kubelet.pre_start("a", MEMORY)
    assert allocations() == before
    assert len(list(kubelet.plugins.iterdir())) == 5


def test_a_pod_keeps_the_ids_that_an_earlier_build_gave_it_until_it_ends(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    """They named cards. A kubelet that starts again fails a pod whose IDs are in no list."""
    before = [f"{devices()[3]}::{number}" for number in range(4)]
    pod(plugin.api, "a", {MEMORY: "4"})
    kubelet.given["default", "a", "main", MEMORY] = before
    plugin.start()
    until(lambda: set(before) <= kubelet.devices.get(MEMORY, {}).keys(), "they are in the list")
    until(lambda: (kubelet.healthy(MEMORY), kubelet.capacity(MEMORY)) == (60, 60), "the number is the same")
    kubelet.pre_start("a", MEMORY)
    pod(plugin.api, "b", {MEMORY: "11"})
    kubelet.allocate("b", MEMORY, 11)
    kubelet.pre_start("b", MEMORY)
    plugin.api.delete("/api/v1/namespaces/default/pods/a")
    kubelet.remove("a")
    until(lambda: not [each for each in kubelet.devices[MEMORY] if "::" in each], "they are gone with it")
    assert kubelet.capacity(MEMORY) == 60


def test_two_plugins_on_a_node_are_one_too_many(plugin: Plugin, kubelet: Kubelet) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "the first one runs")
    plugin.code = _MAIN.replace(
        "; ", "; from xpu_runtime.cli.kubernetes import device_plugin as p; p._EARLIER_S = 1; "
    )
    done = subprocess.run(plugin.command(), env=plugin.environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "another device plugin runs on this node" in done.stderr) == (1, True)


# Pods


def test_a_pod_has_its_place_in_the_ledger_before_its_container_starts(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
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
    # What pods have is no less for other pods: the scheduler subtracts it.
    until(lambda: kubelet.healthy(WHOLE) == 3, "the card is no whole one any more")
    assert (kubelet.healthy(MEMORY), kubelet.healthy(CORES)) == (60, 400)
    plugin.api.delete("/api/v1/namespaces/default/pods/a")
    kubelet.remove("a")
    until(lambda: not allocations(), "it is free again")
    until(lambda: kubelet.healthy(WHOLE) == 4, "the card is whole again")


def test_a_sidecar_has_its_place_beside_init_containers_and_all_others(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    """It stands in API objects from 1.28 on, which the real kubelet of the tests beside this one drops."""
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    pod(plugin.api, "a", {MEMORY: "6"}, sidecar={MEMORY: "5", CORES: "20"}, init={MEMORY: "10"})
    for name, amount in (("side", 5), ("init", 10), ("main", 6)):
        kubelet.allocate("a", MEMORY, amount, container=name, is_init=name == "init")
    kubelet.allocate("a", CORES, 20, container="side")
    kubelet.pre_start("a", CORES, container="side")
    (allocation,) = allocations().values()
    assert [list(each) for each in (allocation.init, allocation.sidecars, allocation.containers)] == [
        ["init"], ["side"], ["main"],
    ]  # fmt: skip
    # The sidecar with the init container, all on one card: the larger, and no more.
    assert [use.memory_bytes // GIB for use in uses().values()] == [15]
    until(lambda: events(plugin.api, "a"), "the pod says what it has")
    assert "side: 5 GiB of GPU 0 and 20% of its cores" in events(plugin.api, "a")[0][1]
    path = "/api/v1/namespaces/default/pods/a"
    plugin.api.put(path, {**plugin.api.objects[path], "status": {"phase": "Succeeded"}})
    until(lambda: not allocations(), "it is free again")
    assert uses() == {}


def test_what_an_init_container_has_beyond_the_others_is_no_less_for_other_pods(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    pod(plugin.api, "a", {MEMORY: "4"}, init={MEMORY: "10"})
    kubelet.allocate("a", MEMORY, 10, container="init", is_init=True)
    kubelet.allocate("a", MEMORY, 4)
    kubelet.pre_start("a", MEMORY, container="init")
    until(lambda: kubelet.healthy(SHARES) < 400, "the plugin knows what is reserved")
    # Another ten are docker's; the scheduler takes off the ten that the pod has at one time.
    taken_by_docker(devices()[3], 10)
    until(lambda: kubelet.healthy(MEMORY) == 50, "what docker has is not offered")
    for number in range(2):
        pod(plugin.api, f"p{number}", {MEMORY: "15"})
        kubelet.allocate(f"p{number}", MEMORY, 15)
        kubelet.pre_start(f"p{number}", MEMORY)
    assert kubelet.healthy(MEMORY) == 50


def test_an_init_container_of_a_reserved_pod_starts_while_the_api_server_is_away(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    pod(plugin.api, "a", {MEMORY: "4"}, init={MEMORY: "10"})
    pod(plugin.api, "b", {}, init={MEMORY: "2"})
    kubelet.allocate("a", MEMORY, 10, container="init", is_init=True)
    kubelet.allocate("a", MEMORY, 4)
    kubelet.allocate("b", MEMORY, 2, container="init", is_init=True)
    until(lambda: len(allocations()) == 2, "both are reserved")

    plugin.api.down()

    began = time.monotonic()
    kubelet.pre_start("a", MEMORY, container="init")
    # The kubelet tells nobody of an init container alone: whose it is cannot be known.
    kubelet.pre_start("b", MEMORY, container="init")
    assert time.monotonic() - began < 15  # and not the 25 of one that waits


def test_a_pod_that_has_ended_has_nothing_reserved(plugin: Plugin, kubelet: Kubelet) -> None:
    plugin.start()
    pod(plugin.api, "a", {MEMORY: "4"})
    until(allocations, "it is reserved")
    path = "/api/v1/namespaces/default/pods/a"
    plugin.api.put(path, {**plugin.api.objects[path], "status": {"phase": "Succeeded"}})
    until(lambda: not allocations(), "it is free again")


def test_the_last_unit_can_be_had_by_the_pod_that_it_is_reserved_for(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    for number in range(4):
        pod(plugin.api, f"p{number}", {MEMORY: "15"})
    until(lambda: kubelet.healthy(SHARES) == 0, "all is reserved, and nothing left through another resource")
    # The kubelet has given nothing of it yet.
    assert kubelet.healthy(MEMORY) == 60
    for number in range(4):
        kubelet.allocate(f"p{number}", MEMORY, 15)
        kubelet.pre_start(f"p{number}", MEMORY)
    assert kubelet.healthy(MEMORY) == 60


def test_what_does_not_fit_is_refused_with_figures_and_reserved_when_it_does(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
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


def assigned(uid: str, uuid: str, gib: int, node: str = NODE, key: bytes = KEY[1]) -> dict[str, str]:
    """Annotations of a pod that the scheduler extender has placed."""
    made = Assignment(uid, node, time.time(), {"main": (Share(uuid, gib * GIB, None),)})
    return {assignment.ANNOTATION: assignment.sign(made, KEY[0], key)}


def test_an_assignment_says_which_card_it_is(plugin: Plugin, kubelet: Kubelet) -> None:
    plugin.configure(placement="extender")
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    third = devices()[2]
    pod(plugin.api, "a", {MEMORY: "4"}, uid="u-a", annotations=assigned("u-a", third, 4))
    until(allocations, "it is reserved")
    assert allocations()["a"].containers == {"main": (Share(third, 4 * GIB, None),)}
    kubelet.allocate("a", MEMORY, 4)
    kubelet.pre_start("a", MEMORY)


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        (
            "missing",
            "the pod has no assignment, and this node gives devices by assignments alone "
            "(kubernetes.placement: extender): is kube-scheduler told of the extender, and of each of these "
            "names in its managedResources? (docs/kubernetes.md, The scheduler)",
        ),
        ("forged", "yoyoworks.com/xpu-assignment is forged or damaged: its signature is wrong"),
        ("copied", "yoyoworks.com/xpu-assignment is of another pod (u-b)"),
        ("elsewhere", "yoyoworks.com/xpu-assignment is for the node n2, not n1"),
        ("nonsense", "yoyoworks.com/xpu-assignment is none: it is not v1.KEYID.PAYLOAD.MAC"),
    ],
)
def test_an_assignment_that_proves_nothing_is_refused_and_the_pod_says_why(
    plugin: Plugin, kubelet: Kubelet, case: str, problem: str
) -> None:
    plugin.configure(placement="extender")
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    uuid = devices()[0]
    annotations = {
        "missing": {},
        "forged": assigned("u-a", uuid, 4, key=bytes(32)),
        "copied": assigned("u-b", uuid, 4),
        "elsewhere": assigned("u-a", uuid, 4, node="n2"),
        "nonsense": {assignment.ANNOTATION: "all devices, please"},
    }[case]
    pod(plugin.api, "a", {MEMORY: "4"}, uid="u-a", annotations=annotations)
    until(lambda: events(plugin.api, "a"), "the pod says why")
    assert events(plugin.api, "a")[0][0] == "XPURefused"
    assert events(plugin.api, "a")[0][1].startswith(problem)
    kubelet.allocate("a", MEMORY, 4)
    with pytest.raises(grpc.RpcError) as refused:
        kubelet.pre_start("a", MEMORY)
    assert isinstance(refused.value, grpc.Call) and problem in str(refused.value.details())
    assert not allocations()


def test_a_static_pod_is_told_that_no_scheduler_places_it_and_what_to_do(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.configure(placement="extender")
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    pod(plugin.api, "a", {MEMORY: "4"}, annotations={"kubernetes.io/config.mirror": "0123456789abcdef" * 2})
    until(lambda: events(plugin.api, "a"), "the pod says why")
    ((reason, message),) = events(plugin.api, "a")
    assert reason == "XPURefused"
    assert message.startswith("a static pod is placed by no scheduler")
    assert "kubernetes.placement: node" in message and "nodeName" not in message


def test_a_pod_that_was_signed_with_a_key_which_comes_later_starts_when_it_is_there(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.keys.write_text(f"old {'ab' * 32}\n")
    plugin.configure(placement="extender")
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    pod(plugin.api, "a", {MEMORY: "4"}, uid="u-a", annotations=assigned("u-a", devices()[0], 4))
    until(lambda: events(plugin.api, "a"), "the pod says why it waits")
    assert "which this node does not have (it has old)" in events(plugin.api, "a")[0][1]
    kubelet.allocate("a", MEMORY, 4)
    with pytest.raises(grpc.RpcError):
        kubelet.pre_start("a", MEMORY)

    plugin.keys.write_text(f"{plugin.keys.read_text()}{KEY[0]} {KEY[1].hex()}\n")

    kubelet.pre_start("a", MEMORY)
    assert set(allocations()) == {"a"}


def test_limits_that_make_no_sense_are_refused_with_what_to_do(plugin: Plugin, kubelet: Kubelet) -> None:
    plugin.start()
    pod(plugin.api, "a", {CORES: "30"})
    until(lambda: events(plugin.api, "a"), "the pod says why")
    assert events(plugin.api, "a") == [
        (
            "XPURefused",
            "container main asks for yoyoworks.com/xpu-cores without yoyoworks.com/xpu-mem: say how much "
            "memory: yoyoworks.com/xpu-mem",
        )
    ]


# Pods without the RuntimeClass


def test_a_pod_without_a_runtime_class_is_refused_and_holds_nothing(plugin: Plugin, kubelet: Kubelet) -> None:
    plugin.containerd.write_text(configured("version = 2\n"))
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    pod(plugin.api, "a", {MEMORY: "4"}, runtime_class=None)
    kubelet.allocate("a", MEMORY, 4)
    with pytest.raises(grpc.RpcError) as refused:
        kubelet.pre_start("a", MEMORY)
    assert isinstance(refused.value, grpc.Call)
    why = (
        "the pod asks for yoyoworks.com/xpu-mem and has no runtimeClassName: this node's default runtime is "
        "not ours, and starts it without a GPU: add runtimeClassName: xpu"
    )
    assert refused.value.details() == f"refused: {why}"
    until(lambda: events(plugin.api, "a"), "the pod says why")
    assert events(plugin.api, "a") == [("XPURefused", why)]
    assert allocations() == {}
    # With a class it is a matter of that class.
    pod(plugin.api, "b", {MEMORY: "4"}, runtime_class="gpu")
    until(allocations, "it is reserved")


def test_where_ours_is_the_default_runtime_no_pod_needs_a_class(plugin: Plugin, kubelet: Kubelet) -> None:
    plugin.containerd.write_text(configured("version = 2\n", True))
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    pod(plugin.api, "a", {MEMORY: "4"}, runtime_class=None)
    kubelet.allocate("a", MEMORY, 4)
    kubelet.pre_start("a", MEMORY)
    until(lambda: events(plugin.api, "a"), "the pod says what it has")
    assert [reason for reason, _ in events(plugin.api, "a")] == ["XPUReserved"]


def test_where_the_default_runtime_is_not_known_a_pod_without_a_class_starts_with_a_warning(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    pod(plugin.api, "a", {MEMORY: "4"}, runtime_class=None)
    kubelet.allocate("a", MEMORY, 4)
    kubelet.pre_start("a", MEMORY)
    until(lambda: len(events(plugin.api, "a")) == 2, "the pod says both")
    assert dict(events(plugin.api, "a"))["XPUNoRuntimeClass"] == (
        "the pod asks for yoyoworks.com/xpu-mem and has no runtimeClassName: unless this node's default "
        "runtime is ours, it runs without a GPU: add runtimeClassName: xpu"
    )


def test_one_pod_that_asks_for_more_than_can_be_told_ends_nothing_for_the_others(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.start()
    pod(plugin.api, "huge", {MEMORY: "9E"})
    until(lambda: events(plugin.api, "huge"), "the pod says why")
    assert "no device has a tenth of that" in events(plugin.api, "huge")[0][1]
    pod(plugin.api, "a", {MEMORY: "4"})
    until(lambda: set(allocations()) == {"a"}, "the other pod is reserved")


# What can be away


def test_a_start_that_is_quicker_than_the_watch_looks_its_pod_up(plugin: Plugin, kubelet: Kubelet) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    until(lambda: any("watch=" in url for _, url in plugin.api.requests), "pods are watched")
    # A watch that says nothing, as one of a server that is far behind does.
    log = plugin.api.log
    plugin.api.log = []
    pod(plugin.api, "a", {MEMORY: "4"})
    plugin.api.log = log
    kubelet.allocate("a", MEMORY, 4)
    kubelet.pre_start("a", MEMORY)
    assert allocations()


def test_while_the_api_server_is_away_pods_that_it_told_of_can_start(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    pod(plugin.api, "a", {MEMORY: "4"})
    until(allocations, "it is reserved")
    plugin.api.down()
    kubelet.allocate("a", MEMORY, 4)
    kubelet.pre_start("a", MEMORY)
    assert plugin.stop() == 0
    plugin.start()
    kubelet.devices.clear()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered again")
    # The ledger knows it still.
    kubelet.pre_start("a", MEMORY)
    assert len(allocations()) == 1
    # One that nobody has told of waits until there is somebody to ask.
    pod(plugin.api, "b", {MEMORY: "4"})
    kubelet.allocate("b", MEMORY, 4)
    timer = threading.Timer(1, plugin.api.up)
    timer.start()
    kubelet.pre_start("b", MEMORY)
    timer.join()
    assert set(allocations()) == {"a", "b"}


def test_a_ledger_that_is_locked_is_waited_for(plugin: Plugin, kubelet: Kubelet, run_dir: Path) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
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


def test_a_ledger_that_was_lost_has_the_reservations_again(
    plugin: Plugin, kubelet: Kubelet, run_dir: Path
) -> None:
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    pod(plugin.api, "a", {MEMORY: "4"})
    until(allocations, "it is reserved")
    for each in run_dir.glob("ledger.db*"):
        each.unlink()
    until(allocations, "it is reserved again")


def test_without_podresources_every_pod_of_the_node_is_reserved_before_a_start(
    plugin: Plugin, kubelet: Kubelet
) -> None:
    kubelet.pod_resources = kubelet.pod_resources.with_name("none.sock")
    plugin.start()
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    first = devices()[0]
    taken_by_docker(first, 4)
    until(lambda: kubelet.healthy(MEMORY) == 56, "what docker has is not offered")
    pod(plugin.api, "a", {MEMORY: "4"})
    kubelet.allocate("a", MEMORY, 4)
    kubelet.pre_start("a", MEMORY)
    assert allocations()
    assert kubelet.healthy(MEMORY) == 56


# Metrics, and the command


def test_metrics_and_health_are_served(plugin: Plugin, kubelet: Kubelet) -> None:
    port = _free_port()
    plugin.start("--metrics", f"127.0.0.1:{port}")
    until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    pod(plugin.api, "a", {MEMORY: "4"})
    kubelet.allocate("a", MEMORY, 4)
    kubelet.pre_start("a", MEMORY)

    def page(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    assert page("/healthz") == "ok\n"
    lines = until(
        lambda: (
            'xpu_kubernetes_ids{resource="yoyoworks.com/xpu-mem",state="given"} 4.0' in page("/metrics")
            and page("/metrics").splitlines()
        ),
        "the metrics say what was given",
    )
    for line in (
        'xpu_kubernetes_calls_total{call="allocate",outcome="ok"} 1.0',
        'xpu_kubernetes_ids{resource="yoyoworks.com/xpu-mem",state="healthy"} 60.0',
        'xpu_kubernetes_pods{state="reserved"} 1.0',
        'xpu_kubernetes_up{part="api"} 1.0',
        'xpu_kubernetes_up{part="drivers"} 1.0',
        "xpu_kubernetes_registered 1.0",
    ):
        assert line in lines


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_without_grpc_it_is_said_what_to_install(plugin: Plugin) -> None:
    code = f"import sys; sys.modules['grpc'] = None; {_MAIN}"
    command = [sys.executable, "-c", code, *plugin.command()[3:]]
    done = subprocess.run(command, env=plugin.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("xpu: the device plugin needs gRPC (")
    # On no index: by its name pip would not find it.
    assert "xpu-container-runtime[" not in done.stderr
    assert "the DaemonSet" in done.stderr and done.stderr.endswith("`pip install '.[kubernetes]'`\n")


def test_a_plugin_that_ends_for_want_of_a_package_is_waited_for_no_longer(
    plugin: Plugin, kubelet: Kubelet, tmp_path: Path
) -> None:
    (tmp_path / "grpc.py").write_text("raise ImportError('there is none')\n")
    plugin.environ["PYTHONPATH"] = f"{tmp_path}:{plugin.environ['PYTHONPATH']}"
    plugin.start()
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"the device plugin needs gRPC \(there is none\)"):
        until(lambda: kubelet.healthy(MEMORY) == 60, "all is offered")
    assert time.monotonic() - began < 15


def test_a_name_that_is_not_the_configured_one_is_refused(plugin: Plugin) -> None:
    plugin.configure(node_name="n2")
    done = subprocess.run(plugin.command(), env=plugin.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"the node's name is n1, and kubernetes.node_name in {plugin.config} is n2" in done.stderr
