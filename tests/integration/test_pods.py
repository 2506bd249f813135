"""Containers of Kubernetes pods, on a real runc: each gets what its pod was assigned, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.sharing_time import Serve
from xpu_runtime.kubernetes.device_plugin.shared_ledger import SharedLedger
from xpu_runtime.ledger.allocations import of_assignment
from xpu_runtime.ledger.grants import Use
from xpu_runtime.linux import proc

from .conftest import Node
from .findings import assert_fine, found
from .pods import (
    GIB,
    NODE,
    SLEEP,
    Pod,
    allocated,
    allocations,
    cluster,
    deallocate,
    events,
    granted,
    privileged,
    share,
    signed,
)
from .refusals import refused
from .start.test_faults import CHANGES, instants, run_hooks_through
from .start.workers import without_python, workers_are_there

Bundles = Callable[..., Path]
MODES = pytest.mark.parametrize("mode", ["hook", "spec"])
ALLOCATED = "XPU_KUBERNETES=allocated"
#: What a container sees of its devices: a line for each.
SEES = ["nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader"]


@MODES
def test_a_container_gets_what_its_pod_was_assigned(node: Node, bundles: Bundles, mode: str) -> None:
    first, second = cluster(node, more=f"mode: {mode}")
    pod = Pod("web")
    assigned = pod.assignment(main=(share(second),), side=(share(second, 2, None), share(first, 2, None)))
    text = signed(assigned)
    main = node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=text)))
    # What the other container may have is reserved from the first one's start on.
    assert granted(node) == {first: (2, 0), second: (6, 30)}
    assert allocations(node) == [of_assignment(assigned, "default", "web", "k1")]
    node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container("side", assignment=text)))
    by_name = {grant.container_id: grant.slices for grant in node.grants()}
    (part,) = by_name[main]
    assert (part.device_uuid, part.memory_bytes, part.limited, part.cores) == (second, 4 * GIB, True, 30)
    assert granted(node) == {first: (2, 0), second: (6, 30)}
    for container in by_name:
        node.remove(container)
    assert granted(node) == {first: (2, 0), second: (6, 30)}  # until the pod is gone
    deallocate(node, pod.uid)
    assert granted(node) == {first: (0, 0), second: (0, 0)}
    assert_fine(node, "ledger")


@MODES
def test_the_limit_in_the_container_is_the_one_assigned(node: Node, bundles: Bundles, mode: str) -> None:
    (uuid,) = cluster(node, "1xT4-R580", more=f"mode: {mode}")
    pod = Pod("web")
    text = signed(pod.assignment(main=(share(uuid, 3),)))
    change = pod.container(assignment=text)
    done = node.run(bundles("NVIDIA_VISIBLE_DEVICES=all", args=["cuda-probe", "info"], change=change))
    assert done.returncode == 0, done.stderr
    assert "of 3072 MiB" in done.stdout, done.stdout
    done = node.run(bundles(args=["cuda-probe", "alloc", "2000", "2000"], change=change))
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stdout + done.stderr


@MODES
def test_what_is_reserved_in_the_ledger_is_granted_without_an_annotation(
    node: Node, bundles: Bundles, mode: str
) -> None:
    first, second = cluster(node, more=f"mode: {mode}")
    pod = Pod("web")
    allocated(node, of_assignment(pod.assignment(main=(share(second),)), "default", "web", "k1"))
    bundle = bundles(ALLOCATED, "NVIDIA_VISIBLE_DEVICES=" + first, args=SLEEP, change=pod.container())
    node.start(bundle)
    assert [slice_.device_uuid for grant in node.grants() for slice_ in grant.slices] == [second]
    assert granted(node) == {first: (0, 0), second: (4, 30)}


@MODES
@pytest.mark.parametrize("rights", [lambda change: change, privileged], ids=["plain", "privileged"])
def test_what_proves_nothing_is_refused(
    node: Node, bundles: Bundles, mode: str, rights: Callable[[Any], Any]
) -> None:
    uuid, _ = cluster(node, more=f"mode: {mode}")
    pod, other = Pod("web"), Pod("other")
    good = pod.assignment(main=(share(uuid),))
    for text, told in (
        (signed(good, os.urandom(32)), "forged or damaged: its signature is wrong"),
        (signed(good)[:-2], "forged or damaged: its signature is wrong"),
        (signed(other.assignment(main=(share(uuid),))), f"is that of another pod (its UID is {other.uid}"),
        (
            signed(pod.assignment("node-2", main=(share(uuid),))),
            "is for the node node-2, and this",
        ),
        (signed(good, key_id="k2"), "is signed with the key 'k2', which this node does not have (it has k1)"),
        ("all", "is none: it is not v1.KEYID.PAYLOAD.MAC"),
        (signed(pod.assignment(main=(share("GPU-none"),))), "which is not on this node; it has 0 (GPU-"),
        (
            signed(pod.assignment(main=(share(uuid, 99),))),
            "not free on this node (GPU 0: 15G free, 99G req",
        ),
    ):
        bundle = bundles(
            ALLOCATED, "NVIDIA_VISIBLE_DEVICES=all", change=rights(pod.container(assignment=text))
        )
        assert told in refused(node, bundle), text
    bundle = bundles(ALLOCATED, "NVIDIA_VISIBLE_DEVICES=all", change=rights(pod.container()))
    told = refused(node, bundle)
    assert "nothing is reserved on this node for container main of pod default/web, and it has no" in told
    assert "resources.limits" in told and "xpu kubernetes device-plugin" in told
    assert granted(node)[uuid] == (0, 0) and allocations(node) == [] and node.grants() == []
    assert len(events(node, "refused")) == 9
    counts = [line for line in node.xpu("metrics").stdout.splitlines() if 'code="wrong-assignment"' in line]
    assert counts == ['xpu_refused_total{code="wrong-assignment"} 7.0']


def test_an_earlier_assignment_of_the_pod_is_stale(node: Node, bundles: Bundles) -> None:
    first, second = cluster(node)
    pod, now = Pod("web"), time.time()
    old, new = (pod.assignment(made=now + n, main=(share(uuid),)) for n, uuid in enumerate((first, second)))
    allocated(node, of_assignment(new, "default", "web", "k1"))
    told = refused(node, bundles(ALLOCATED, change=pod.container(assignment=signed(old))))
    assert "the assignment of pod default/web is stale: another is in force, which was made later" in told
    same = pod.assignment(made=now + 1, main=(share(first),))
    told = refused(node, bundles(ALLOCATED, change=pod.container(assignment=signed(same))))
    assert "says something else than the one in force" in told
    node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=signed(new))))
    # A later one takes its place: the scheduler has decided again.
    later = pod.assignment(made=now + 2, main=(share(first, 2),))
    bundle = bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=signed(later)))
    node.start(bundle)
    assert granted(node) == {first: (2, 30), second: (4, 30)}


def test_what_a_stolen_key_has_signed_starts_no_more_without_its_assignment_either(
    node: Node, bundles: Bundles
) -> None:
    uuid, _ = cluster(node)
    pod = Pod("web")
    allocated(node, of_assignment(pod.assignment(main=(share(uuid),)), "default", "web", "k1"))
    node.oci("delete", "--force", node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container())))
    (node.folder / "keys").write_text(f"k2 {'ab' * 32}\n")
    told = refused(node, bundles(ALLOCATED, change=pod.container()))
    assert told.startswith(
        "refused: what is reserved for pod default/web was assigned with the key 'k1', which"
    )
    # An earlier version has not kept which key it was.
    allocated(node, of_assignment(pod.assignment(main=(share(uuid),)), "default", "web", ""))
    node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container()))


@pytest.mark.parametrize(
    "variable", ["XPU_MEM=15G", "XPU_CORES=100", "XPU_VISIBLE_DEVICES=all", "XPU_COUNT=2"]
)
def test_an_author_s_amounts_are_refused(node: Node, bundles: Bundles, variable: str) -> None:
    uuid, _ = cluster(node)
    pod = Pod("web")
    text = signed(pod.assignment(main=(share(uuid),)))
    for change in (pod.container(assignment=text), pod.container()):
        told = refused(node, bundles(variable, ALLOCATED, change=change))
        assert told.startswith(f"{variable} is not for a container of a pod: say it in resources.limits")
    told = refused(node, bundles(variable, change=pod.container()))
    assert told.startswith(f"{variable} is not for a container of a pod: say it in resources.limits")
    told = refused(node, bundles(change=pod.container(assignment=text, mem="15G")))
    assert told.startswith("yoyoworks.com/xpu-mem: 15G is not for a container of a pod")
    node.start(bundles(variable.replace("100", "95"), args=SLEEP))  # docker is not concerned


@MODES
def test_an_author_exchanges_no_hard_limit_for_a_soft_one(node: Node, bundles: Bundles, mode: str) -> None:
    uuid, _ = cluster(node, more=f"mode: {mode}")
    pod = Pod("web")
    text = signed(pod.assignment(main=(share(uuid),)))
    told = refused(node, bundles("XPU_ENFORCE=library", change=pod.container(assignment=text)))
    assert "XPU_ENFORCE=library would leave memory soft, which driver holds hard, and policy." in told
    assert node.grants() == []
    node.start(bundles("XPU_ENFORCE=driver", args=SLEEP, change=pod.container(assignment=text)))
    docker = bundles("XPU_ENFORCE=library", "XPU_MEM=1G", args=SLEEP)
    node.start(docker)  # is not concerned
    cluster(node, more=f"mode: {mode}\npolicy: {{pods_may_weaken_limits: true}}")
    other = Pod("other")
    text = signed(other.assignment(main=(share(uuid),)))
    soft = bundles("XPU_ENFORCE=library", args=SLEEP, change=other.container(assignment=text))
    assert node.start(soft) in {each.container_id for each in node.grants()}


@MODES
def test_who_asks_for_nothing_runs_untouched(node: Node, bundles: Bundles, mode: str) -> None:
    uuid, _ = cluster(node, more=f"mode: {mode}")
    pod = Pod("web")
    text = signed(pod.assignment(main=(share(uuid),)))
    for change in (
        pod.container("proxy", assignment=text, sched="burst", count="1"),
        pod.container("proxy"),
        pod.container("main", "sandbox", assignment="forged"),
    ):
        bundle = bundles("NVIDIA_VISIBLE_DEVICES=all", args=["ls", "/dev"], change=change)
        spec = (bundle / "config.json").read_bytes()
        done = node.run(bundle)
        assert done.returncode == 0, done.stderr
        assert "nvidia" not in done.stdout
        assert (bundle / "config.json").read_bytes() == spec
    assert node.grants() == [] and allocations(node) == []
    told = refused(node, bundles("XPU_CAPABILITIES=compute", change=pod.container("proxy", assignment=text)))
    assert "XPU_CAPABILITIES asks for devices, and container proxy of pod default/web was" in told


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
    assert "reserved for pods" not in told  # what it has, `xpu ps` shows as its container's


def test_a_pod_that_docker_was_quicker_than_is_refused_with_figures(node: Node, bundles: Bundles) -> None:
    uuid = cluster(node, "1xT4")[0]
    node.start(bundles("XPU_MEM=12G", args=SLEEP))
    pod = Pod("web")
    text = signed(pod.assignment(main=(share(uuid),)))
    told = refused(node, bundles(ALLOCATED, change=pod.container(assignment=text)))
    assert told == (
        "refused: what is assigned to pod default/web is not free on this node (GPU 0: 3G free, 4G requested)"
    )
    assert allocations(node) == []


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


@MODES
def test_init_containers_then_the_others_have_their_place_whoever_waits(
    node: Node, bundles: Bundles, mode: str
) -> None:
    """The init container has all of the device, and the two others half of it each."""
    uuid = cluster(node, "1xT4", more=f"mode: {mode}")[0]
    pod = Pod("web")
    assigned = pod.assignment(
        init={"prepare": (share(uuid, 14, 50),)}, a=(share(uuid, 7),), b=(share(uuid, 7),)
    )
    text = signed(assigned)

    def start(name: str) -> str:
        return node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container(name, assignment=text)))

    prepare = start("prepare")
    assert granted(node) == {uuid: (14, 60)}
    told = refused(node, bundles(ALLOCATED, change=pod.container("a", assignment=text)))
    assert "1G free, 7G requested" in told  # kubelet does not start it yet
    node.remove(prepare)
    assert "1G free (14G reserved for pods), 2G requested" in refused(node, bundles("XPU_MEM=2G"))
    a, b = start("a"), start("b")
    assert granted(node) == {uuid: (14, 60)}
    for _ in range(3):  # a restart: always a new container of the same name
        node.remove(a)
        assert "1G free (" in refused(node, bundles("XPU_MEM=2G"))
        a = start("a")
    node.remove(b)
    assert granted(node) == {uuid: (14, 60)}


@MODES
@pytest.mark.parametrize("by", ["scheduler", "node"])
def test_a_sidecar_runs_beside_init_containers_and_all_others_and_restarts_at_any_time(
    node: Node, bundles: Bundles, mode: str, by: str
) -> None:
    """In the order of a kubelet: the sidecar, an init container beside it, then the others; who waits has
    its place. The scheduler's signature says what each has, or the node has reserved it itself."""
    uuid = cluster(node, "1xT4", more=f"mode: {mode}")[0]
    pod = Pod("web")
    assigned = pod.assignment(
        init={"prepare": (share(uuid, 10, 50),)},
        sidecars={"proxy": (share(uuid, 4, 20),)},
        main=(share(uuid, 8, 40),),
    )
    annotations = {"assignment": signed(assigned)} if by == "scheduler" else {}
    if by == "node":
        allocated(node, of_assignment(assigned, "default", "web", "k1"))
    began: dict[str, str] = {}

    def start(name: str) -> None:
        change = pod.container(name, **annotations)
        began[name] = node.start(bundles(ALLOCATED, args=SLEEP, change=change))

    def end(name: str) -> None:
        node.remove(began.pop(name))

    amounts = {"prepare": (10, 50), "proxy": (4, 20), "main": (8, 40)}

    def the_ledger_is_what_runs() -> bool:
        names = {container_id: name for name, container_id in began.items()}
        running = {
            names[each.container_id]: ((each.slices[0].memory_bytes or 0) // GIB, each.slices[0].cores)
            for each in node.grants()
        }
        # The larger of the sidecar with the init container, and with the other one.
        return running == {name: amounts[name] for name in began} and granted(node) == {uuid: (14, 70)}

    start("proxy")
    assert the_ledger_is_what_runs()
    assert "1G free (10G reserved for pods), 2G requested" in refused(node, bundles("XPU_MEM=2G"))
    start("prepare")
    assert the_ledger_is_what_runs()
    end("proxy")
    assert the_ledger_is_what_runs()
    start("proxy")  # a restart, while the init container runs
    assert the_ledger_is_what_runs()
    end("prepare")
    start("main")
    assert the_ledger_is_what_runs()
    end("proxy")
    assert "1G free (" in refused(node, bundles("XPU_MEM=2G"))
    start("proxy")
    assert the_ledger_is_what_runs()
    end("main")  # kubelet ends sidecars last
    assert the_ledger_is_what_runs()
    end("proxy")
    assert the_ledger_is_what_runs()
    deallocate(node, pod.uid)
    assert node.grants() == [] and granted(node) == {uuid: (0, 0)}
    assert_fine(node, "ledger")


@MODES
def test_a_container_that_dies_without_notice_finds_its_place_again(
    node: Node, bundles: Bundles, mode: str
) -> None:
    uuid = cluster(node, "1xT4", more=f"mode: {mode}")[0]
    pod = Pod("web")
    text = signed(pod.assignment(main=(share(uuid, 14, 90),)))
    for _ in range(2):
        node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=text)))
        grant = node.grants()[-1]
        os.kill(grant.pid, signal.SIGKILL)
        while "populated 0" not in (Path(grant.cgroup) / "cgroup.events").read_text():
            pass  # the test's own time limit ends this
        assert "1G free" in refused(node, bundles("XPU_MEM=2G"))
    node.xpu("gc")
    assert node.grants() == [] and granted(node) == {uuid: (14, 90)}


