"""The plugin's decisions on a pod: from the API's objects to a real ledger and an event."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from support.inventories import node, nvidia
from support.kubernetes_api import ApiServer
from support.stand_in_kubelet import Kubelet
from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.errors import XpuError
from xpu_runtime.kubernetes.access import Access
from xpu_runtime.kubernetes.api import Api, ApiError, Change
from xpu_runtime.kubernetes.device_plugin.allocated_ids import PodResourcesReader
from xpu_runtime.kubernetes.device_plugin.calls import KubeletCalls
from xpu_runtime.kubernetes.device_plugin.pod import PodEvent, PodOnNode
from xpu_runtime.kubernetes.device_plugin.pods import Pods
from xpu_runtime.kubernetes.device_plugin.shared_ledger import SharedLedger
from xpu_runtime.kubernetes.device_plugin.v1beta1 import (
    AllocateRequest,
    ContainerAllocateRequest,
    PreStartContainerRequest,
)
from xpu_runtime.kubernetes.resources import MEMORY
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.request import assignment
from xpu_runtime.request.assignment import Assignment, Share
from xpu_runtime.vendors.inventory import Device

from .made_pods import GIB, KNOWN, container, kept, pod

KEY = "k1", bytes(range(32))
#: No API server answers there.
NOBODY = Api(Access("http://127.0.0.1:1"))
DEVICES = [Device(str(n), f"GPU-{n}", "T4", 15 * GIB, (), "nvidia") for n in range(4)]
ASKS = container("main", mem="4")


class Node:
    """Four cards without a holder of limits."""

    def __init__(self, folder: Path) -> None:
        self.keys = folder / "keys"
        self.keys.write_text(f"{KEY[0]} {KEY[1].hex()}\n")
        self.config = DEFAULTS.replace(
            enforcement_allow_unenforced=("memory", "cores"), kubernetes_keys=str(self.keys)
        )
        #: Whether our runtime starts a pod that names no RuntimeClass; None: not known.
        self.is_default: bool | None = None
        self.told: list[PodEvent] = []
        inventory = node(nvidia("1"), *DEVICES)
        self.ledger = SharedLedger()
        self.pods = Pods(
            "n1",
            KNOWN,
            self.ledger,
            lambda: self.config,
            lambda: inventory,
            lambda: self.is_default,
            self.told.append,
        )
        self.pods.take(Change("listed", ()))

    def place(self, by: str) -> None:
        self.config = self.config.replace(kubernetes_placement=by)

    def tell(self, *found: dict[str, Any]) -> None:
        """A change of the watch, and its effect."""
        self.pods.take(Change("changed", tuple(kept(each) for each in found)))
        self.look()

    def look(self) -> None:
        self.pods.look_again()
        self.pods.reconcile(self.ledger.read(5).allocations)

    def events(self) -> list[tuple[str, str]]:
        return [(each.reason, each.message) for each in self.told]

    def allocations(self) -> dict[str, Allocation]:
        return {each.pod: each for each in self.ledger.read(5).allocations.values()}

    def start(self, name: str = "p", api: Api = NOBODY) -> None:
        """The kubelet's call before a container of that pod starts; XpuError refuses it."""
        self.pods.ensure("ns", name, api, time.monotonic())


@pytest.fixture
def there(run_dir: Path, tmp_path: Path) -> Node:
    found = Node(tmp_path)
    found.place("node")
    return found


def classed(item: dict[str, Any]) -> dict[str, Any]:
    item["spec"]["runtimeClassName"] = "xpu"
    return item


def assigned(uid: str = "u1", uuid: str = "GPU-0", node: str = "n1", key: bytes = KEY[1]) -> dict[str, Any]:
    """Metadata of a pod that the scheduler extender has placed."""
    made = Assignment(uid, node, time.time(), {"main": (Share(uuid, 4 * GIB, None),)})
    return {"annotations": {assignment.ANNOTATION: assignment.sign(made, KEY[0], key)}}


# By assignments


