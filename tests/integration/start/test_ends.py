"""Ends of containers on real runc: the slice is given back at once, and other slices stay."""

from __future__ import annotations

import sqlite3
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from xpu_runtime.ledger.store import Ledger

from ..conftest import Bundles, Node
from .test_faults import CHANGES, DRIVERS, instants, run_hooks_through

SLEEP = ["sleep", "1000"]


def kinds(node: Node) -> list[str]:
    return [each["event"] for each in node.events()]


def left(node: Node) -> list[str]:
    return sorted(each.name for each in node.run_dir.glob("slices/*"))


@DRIVERS
def test_the_slice_is_free_at_once(node: Node, bundles: Bundles, any_mode: str, topology: str) -> None:
    node.sim(topology)
    first = node.start(bundles("XPU_MEM=15G", "XPU_CORES=30", args=SLEEP))
    before = time.time()
    node.remove(first)
    after = time.time()
    assert left(node) == []  # all mounts are gone
    second = node.start(bundles("XPU_MEM=15G", args=SLEEP))
    assert [each["container_id"] for each in node.json("ps")] == [second]
    node.remove(second)
    assert node.json("ps") == [] and left(node) == []
    assert node.json("devices")[0]["memory_granted_bytes"] == 0
    assert [(each["event"], each["container_id"]) for each in node.events()] == [
        ("granted", first),
        ("released", first),
        ("granted", second),
        ("released", second),
    ]
    with Ledger(str(node.run_dir / "ledger.db")) as ledger:
        assert before <= ledger.history()[1].time <= after


@DRIVERS
def test_an_end_killed_at_any_instant_leaves_a_grant_that_the_next_start_takes_back(
    node: Node, bundles: Bundles, topology: str
) -> None:
    node.sim(topology)
    bundle = bundles("XPU_MEM=15G", "XPU_CORES=100", args=["true"])
    pristine = (bundle / "config.json").read_bytes()
    trace = node.folder / "trace"
    words = ["/usr/bin/strace", "-o", str(trace), "-e", f"trace={CHANGES}"]

    def attempt(*options: str) -> None:
        run_hooks_through(node, "hook", *words, *options, stage="poststop")
        (bundle / "config.json").write_bytes(pristine)
        # Each start gets the whole device: leftovers of the last end do not hinder it.
        assert node.run(bundle).returncode == 0
        assert not (node.state_root / bundle.name).exists()

    attempt()
    kills = instants(trace)
    assert len(kills) > 8
    for kill in kills:
        attempt(kill)
    node.xpu("gc")
    assert node.grants() == [] and left(node) == []
    assert kinds(node).count("granted") == len(kills) + 1
    assert kinds(node).count("released") + kinds(node).count("reaped") == len(kills) + 1
    assert kinds(node).count("reaped") > 0


def test_a_storm_of_ends_beside_starts_leaves_what_runs(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    ending = [bundles("XPU_MEM=64M", args=SLEEP) for _ in range(16)]
    starting = [bundles("XPU_MEM=64M", args=SLEEP) for _ in range(16)]
    for each in ending:
        node.start(each)
    stop = threading.Event()

    def look() -> int:
        looks = 0
        while not stop.is_set():
            booked = {grant.container_id for grant in node.grants()}
            assert booked <= {each.name for each in (*ending, *starting)}
            looks += 1
        return looks

    with ThreadPoolExecutor(9) as threads:
        looking = threads.submit(look)
        work: list[Future[Any]] = []
        for number in range(16):
            work.append(threads.submit(node.remove, ending[number].name))
            work.append(threads.submit(node.start, starting[number]))
        try:
            for done in work:
                done.result()
        finally:
            stop.set()
        assert looking.result() > 0
    assert {grant.container_id for grant in node.grants()} == {each.name for each in starting}
    assert sorted(kinds(node)) == ["granted"] * 32 + ["released"] * 16
    node.close_containers()
    assert node.grants() == [] and left(node) == []
    assert sorted(kinds(node)) == ["granted"] * 32 + ["released"] * 32


def test_with_no_ledger_and_with_one_of_another_layout_an_end_is_an_end(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    first, second = (node.start(bundles("XPU_MEM=1G", args=SLEEP)) for _ in range(2))
    (node.run_dir / "ledger.db").unlink()
    node.remove(first)
    assert [grant.container_id for grant in node.grants()] == [second]
    with sqlite3.connect(node.run_dir / "ledger.db") as db:
        db.execute("UPDATE meta SET version = 99")
    db.close()
    node.remove(second)
    # No process lives in it any more: it is made anew.
    assert node.grants() == []
    node.run(bundles("XPU_MEM=15G"))
    assert node.grants() == [] and left(node) == []