@MODES
def test_a_hook_killed_at_any_instant_leaves_the_ledger_equal_to_what_runs(
    node: Node, bundles: Bundles, mode: str
) -> None:
    uuid = cluster(node, "1xT4")[0]
    of_cluster = node.config.read_text()
    pod = Pod("web")
    assigned = pod.assignment(main=(share(uuid),))
    change = pod.container(assignment=signed(assigned))
    bundle = bundles(ALLOCATED, args=["nvidia-smi", "-L"], change=change)
    pristine = (bundle / "config.json").read_bytes()
    trace = node.folder / "trace"

    def attempt(*options: str) -> int:
        words = ("/usr/bin/strace", "-o", str(trace), "-e", f"trace={CHANGES}", *options)
        run_hooks_through(node, mode, *words)
        node.configure(node.config.read_text() + of_cluster)
        (bundle / "config.json").write_bytes(pristine)
        deallocate(node, pod.uid)
        return node.run(bundle).returncode

    assert (attempt(), attempt()) == (0, 0)  # the second finds all caches made
    kills = instants(trace)
    assert len(kills) > 10
    seen = set()
    for kill in kills[::6]:
        assert attempt(kill) == 1, kill
        node.xpu("gc")
        assert node.grants() == [], kill
        left = allocations(node)
        assert left in ([], [of_assignment(assigned, "default", "web", "k1")]), kill
        assert granted(node) == {uuid: (4, 30) if left else (0, 0)}, kill
        seen.add(bool(left))
    assert seen == ({True, False} if mode == "hook" else {True})  # the shim has entered it in spec mode
    assert attempt() == 0


