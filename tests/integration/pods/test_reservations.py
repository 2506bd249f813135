"""Reservations of pods, on a real runc: docker's containers beside them, and commands' output."""

from __future__ import annotations

import json

import pytest

from xpu_runtime.kubernetes.device_plugin.shared_ledger import SharedLedger
from xpu_runtime.ledger.allocations import of_assignment
from xpu_runtime.ledger.grants import Use

from ..conftest import Node
from ..findings import found
from ..refusals import refused
from .pod import (
    ALLOCATED,
    GIB,
    MODES,
    SLEEP,
    Bundles,
    Pod,
    allocated,
    allocations,
    cluster,
    events,
    granted,
    share,
    signed,
)


@MODES
def test_docker_beside_a_reservation_is_refused_with_figures(node: Node, bundles: Bundles, mode: str) -> None:
    uuid = cluster(node, "1xT4", more=f"mode: {mode}")[0]
    pod = Pod("web")
    allocated(node, of_assignment(pod.assignment(main=(share(uuid, 10, 80),)), "default", "web", "k1"))
    told = refused(node, bundles("XPU_MEM=8G"))
    assert told.startswith(
        "refused: no device has 8G of memory free (GPU 0: 5G free (10G reserved for pods), 8G requested); "
        "the nearest request that fits now: XPU_MEM="
    )
    told = refused(node, bundles("XPU_MEM=1G", "XPU_CORES=30"))
    assert "GPU 0: 20% cores free (80% reserved for pods), 30% requested" in told
    told = refused(node, bundles("NVIDIA_VISIBLE_DEVICES=all"))
    assert "GPU 0: reserved for pods, and the whole device is requested" in told
    node.start(bundles("XPU_MEM=4G", "XPU_CORES=20", args=SLEEP))
    assert granted(node) == {uuid: (14, 100)}
    node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container()))
    assert granted(node) == {uuid: (14, 100)}
    told = refused(node, bundles("XPU_MEM=8G"))
    assert "reserved for pods" not in told  # `xpu ps` shows it as its container's


@MODES
def test_whole_devices_are_for_one_pod_alone(node: Node, bundles: Bundles, mode: str) -> None:
    first, second = cluster(node, more=f"mode: {mode}\ndefaults: {{memory: 1G}}")
    pod = Pod("web")
    assigned = pod.assignment(main=(share(first, None, None), share(second, None, None)))
    allocated(node, of_assignment(assigned, "default", "web", "k1"))
    told = refused(node, bundles("XPU_MEM=1G"))
    assert "GPU 0, 1: all of it is reserved for pod default/web" in told
    assert granted(node) == {first: (15, 0), second: (15, 0)}
    node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=signed(assigned))))
    assert all(not slice_.limited for grant in node.grants() for slice_ in grant.slices)
    assert granted(node) == {first: (15, 0), second: (15, 0)}
    assert "all of it is held by container" in refused(node, bundles("XPU_MEM=1G"))


def test_a_mig_device_is_a_pod_s_as_a_card_is(node: Node, bundles: Bundles) -> None:
    uuids = cluster(node, "2xA100-MIG")
    pod = Pod("web")
    assigned = pod.assignment(main=(share(uuids[1], None, None),))
    allocated(node, of_assignment(assigned, "default", "web", "k1"))
    told = refused(node, bundles("XPU_VISIBLE_DEVICES=0:1"))
    assert "GPU 0:1: all of it is reserved for pod default/web" in told
    bundle = bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=signed(assigned)))
    node.start(bundle)
    (part,) = node.grants()[0].slices
    assert (part.device_uuid, part.limited, part.holding.memory_backend) == (uuids[1], False, "mig")


def test_a_drained_device_gets_no_container_of_a_pod_either(node: Node, bundles: Bundles) -> None:
    uuid, _ = cluster(node)
    pod = Pod("web")
    node.xpu("drain", "0", "--reason", "fan")
    text = signed(pod.assignment(main=(share(uuid),)))
    told = refused(node, bundles(ALLOCATED, change=pod.container(assignment=text)))
    assert "GPU 0: drained: fan" in told
    node.xpu("undrain", "0")
    node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=text)))


def test_quotas_hold_for_pods_too(node: Node, bundles: Bundles) -> None:
    quota = (
        "name: a, match: {annotation: io.kubernetes.cri.sandbox-namespace, value: default}, max_memory: 5G"
    )
    uuid, _ = cluster(node, more=f"policy: {{quotas: [{{{quota}}}]}}")
    one, two = Pod("one"), Pod("two")
    for pod in (one, two):
        allocated(node, of_assignment(pod.assignment(main=(share(uuid),)), "default", pod.name, "k1"))
    node.start(bundles(ALLOCATED, args=SLEEP, change=one.container()))
    told = refused(node, bundles(ALLOCATED, change=two.container()))
    assert "quota a (annotation io.kubernetes.cri.sandbox-namespace=default): 1G of 5G of memory left" in told


