"""The ledger in trouble: held by a process that hangs, gone while containers run, seen from another
namespace."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from support import GIB

from ..conftest import CGROUPS, SLEEP, Bundles, Node, namespace
from ..refusals import log_entries, refused

#: A driver that holds memory limits itself, and one for which the interposers do.
DRIVERS = pytest.mark.parametrize("topology", ["1xT4", "1xT4-R580"])


# Locked.


@contextmanager
def locked(node: Node) -> Iterator[None]:
    """The ledger is locked meanwhile, by the test."""
    with (node.run_dir / "ledger.db.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_start_names_a_stuck_holder_and_containers_end_in_spite_of_it(node: Node, bundles: Bundles) -> None:
    """Starts wait for half a minute: those of both modes, and the end, at once."""
    node.sim("1xT4-R580")
    log = node.folder / "log"
    log_options = ("--log", log, "--log-format", "json")
    first = node.start(bundles("XPU_MEM=4G", args=SLEEP), *log_options)

    def create(mode: str, bundle: Path) -> subprocess.CompletedProcess[str]:
        config = node.folder / f"{mode}.yaml"
        config.write_text(f"mode: {mode}")
        env = {**node.environ, "XPU_CONFIG": str(config)}
        return node.oci("create", "--bundle", bundle, bundle.name, env=env)

    waiting = {mode: bundles("XPU_MEM=4G", args=SLEEP) for mode in ("hook", "spec")}
    with locked(node), ThreadPoolExecutor() as at_once:
        starts = [at_once.submit(create, *each) for each in waiting.items()]
        end = node.oci("delete", "--force", first, timeout=10)
        assert (end.returncode, end.stderr) == (0, "")
        assert not (node.state_root / first).exists()
        (warning,) = [entry["msg"] for entry in log_entries(log, "json") if entry["level"] == "warning"]
        assert f"process {os.getpid()} (" in warning
        assert f"container {first} keeps its slices" in warning
        for start in starts:
            assert start.result().returncode == 1
            told = start.result().stderr
            assert "ledger.db is locked: waited 2" in told
            assert f"s for process {os.getpid()} (" in told
            assert f"if it hangs, end it: kill -9 {os.getpid()}" in told
    assert not any((node.state_root / bundle.name).exists() for bundle in waiting.values())
    # The slices that were left to reaping are free.
    assert node.run(bundles("XPU_MEM=15G")).returncode == 0
    assert node.grants() == []
    assert list(node.run_dir.glob("slices/*")) == []


def waits_for_lock(pid: int) -> bool:
    """Whether a lock that the process has asked for is another's."""
    locks = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and line.split()[5] == str(pid) for line in locks)


def test_a_driver_that_hangs_in_a_change_of_a_limit_stops_nobody_else(node: Node, bundles: Bundles) -> None:
    node.sim("2xT4")
    changed = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    other = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    driver = node.driver_pid
    words: list[str | Path] = [node.prefix / "bin" / "xpu", "set", changed, "--mem", "2G", "--force"]
    with locked(node):
        change = subprocess.Popen(words, env=node.environ, stderr=subprocess.PIPE, text=True)
        while not waits_for_lock(change.pid):
            assert change.poll() is None
        os.kill(driver, signal.SIGSTOP)
    try:
        end = node.oci("delete", "--force", other, timeout=10)
        assert (end.returncode, end.stderr) == (0, "")
        _, told = change.communicate(timeout=30)
    finally:
        os.kill(driver, signal.SIGCONT)
    assert change.returncode == 1
    assert told == (
        "xpu: the driver does not answer (see whether its own tools do): "
        "repeat the change when it does: `xpu inspect` shows what is in force\n"
    )
    (grant,) = node.grants()
    assert [part.memory_bytes for part in grant.slices] == [4 * GIB]
    node.xpu("set", changed, "--mem", "2G")
    assert node.oci("exec", changed, "cuda-probe", "info").stdout.endswith("of 2048 MiB\n")


# Gone.


def remove(node: Node) -> None:
    (node.run_dir / "ledger.db").unlink()


def empty(node: Node) -> None:
    os.truncate(node.run_dir / "ledger.db", 0)