@MODES
def test_a_start_by_workers_gives_what_any_other_gives(
    node: Node, copy: Path, bundles: Bundles, start_agent: Serve, mode: str
) -> None:
    uuid = cluster(node, "1xT4", more=f"mode: {mode}")[0]
    pod = Pod("web")
    good = pod.container(assignment=signed(pod.assignment(main=(share(uuid),))))
    bad = pod.container(assignment=signed(Pod("other").assignment(main=(share(uuid),))))
    told = refused(node, bundles(ALLOCATED, change=bad))
    start_agent()
    workers_are_there(node)
    without_python(copy)
    assert refused(node, bundles(ALLOCATED, change=bad)) == told
    container = node.start(bundles(ALLOCATED, args=SLEEP, change=good))
    assert granted(node) == {uuid: (4, 30)}
    assert [slice_.memory_bytes for grant in node.grants() for slice_ in grant.slices] == [4 * GIB]
    node.remove(container)


@MODES
def test_a_ledger_that_is_lost_counts_a_pod_once_when_it_is_reserved_again(
    node: Node, bundles: Bundles, mode: str
) -> None:
    uuid = cluster(node, "1xT4", more=f"mode: {mode}")[0]
    pod = Pod("web")
    assigned = pod.assignment(a=(share(uuid, 4),), b=(share(uuid, 2),))
    node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container("a", assignment=signed(assigned))))
    (node.run_dir / "ledger.db").unlink()
    assert granted(node) == {uuid: (4, 30)} and allocations(node) == []
    allocated(node, of_assignment(assigned, "default", "web", "k1"))
    assert granted(node) == {uuid: (6, 60)}
    assert_fine(node, "ledger")


