"""A pod's place while its containers come and go, on a real runc: it is kept, and the ledger has the running
ones."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from xpu_runtime.ledger.allocations import of_assignment
from xpu_runtime.linux import proc

from ..conftest import Node
from ..findings import assert_fine
from ..refusals import refused
from ..start.test_faults import CHANGES, instants, run_hooks_through
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
    deallocate,
    granted,
    share,
    signed,
)


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
    """In the order of a kubelet: the sidecar, an init container beside it, then the others; a waiting
    container has its place. The shares come from the scheduler's signature, or from the node's own
    reservation."""
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


def test_of_pods_that_start_at_once_each_gets_its_own_and_none_too_much(node: Node, bundles: Bundles) -> None:
    """Each of twelve is assigned 2G of a card with 15G, as two schedulers might that do not know of each
    other."""
    uuid = cluster(node, "1xT4")[0]
    made = []
    for number in range(12):
        pod = Pod(f"p{number}")
        text = signed(pod.assignment(main=(share(uuid, 2, 5),)))
        made.append(bundles(ALLOCATED, args=SLEEP, change=pod.container(assignment=text)))
    starts = node.create_all(made)
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
    # A running container is left alone, even if another one asks in its name.
    third = bundles(ALLOCATED, args=SLEEP, change=change)
    assert "0M free, 15G requested" in refused(node, third)
    assert [grant.container_id for grant in node.grants()] == [second.name]
