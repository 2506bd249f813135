"""Ends of containers that start no Python: the slice is given back all the same, and nothing else is.

Real runc, and whoever looks afterwards. What the hook in C leaves to Python: launcher/test_end.py.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.sharing_time import Serve, until, workers_of
from xpu_runtime.ledger.store import Ledger

from .conftest import Node
from .test_faults import instants, run_hooks_through

Bundles = Callable[..., Path]
SLEEP = ["sleep", "1000"]
BOTH = pytest.mark.parametrize("mode", ["hook", "spec"])
DRIVERS = pytest.mark.parametrize("topology", ["1xT4", "1xT4-R580"])
#: Calls of the hook in C. At the last one its work is done.
_CALLS = "openat,open,read,readlink,stat,lstat,umount2,rmdir,utimensat,rename,connect,socket,close,exit_group"


def events(node: Node) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.xpu("events", "--json").stdout.splitlines()]


def kinds(node: Node) -> list[str]:
    return [each["event"] for each in events(node)]


def left(node: Node) -> list[str]:
    return [
        f"{folder}/{each.name}"
        for folder in ("running", "ended", "slices")
        for each in sorted(node.run_dir.glob(f"{folder}/*"))
    ]


@pytest.fixture
def pythons(copy: Path) -> Callable[[], list[str]]:
    """The stages for which the hook has become Python since the last time that was asked."""
    hook = copy / "lib/xpu-container-runtime/hook.py"
    record = copy / "stages"
    hook.write_text(
        "import sys\n"
        f"with open({str(record)!r}, 'a') as file:\n    print(sys.argv[1], file=file)\n" + hook.read_text()
    )

    def asked() -> list[str]:
        found = record.read_text().split() if record.exists() else []
        record.write_text("")
        return found

    return asked


@BOTH
@DRIVERS
def test_the_end_of_a_container_starts_no_python_and_the_slice_is_free_at_once(
    node: Node, pythons: Callable[[], list[str]], bundles: Bundles, mode: str, topology: str
) -> None:
    node.configure(f"mode: {mode}")
    node.sim(topology)
    first = node.start(bundles("XPU_MEM=15G", "XPU_CORES=30", args=SLEEP))
    assert pythons() == ["createRuntime"]
    assert left(node)[0] == f"running/{first}"
    before = time.time()
    node.remove(first)
    after = time.time()
    assert pythons() == []
    # Nothing has looked yet; what is mounted is gone.
    assert [each.partition("/")[0] for each in left(node)] == ["ended"]
    second = node.start(bundles("XPU_MEM=15G", args=SLEEP))
    assert [each["container_id"] for each in node.json("ps")] == [second]
    node.remove(second)
    assert node.json("ps") == [] and left(node) == []
    assert node.json("devices")[0]["memory_granted_bytes"] == 0
    found = events(node)
    assert [(each["event"], each["container_id"]) for each in found] == [
        ("granted", first),
        ("released", first),
        ("granted", second),
        ("released", second),
    ]
    with Ledger(str(node.run_dir / "ledger.db")) as ledger:
        assert before <= ledger.history()[1].time <= after
    assert set(pythons()) == {"createRuntime"}


def test_a_container_that_is_started_again_and_again_has_each_time_its_slice(
    node: Node, pythons: Callable[[], list[str]], bundles: Bundles
) -> None:
    """Its id, bundle and cgroup are the same each time, as with `docker restart`."""
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=15G", args=["cuda-probe", "info"])
    spec = (bundle / "config.json").read_bytes()
    for _ in range(4):
        (bundle / "config.json").write_bytes(spec)
        assert node.run(bundle).stdout == "device 0: 15360 MiB free of 15360 MiB\n"
    assert pythons() == ["createRuntime"] * 4
    assert kinds(node) == ["granted", "released"] * 4
    assert left(node) == []


def test_a_limit_that_is_left_is_lifted_by_python(
    node: Node, pythons: Callable[[], list[str]], bundles: Bundles
) -> None:
    """The hook is called while the container's cgroup is there."""
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G", args=SLEEP)
    container = node.start(bundle)
    subprocess.run(["runc", "--root", node.state_root, "kill", container, "KILL"], check=True)
    until(lambda: node.json("ps")[0]["state"] == "dead", "it has ended")
    assert Path(node.grants()[0].cgroup).is_dir()
    pythons()
    state = {"ociVersion": "1.0.2", "id": container, "status": "stopped", "bundle": str(bundle)}
    subprocess.run(
        [node.hook, "poststop"], input=json.dumps(state), env=node.environ, text=True, timeout=60, check=True
    )
    assert pythons() == ["poststop"]
    assert node.grants() == [] and left(node) == []