def test_what_is_reserved_is_to_be_seen(node: Node, bundles: Bundles) -> None:
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
    assert "what is reserved stays: pod default/web" in node.xpu("gc").stdout
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


def test_a_drained_device_gets_no_container_of_a_pod_either(node: Node, bundles: Bundles) -> None:
    uuid, _ = cluster(node)
    pod = Pod("web")
    node.xpu("drain", "0", "--reason", "fan")
    text = signed(pod.assignment(main=(share(uuid),)))
    told = refused(node, bundles(ALLOCATED, change=pod.container(assignment=text)))
    assert "GPU 0: drained: fan" in told
    node.xpu("undrain", "0")
    node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=text)))


def test_a_node_that_requires_none_honours_an_assignment_and_takes_others_as_ever(
    node: Node, bundles: Bundles
) -> None:
    first, second = cluster(node, require=False)
    pod = Pod("web")
    text = signed(pod.assignment(main=(share(second),)))
    node.start(bundles(args=SLEEP, change=pod.container(assignment=text)))
    assert granted(node) == {first: (0, 0), second: (4, 30)}
    node.start(bundles("XPU_MEM=2G", "XPU_VISIBLE_DEVICES=0", args=SLEEP, change=Pod("old").container()))
    node.start(
        bundles("XPU_MEM=1G", "XPU_VISIBLE_DEVICES=0", args=SLEEP, change=pod.container("b", assignment=text))
    )
    assert granted(node) == {first: (3, 0), second: (4, 30)}
    assert "forged" in refused(node, bundles(change=Pod("bad").container(assignment=text[:-1])))


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