def replace_by_an_old_copy(node: Node) -> None:
    # Beside it and renamed, so that it is another file: of tmpfs each is, of ext4 the next one need not be.
    shutil.copy(node.folder / "old.db", node.run_dir / "copy")
    (node.run_dir / "copy").rename(node.run_dir / "ledger.db")


def empty_the_folder(node: Node) -> None:
    for entry in node.run_dir.iterdir():
        if entry.name != "sim":  # the hardware
            # A grant's folder is a mount, of which rm takes the files and leaves the folder.
            subprocess.run(["rm", "-rf", entry], stderr=subprocess.DEVNULL, check=False)


LOSSES = pytest.mark.parametrize("lose", [remove, empty, replace_by_an_old_copy, empty_the_folder])


@LOSSES
@pytest.mark.parametrize(("mode", "topology"), [("hook", "1xT4"), ("spec", "1xT4-R580")])
def test_a_ledger_that_is_lost_while_containers_run_is_made_anew_from_them(
    node: Node, bundles: Bundles, lose: Callable[[Node], None], mode: str, topology: str
) -> None:
    node.configure(f"mode: {mode}")
    node.sim(topology)
    node.xpu("ps")
    shutil.copy(node.run_dir / "ledger.db", node.folder / "old.db")
    ended = node.start(bundles("XPU_MEM=2G", args=SLEEP))
    container = node.start(bundles("XPU_MEM=12G", "XPU_CORES=30", args=SLEEP))
    node.xpu("set", container, "--mem", "11G")
    (before,) = (entry for entry in node.json("ps") if entry["container_id"] == container)
    lose(node)
    node.remove(ended)
    told = refused(node, bundles("XPU_MEM=6G"))
    assert "no device has 6G of memory free (GPU 0: 4G free" in told
    (after,) = node.json("ps")
    assert after["memory_bytes"] == 11 * GIB
    # The amounts in use are in the pages, which may be lost too.
    in_pages = {"memory_used_bytes", "memory_unaccounted_bytes"}
    in_pages |= {"cores_got_percent", "cores_unaccounted_percent", "cores_sched", "cores_priority"}
    granted = [name for name in before if name not in in_pages]
    assert [after[name] for name in granted] == [before[name] for name in granted]
    node.remove(container)
    assert node.grants() == []
    assert node.run(bundles("XPU_MEM=15G")).returncode == 0
    node.xpu("gc")
    assert list(node.run_dir.glob("slices/*")) == []


def test_where_there_is_no_cgroup_v2_a_lost_ledger_is_made_anew_too(node: Node, bundles: Bundles) -> None:
    with node.own_mounts("umount /sys/fs/cgroup/unified"):
        node.sim("1xT4-R580")
        container = node.start(bundles("XPU_MEM=12G", args=SLEEP))
        remove(node)
        assert "3G free" in refused(node, bundles("XPU_MEM=6G"))
        node.remove(container)
        assert node.grants() == []