def test_reservations_are_shown(node: Node, bundles: Bundles) -> None:
    first, second = cluster(node)
    pod = Pod("web")
    assigned = pod.assignment(a=(share(first, 4, 30), share(second, 4, 30)), b=(share(first, 2, None),))
    allocated(node, of_assignment(assigned, "default", "web", "k1"))
    running = node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container("a")))
    rows = node.json("ps")
    keys = ("container_id", "state", "memory_bytes", "cores")
    assert [[row[key] for key in keys] for row in rows] == [
        [running, "running", 4 * GIB, 30],
        [running, "running", 4 * GIB, 30],
        [None, "reserved", 2 * GIB, None],
    ]
    assert rows[2]["name"] == "default/web"
    line = node.xpu("ps").stdout.splitlines()[-1].split()
    assert (line[0], line[1], line[2], line[-1]) == ("-", "0", "2G", "default/web") and "reserved" in line
    assert node.xpu("ps", "-q").stdout.splitlines() == [running]
    device = node.json("devices")[0]
    assert (device["memory_granted_bytes"], device["memory_reserved_bytes"]) == (6 * GIB, 2 * GIB)
    assert (device["cores_granted"], device["cores_reserved"]) == (30, 0)
    assert "healthy; 2G reserved for pods" in node.xpu("devices").stdout
    metrics = node.xpu("metrics").stdout
    for name, value in (("memory_granted_bytes", 6 * GIB), ("memory_reserved_bytes", 2 * GIB)):
        lines = [line for line in metrics.splitlines() if line.startswith(f"xpu_device_{name}{{")]
        assert [float(line.split()[-1]) for line in lines if first in line] == [value]
    assert events(node, "reserved") == []  # no operator's mark
    assert events(node, "pod-reserved") == ["for pod default/web"]
    told = node.xpu("events", "--device", "0").stdout
    assert "GPU 0: 6G, 30% of the cores; GPU 1: 4G, 30% of the cores; for pod default/web" in told
    (grant,) = node.json("inspect", running)["grants"]
    share_of = {"memory_bytes": 4 * GIB, "cores": 30}
    assert grant["pod"] == {
        "uid": pod.uid,
        "namespace": "default",
        "name": "web",
        "container": "a",
        "reserved": [{"uuid": first, **share_of}, {"uuid": second, **share_of}],
    }
    assert (
        "pod        container a of pod default/web, reserved for it: 4G and 30%"
        in node.xpu("inspect", running).stdout
    )
    assert "reservations of pods stay: pod default/web" in node.xpu("gc").stdout
    assert "1 pod with an allocation" in json.dumps(node.json("doctor"))
    assert node.xpu("release", "--pod", "default/other", check=False).returncode == 1
    assert node.xpu("release", "--pod", "default/web").stdout == "pod default/web: released\n"
    assert events(node, "pod-unreserved") == ["was for pod default/web"]
    assert granted(node) == {first: (4, 30), second: (4, 30)}


def test_explain_tells_what_a_container_of_a_pod_would_get(node: Node, bundles: Bundles) -> None:
    uuid, _ = cluster(node)
    pod = Pod("web")
    bundle = bundles(ALLOCATED, change=pod.container(assignment=signed(pod.assignment(main=(share(uuid),)))))
    told = node.json("explain", str(bundle))
    assert told["granted"] and [each["device_uuid"] for each in told["slices"]] == [uuid]
    assert told["notes"][0] == "it comes from the assignment of container main of pod default/web"
    assert allocations(node) == [] and granted(node)[uuid] == (0, 0)
    bundle = bundles(ALLOCATED, change=pod.container(assignment="all"))
    done = node.xpu("explain", "--json", str(bundle), check=False)
    assert (done.returncode, json.loads(done.stdout)["refusal"]["code"]) == (2, "wrong-assignment")


def test_a_pod_s_container_gets_back_what_was_taken_of_its_own_and_no_more(
    node: Node, bundles: Bundles
) -> None:
    uuid = cluster(node, "1xT4")[0]
    pod = Pod("web")
    text = signed(pod.assignment(a=(share(uuid, 8),), b=(share(uuid, 6),)))
    container = node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container("a", assignment=text)))
    node.xpu("set", container, "--mem", "2G")
    assert granted(node)[uuid][0] == 14
    node.xpu("set", container, "--mem", "8G")
    done = node.xpu("set", container, "--mem", "10G", check=False)
    assert done.returncode == 3 and "1G free and 8G already its own" in done.stderr
    node.xpu("set", container, "--mem", "9G")
    assert granted(node)[uuid][0] == 14  # until the other container runs as well


def test_slices_of_a_pod_beyond_its_reservation_are_not_offered(
    node: Node, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid, _ = cluster(node)
    pod = Pod("web")
    text = signed(pod.assignment(main=(share(uuid),)))
    container = node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=text)))
    monkeypatch.setenv("XPU_RUN_DIR", str(node.run_dir))

    def others() -> tuple[int, int]:
        use = SharedLedger().read(5).others.get(uuid, Use())
        return use.memory_bytes // GIB, use.cores

    assert others() == (0, 0)
    node.xpu("set", container, "--mem", "6G", "--cores", "50")
    assert others() == (2, 20)
    found(node, "warning", "ledger", "pod default/web holds 6G and 50% of GPU 0, and 4G and 30% are reserved")