def test_an_assignment_says_which_card_it_is(there: Node) -> None:
    there.place("extender")
    there.tell(classed(pod(ASKS, **assigned(uuid="GPU-2"))))
    assert there.allocations()["p"].containers == {"main": (Share("GPU-2", 4 * GIB, None),)}
    assert there.events() == [("XPUReserved", "main: 4 GiB of GPU 2")]
    there.start()


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        (
            {},
            "the pod has no assignment, and this node gives devices by assignments only "
            "(kubernetes.placement: extender): does kube-scheduler's configuration have the extender, with "
            "these names in its managedResources? (docs/kubernetes.md, The scheduler)",
        ),
        (
            assigned(key=bytes(32)),
            "yoyoworks.com/xpu-assignment is forged or damaged: its signature is wrong",
        ),
        (assigned(uid="u2"), "yoyoworks.com/xpu-assignment is of another pod (u2)"),
        (assigned(node="n2"), "yoyoworks.com/xpu-assignment is for the node n2, not n1"),
        (
            {"annotations": {assignment.ANNOTATION: "all devices, please"}},
            "yoyoworks.com/xpu-assignment has not the form v1.KEYID.PAYLOAD.MAC",
        ),
        (
            {"annotations": {"kubernetes.io/config.mirror": "0123456789abcdef" * 2}},
            "no scheduler places a static pod",
        ),
    ],
    ids=["missing", "forged", "copied", "elsewhere", "nonsense", "static"],
)
def test_an_assignment_that_proves_nothing_is_refused_and_the_pod_says_why(
    there: Node, metadata: dict[str, Any], problem: str
) -> None:
    there.place("extender")
    there.tell(classed(pod(ASKS, **metadata)))
    ((reason, message),) = there.events()
    assert reason == "XPURefused" and message.startswith(problem)
    # A static pod has no scheduler that could name a node.
    is_static = problem.startswith("no scheduler places a static pod")
    assert ("kubernetes.placement: node" in message) is is_static
    with pytest.raises(XpuError) as refused:
        there.start()
    assert str(refused.value).startswith(f"refused: {problem}")
    assert there.allocations() == {}


def test_a_pod_that_was_signed_with_a_key_which_comes_later_starts_when_it_is_there(there: Node) -> None:
    there.place("extender")
    there.keys.write_text(f"old {'ab' * 32}\n")
    there.tell(classed(pod(ASKS, **assigned())))
    assert "which this node does not have (it has old)" in there.events()[0][1]
    with pytest.raises(XpuError, match="which this node does not have"):
        there.start()

    there.keys.write_text(f"{there.keys.read_text()}{KEY[0]} {KEY[1].hex()}\n")

    there.start()
    assert set(there.allocations()) == {"p"}


# By the node