def test_a_container_of_the_same_id_and_bundle_under_another_root_keeps_its_slice(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G", args=SLEEP)
    spec = json.loads((bundle / "config.json").read_text())
    node.start(bundle)
    (first,) = node.grants()
    other = node.folder / "other-state"
    spec["linux"]["cgroupsPath"] += "-other"
    (bundle / "config.json").write_text(json.dumps(spec))
    words: list[str | Path] = [node.runtime, "--root", other]
    try:
        subprocess.run(
            [*words, "create", "--bundle", bundle, bundle.name],
            env=node.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )
        assert len(node.grants()) == 2
        node.remove(bundle.name)
        (second,) = node.grants()
        assert second.id > first.id
        assert Path(second.cgroup).is_dir()
    finally:
        subprocess.run([*words, "delete", "--force", bundle.name], env=node.environ, check=True, timeout=60)
    assert node.grants() == [] and left(node) == []
    assert kinds(node) == ["granted", "granted", "released", "released"]


@DRIVERS
def test_an_end_killed_at_any_instant_leaves_a_grant_that_the_next_start_takes_back(
    node: Node, bundles: Bundles, topology: str
) -> None:
    node.sim(topology)
    bundle = bundles("XPU_MEM=15G", "XPU_CORES=100", args=["true"])
    pristine = (bundle / "config.json").read_bytes()
    trace = node.folder / "trace"
    words = ["/usr/bin/strace", "-o", str(trace), "-e", f"trace={_CALLS}"]

    def attempt(*options: str) -> None:
        run_hooks_through(node, "hook", *words, *options, stage="poststop")
        (bundle / "config.json").write_bytes(pristine)
        # Each start has all of the device: what the last end has left is out of the way.
        assert node.run(bundle).returncode == 0
        assert not (node.state_root / bundle.name).exists()

    attempt()
    kills = instants(trace)
    assert len(kills) > 8 and any("rename" in kill for kill in kills)
    entered = 0
    for kill in kills:
        attempt(kill)
        entered += any(node.run_dir.glob("ended/*"))
    assert 0 < entered < len(kills)
    node.xpu("gc")
    assert node.grants() == [] and left(node) == []
    assert kinds(node).count("granted") == len(kills) + 1
    assert kinds(node).count("released") == entered + 1
    assert kinds(node).count("reaped") == len(kills) - entered


def test_a_storm_of_ends_beside_starts_leaves_what_runs(
    node: Node, pythons: Callable[[], list[str]], bundles: Bundles
) -> None:
    node.sim("1xT4")
    ending = [bundles("XPU_MEM=64M", args=SLEEP) for _ in range(16)]
    starting = [bundles("XPU_MEM=64M", args=SLEEP) for _ in range(16)]
    for each in ending:
        node.start(each)
    pythons()
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
    assert pythons() == ["createRuntime"] * 16
    assert {grant.container_id for grant in node.grants()} == {each.name for each in starting}
    assert sorted(left(node)) == sorted(f"running/{each.name}" for each in starting)
    assert sorted(kinds(node)) == ["granted"] * 32 + ["released"] * 16
    node.close_containers()
    assert left(node) != [] and node.grants() == [] and left(node) == []
    assert sorted(kinds(node)) == ["granted"] * 32 + ["released"] * 32


def test_where_nobody_knows_of_ends_the_next_start_takes_the_slices_back(
    node: Node, bundles: Bundles
) -> None:
    """As after a downgrade, to a version that does not look for them."""
    node.sim("1xT4")
    node.remove(node.start(bundles("XPU_MEM=15G", args=SLEEP)))
    shutil.rmtree(node.run_dir / "ended")
    assert len(node.grants()) == 1
    second = bundles("XPU_MEM=15G", args=SLEEP)
    node.start(second)
    assert [grant.container_id for grant in node.grants()] == [second.name]
    assert kinds(node) == ["granted", "reaped", "granted"]
    # The folder is not there: Python does it.
    node.remove(second.name)
    assert node.grants() == []


def test_with_no_ledger_and_with_one_of_another_layout_an_end_is_an_end(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    first, second = (node.start(bundles("XPU_MEM=1G", args=SLEEP)) for _ in range(2))
    (node.run_dir / "ledger.db").unlink()
    node.remove(first)
    assert [grant.container_id for grant in node.grants()] == [second]
    assert left(node) == [f"running/{second}"]
    with sqlite3.connect(node.run_dir / "ledger.db") as db:
        db.execute("UPDATE meta SET version = 99")
    db.close()
    node.remove(second)
    # Nothing lives in it any more: it is made anew.
    assert node.grants() == []
    node.run(bundles("XPU_MEM=15G"))
    assert node.grants() == [] and left(node) == []


def test_the_agent_passes_on_an_end_that_started_no_python(
    node: Node, bundles: Bundles, start_agent: Serve, copy: Path, system_log: socket.socket
) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=1G", args=SLEEP))
    (copy / "lib/xpu-container-runtime/worker.py").unlink()
    start_agent()
    node.remove(container)
    until(lambda: not list(node.run_dir.glob("ended/*")), "it has taken the end in")
    assert kinds(node) == ["granted", "released"]
    told = node.run_dir / "events.told"
    until(lambda: json.loads(told.read_text())[0] == 2, "it has passed both on")
    lines = [system_log.recv(4096).decode() for _ in range(2)]
    assert " granted: " in lines[0] and " released: " in lines[1]


def test_an_end_by_a_start_worker_leaves_no_note(node: Node, bundles: Bundles, start_agent: Serve) -> None:
    node.sim("1xT4")
    start_agent()
    until(lambda: len(workers_of(node)) >= 3, "the start workers are there")
    container = node.start(bundles("XPU_MEM=1G", args=SLEEP))
    assert left(node) == [f"running/{container}"]
    node.remove(container)
    assert left(node) == []
    assert os.path.exists(node.run_dir / "start.sock")
