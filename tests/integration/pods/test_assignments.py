"""A container gets its pod's assignment, on a real runc; an invalid assignment is refused."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from xpu_runtime.ledger.allocations import of_assignment

from ..conftest import Node
from ..findings import assert_fine, found
from ..refusals import refused
from .pod import (
    ALLOCATED,
    GIB,
    MODES,
    NODE,
    SLEEP,
    Bundles,
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


@MODES
def test_a_container_gets_what_its_pod_was_assigned(node: Node, bundles: Bundles, mode: str) -> None:
    first, second = cluster(node, more=f"mode: {mode}")
    pod = Pod("web")
    assigned = pod.assignment(main=(share(second),), side=(share(second, 2, None), share(first, 2, None)))
    text = signed(assigned)
    main = node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=text)))
    # The other container's part is reserved from the first one's start on.
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
def test_a_reservation_in_the_ledger_is_granted_without_an_annotation(
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
def test_assignments_that_prove_nothing_are_refused(
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
        ("all", "has not the form v1.KEYID.PAYLOAD.MAC"),
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
    forged = rights(pod.container(assignment=signed(good, os.urandom(32))))
    explained = node.xpu("explain", bundles(ALLOCATED, change=forged), check=False)
    assert (explained.returncode, "forged or damaged" in explained.stdout) == (2, True), explained
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
    assert "the assignment of pod default/web is stale: a later one is in force" in told
    same = pod.assignment(made=now + 1, main=(share(first),))
    told = refused(node, bundles(ALLOCATED, change=pod.container(assignment=signed(same))))
    assert "says something else than the one in force" in told
    node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=signed(new))))
    # A later one takes its place: the scheduler has decided again.
    later = pod.assignment(made=now + 2, main=(share(first, 2),))
    bundle = bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=signed(later)))
    node.start(bundle)
    assert granted(node) == {first: (2, 30), second: (4, 30)}


def test_reservations_signed_with_a_removed_key_start_no_container(node: Node, bundles: Bundles) -> None:
    uuid, _ = cluster(node)
    pod = Pod("web")
    allocated(node, of_assignment(pod.assignment(main=(share(uuid),)), "default", "web", "k1"))
    node.oci("delete", "--force", node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container())))
    (node.folder / "keys").write_text(f"k2 {'ab' * 32}\n")
    told = refused(node, bundles(ALLOCATED, change=pod.container()))
    assert told.startswith(
        "refused: the reservation of pod default/web was assigned with the key 'k1', which"
    )
    # An earlier version has not kept which key it was.
    allocated(node, of_assignment(pod.assignment(main=(share(uuid),)), "default", "web", ""))
    node.start(bundles(ALLOCATED, args=SLEEP, change=pod.container()))


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
def test_a_container_that_asks_for_nothing_runs_untouched(node: Node, bundles: Bundles, mode: str) -> None:
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


def test_doctor_says_what_is_wrong_with_a_clusters_node(node: Node) -> None:
    cluster(node)
    keys = node.folder / "keys"
    assert_fine(node, "kubernetes")
    keys.chmod(0o644)
    found(node, "problem", "kubernetes", f"users other than root can read {keys}")
    keys.unlink()
    node.configure(node.config.read_text().replace("node_name", "placement: extender, node_name"))
    found(node, "problem", "kubernetes", f"the keys of assignments, {keys}, cannot be read")
    assert NODE in node.config.read_text()
    node.configure("kubernetes: {require_assignment: true}")
    assert "kubernetes.node_name" in node.xpu("config", "check", check=False).stdout