def test_a_sidecar_has_its_place_beside_init_containers_and_all_others(there: Node) -> None:
    side = container("side", True, mem="5", cores="20")
    there.tell(classed(pod(container("main", mem="6"), init=(side, container("init", mem="10")))))
    (found,) = there.allocations().values()
    assert [list(each) for each in (found.init, found.sidecars, found.containers)] == [
        ["init"], ["side"], ["main"],
    ]  # fmt: skip
    # The sidecar with the init container, all on one card: the larger, and no more.
    assert [use.memory_bytes // GIB for use in there.ledger.read(5).uses.values()] == [15]
    assert "side: 5 GiB of GPU 0 and 20% of its cores" in there.events()[0][1]


@pytest.mark.parametrize(
    ("asks", "problem"),
    [
        (
            container("main", cores="30"),
            "container main asks for yoyoworks.com/xpu-cores without yoyoworks.com/xpu-mem: say how much "
            "memory: yoyoworks.com/xpu-mem",
        ),
        (container("main", mem="9E"), "no device has a tenth of that"),
    ],
    ids=["cores alone", "too much to be told"],
)
def test_limits_that_make_no_sense_are_refused_and_end_nothing_for_the_others(
    there: Node, asks: dict[str, Any], problem: str
) -> None:
    there.tell(classed(pod(asks)), classed(pod(ASKS, uid="u2", name="q")))
    assert problem in dict(there.events())["XPURefused"]
    assert set(there.allocations()) == {"q"}


def test_a_pod_that_has_ended_has_nothing_reserved(there: Node) -> None:
    there.tell(classed(pod(ASKS)))
    assert set(there.allocations()) == {"p"}
    there.tell(classed(pod(ASKS, phase="Succeeded")))
    assert there.allocations() == {}


def test_a_ledger_that_was_lost_has_the_reservations_again(there: Node, run_dir: Path) -> None:
    there.tell(classed(pod(ASKS)))
    for each in run_dir.glob("ledger.db*"):
        each.unlink()
    there.look()
    assert set(there.allocations()) == {"p"}
    assert [reason for reason, _ in there.events()] == ["XPUReserved"]


def test_a_start_that_is_quicker_than_the_watch_looks_its_pod_up(there: Node, api_server: ApiServer) -> None:
    api = Api(Access(api_server.url))
    with pytest.raises(XpuError, match="pod ns/p is not known at the API server yet"):
        there.start(api=api)
    api_server.put("/api/v1/namespaces/ns/pods/p", classed(pod(ASKS)))
    there.start(api=api)
    assert set(there.allocations()) == {"p"}
    # A pod of another node of the same name does not count here.
    api_server.put("/api/v1/namespaces/ns/pods/q", {**pod(ASKS, name="q"), "spec": {"nodeName": "n2"}})
    with pytest.raises(XpuError, match="pod ns/q is not known"):
        there.start("q", api)


def test_reservations_from_before_the_plugins_start_count_without_a_report(there: Node) -> None:
    made = Allocation("u1", "ns", "p", 1.0, {"main": (Share("GPU-0", GIB, None),)})
    with PodLedger() as ledger:
        assert ledger.allocate("u1", lambda *_: made, {})[0] == made
    there.start()


# Before a container starts


class Starts:
    """The kubelet's calls, with their pods, unless it is stopped."""

    def __init__(self, there: Node, kubelet: Kubelet) -> None:
        #: The API server's pods on this node; None: it does not answer.
        self.listed: list[dict[str, Any]] | None = []
        self.woken = 0
        reader = PodResourcesReader(str(kubelet.pod_resources), [MEMORY])
        self.calls = KubeletCalls(there.pods, reader, NOBODY, self._list, self._wake)

    def _list(self, seconds: float) -> list[PodOnNode]:
        if self.listed is None:
            raise ApiError("the API server is away")
        return [kept(each) for each in self.listed]

    def _wake(self) -> None:
        self.woken += 1

    def pre_start(self, *ids: str) -> None:
        self.calls.pre_start(MEMORY, PreStartContainerRequest(ids))


def test_a_container_gets_one_variable_and_its_ids_wake_the_plugin(there: Node, kubelet: Kubelet) -> None:
    starts = Starts(there, kubelet)
    request = AllocateRequest((ContainerAllocateRequest(("a",)), ContainerAllocateRequest(("b",))))
    answer = starts.calls.allocate(MEMORY, request)
    assert [dict(each.environment) for each in answer.containers] == [{"XPU_KUBERNETES": "allocated"}] * 2
    assert starts.woken == 1


def test_of_the_pod_that_starts_the_kubelet_says_the_name(there: Node, kubelet: Kubelet) -> None:
    there.tell(classed(pod(ASKS)))
    kubelet.given["ns", "p", "main", MEMORY] = ["x"]
    Starts(there, kubelet).pre_start("x")
    there.place("extender")
    there.tell(classed(pod(ASKS, uid="u2", name="q")))
    kubelet.given["ns", "q", "main", MEMORY] = ["y"]
    with pytest.raises(XpuError, match="refused: the pod has no assignment"):
        Starts(there, kubelet).pre_start("y")


def test_where_the_kubelet_says_no_name_every_pod_of_the_node_is_reserved(
    there: Node, kubelet: Kubelet
) -> None:
    starts = Starts(there, kubelet)
    kubelet.stop()
    too_large = container("main", mem="16")
    starts.listed = [classed(pod(ASKS)), classed(pod(too_large, uid="u2", name="q"))]
    starts.pre_start("x")
    assert set(there.allocations()) == {"p"}
    # While the server is away, pods with a reservation start: the kubelet reports nothing of an init
    # container alone.
    starts.listed = None
    there.tell(classed(pod(too_large, uid="u2", name="q", phase="Failed")))
    starts.pre_start("x")


# Without the RuntimeClass


def test_a_pod_that_another_runtime_starts_is_refused_and_holds_nothing(there: Node) -> None:
    there.is_default = False
    there.tell(pod(ASKS))
    why = (
        "the pod asks for yoyoworks.com/xpu-mem and has no runtimeClassName: this node's default runtime is "
        "not ours, and starts it without a GPU: add runtimeClassName: xpu"
    )
    with pytest.raises(XpuError) as refused:
        there.start()
    assert str(refused.value) == f"refused: {why}"
    assert (there.events(), there.allocations()) == ([("XPURefused", why)], {})
    # With a class it is a matter of that class.
    there.tell(classed(pod(ASKS, uid="u2", name="q")))
    assert set(there.allocations()) == {"q"}


def test_where_ours_is_the_default_runtime_no_pod_needs_a_class(there: Node) -> None:
    there.is_default = True
    there.tell(pod(ASKS))
    assert [reason for reason, _ in there.events()] == ["XPUReserved"]
    assert set(there.allocations()) == {"p"}


def test_where_the_default_runtime_is_not_known_a_pod_without_a_class_has_a_warning(there: Node) -> None:
    there.tell(pod(ASKS))
    assert set(there.allocations()) == {"p"}
    assert dict(there.events())["XPUNoRuntimeClass"] == (
        "the pod asks for yoyoworks.com/xpu-mem and has no runtimeClassName: unless this node's default "
        "runtime is ours, it runs without a GPU: add runtimeClassName: xpu"
    )