def test_a_slice_that_was_taken_away_by_hand_does_not_come_back(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=12G", args=SLEEP))
    node.xpu("release", "--force", container)
    remove(node)
    assert node.json("ps") == []


# From another PID namespace.

ELSEWHERE = ["unshare", "--pid", "--fork", "--mount-proc", "--"]


@pytest.fixture(autouse=True)
def _back_at_the_host(node: Node) -> Iterator[None]:
    yield
    node.view = []


def test_where_processes_of_containers_cannot_be_seen_all_is_shown_and_nothing_changed(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=12G", args=SLEEP))
    node.view = ELSEWHERE
    shown = node.xpu("ps", "--json")
    assert [entry["state"] for entry in json.loads(shown.stdout)] == ["running"]
    assert "which of these still run is not known in this PID namespace" in shown.stderr
    assert node.json("inspect", container)["grants"][0]["state"] == "running"
    why = f"belongs to another PID namespace ({os.readlink('/proc/self/ns/pid')}; this is pid:["
    for words in (["gc"], ["set", container, "--mem", "15G"], ["release", container]):
        done = node.xpu(*words, check=False)
        assert done.returncode == 1
        assert why in done.stderr
    for mode in ("hook", "spec"):
        node.configure(f"mode: {mode}")
        assert why in refused(node, bundles("XPU_MEM=1G"))
    node.view = []
    (entry,) = node.json("ps")
    held = (entry["container_id"], entry["state"], entry["memory_bytes"])
    assert held == (container, "running", 12 * GIB)
    # A lost ledger is not made anew there.
    remove(node)
    node.view = ELSEWHERE
    done = node.xpu("gc", check=False)
    assert done.returncode == 1
    assert f"container {container} got its slice from another PID namespace" in done.stderr
    node.view = []
    assert [entry["container_id"] for entry in node.json("ps")] == [container]


def test_an_engine_in_a_pid_namespace_of_its_own_has_a_ledger_of_its_own(
    node: Node, bundles: Bundles
) -> None:
    node.xpu("gc")  # the host has made it, and it is empty: the first to grant from it owns it
    script = "echo ready; exec sleep infinity"
    with namespace(*ELSEWHERE[:-2], "--kill-child", "--mount-proc", "sh", "-c", script) as outer:
        inner = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0]
        node.view = ["nsenter", "--pid", "--mount", "--target", inner, "--"]
        node.sim("1xT4")
        container = node.start(bundles("XPU_MEM=12G", args=SLEEP))
        assert node.xpu("gc").stdout == "nothing to give back: every grant's container is alive\n"
        assert [entry["state"] for entry in node.json("ps")] == ["running"]
        remove(node)
        assert [entry["container_id"] for entry in node.json("ps")] == [container]
        node.remove(container)
        assert node.json("ps") == []
        node.xpu("sim", "down")
        node.view = []


def test_a_restart_in_a_new_pid_namespace_says_how_to_go_on(node: Node, bundles: Bundles) -> None:
    script = (
        '"$0" sim up --topology 1xT4 && "$1" --root "$2" create --bundle "$3" "${3##*/}" </dev/null '
        '>/dev/null && "$0" sim down && rm -r "$2/${3##*/}"'
    )
    bundle = bundles("XPU_MEM=12G", args=SLEEP)
    words = [node.prefix / "bin" / "xpu", node.runtime, node.state_root, bundle]
    ended = [*ELSEWHERE[:-1], "--kill-child", "--", "sh", "-ec", script, *map(str, words)]
    subprocess.run(ended, env=node.environ, check=True)
    for folder in CGROUPS.glob(f"*/{bundle.name}"):
        folder.rmdir()
    node.sim("1xT4")
    ledger = node.run_dir / "ledger.db"
    told = refused(node, bundles("XPU_MEM=12G"))
    assert f"if that has ended, and the containers with it, remove {ledger}: it is made anew" in told
    ledger.unlink()
    assert node.run(bundles("XPU_MEM=12G")).returncode == 0


# Twice the same name.


@DRIVERS
def test_of_two_containers_of_one_id_and_bundle_the_end_of_one_frees_its_own_slice(
    node: Node, bundles: Bundles, topology: str
) -> None:
    node.sim(topology)
    bundle = bundles("XPU_MEM=4G", args=SLEEP)
    spec = json.loads((bundle / "config.json").read_text())
    first = node.start(bundle)
    roots = [node.state_root, node.folder / "other"]
    roots[1].mkdir()
    # Another cgroup, as its engine would name it: two containers in one would be ended together.
    spec["linux"]["cgroupsPath"] += "-other"
    (bundle / "config.json").write_text(json.dumps(spec))
    node.state_root = roots[1]
    node.start(bundle)
    try:
        one, other = node.grants()
        done = node.xpu("set", first, "--mem", "3G", check=False)
        assert done.returncode == 1 and f"several containers have the id {first} ({bundle}," in done.stderr
        assert done.stderr.endswith(": nothing tells them apart here: end one of them\n")
        for kept, root, ended in ((other, roots[0], one), (None, roots[1], other)):
            node.state_root = root
            node.remove(first)
            assert node.grants() == ([kept] if kept else []), ended
    finally:
        for node.state_root in roots:
            node.close_containers()
    assert list(node.run_dir.glob("slices/*")) == []