def test_what_is_wrong_with_a_node_of_a_cluster_doctor_says(node: Node) -> None:
    cluster(node)
    keys = node.folder / "keys"
    assert_fine(node, "kubernetes")
    keys.chmod(0o644)
    found(node, "problem", "kubernetes", f"{keys} can be read by others than root")
    keys.unlink()
    node.configure(node.config.read_text().replace("node_name", "placement: extender, node_name"))
    found(node, "problem", "kubernetes", f"the keys of assignments, {keys}, cannot be read")
    assert NODE in node.config.read_text()
    node.configure("kubernetes: {require_assignment: true}")
    assert "kubernetes.node_name" in node.xpu("config", "check", check=False).stdout


def test_a_pod_in_a_user_namespace_gets_its_own(node: Node, bundles: Bundles) -> None:
    """hostUsers: false; the shim does it, in spec mode."""
    uuid, _ = cluster(node)
    pod = Pod("web")
    of_pod = pod.container(assignment=signed(pod.assignment(main=(share(uuid),))))

    def change(spec: dict[str, Any]) -> None:
        of_pod(spec)
        spec["linux"]["namespaces"].append({"type": "user"})
        for kind in ("uidMappings", "gidMappings"):
            spec["linux"][kind] = [{"containerID": 0, "hostID": 100_000, "size": 65_536}]

    bundle = bundles(ALLOCATED, args=SLEEP, change=change)
    for folder in (node.folder, bundle, bundle / "rootfs"):
        folder.chmod(0o755)
    node.start(bundle)
    (grant,) = node.grants()
    assert (grant.mode, grant.slices[0].device_uuid, grant.slices[0].cores) == ("spec", uuid, 30)
    assert granted(node)[uuid] == (4, 30)


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


def test_of_pods_that_start_at_once_each_gets_its_own_and_none_too_much(node: Node, bundles: Bundles) -> None:
    """Each of twelve is assigned 2G of a card with 15G, as two schedulers might that do not know of each
    other."""
    uuid = cluster(node, "1xT4")[0]
    made = []
    for number in range(12):
        pod = Pod(f"p{number}")
        text = signed(pod.assignment(main=(share(uuid, 2, 5),)))
        made.append(bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=text)))
    starts = [
        subprocess.Popen(
            node.command("create", "--bundle", bundle, bundle.name),
            env=node.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for bundle in made
    ]
    done = [start.wait(60) for start in starts]
    assert done.count(0) == len(node.grants()) == len(allocations(node)) == 7
    assert granted(node) == {uuid: (14, 35)}


@MODES
def test_a_life_that_was_never_started_gives_its_place_to_the_next(
    node: Node, bundles: Bundles, mode: str
) -> None:
    """containerd was restarted between its creation and its start, and has forgotten it."""
    uuid, _ = cluster(node, more=f"mode: {mode}")
    pod = Pod("web")
    change = pod.container(assignment=signed(pod.assignment(main=(share(uuid, 15),))))
    first, second = (bundles(ALLOCATED, args=SLEEP, change=change) for _ in range(2))
    with (first / "output").open("wb") as output:
        words = node.command("create", "--bundle", first, first.name)
        subprocess.run(words, env=node.environ, stdout=output, stderr=output, timeout=60, check=True)
    (forgotten,) = node.grants()
    assert proc.awaits_start(forgotten.pid)
    node.start(second)
    assert [grant.container_id for grant in node.grants()] == [second.name]
    assert granted(node)[uuid] == (15, 30)
    assert not proc.is_alive(forgotten.pid, forgotten.start_time)
    assert_fine(node, "ledger")
    # One that runs is left alone, whatever is asked for in its name.
    third = bundles(ALLOCATED, args=SLEEP, change=change)
    assert "0M free, 15G requested" in refused(node, third)
    assert [grant.container_id for grant in node.grants()] == [second.name]


def test_what_a_pods_containers_have_beyond_its_reservation_is_not_offered(
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
