"""`XPU_ENFORCE=mps` on real runc: a control daemon for each card, and programs that prove to be under it."""

from __future__ import annotations

import json
import re
import subprocess
import time
from typing import Any

import pytest

from share import logs
from support import timing
from support.sharing_time import until

from ...conftest import Bundles, Node
from .daemons import MPS, SLEEP, daemons, has_namespaces, kept, kill, names, number


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_a_daemon_is_there_as_long_as_containers_are(card: Node, bundles: Bundles, mode: str) -> None:
    card.configure(f"mode: {mode}\n")
    assert names(card) == []
    first = card.start(bundles(MPS, "XPU_MEM=4G", "XPU_CORES=30", args=SLEEP))
    there = daemons(card)
    assert [name for name, _ in there] == ["control", "server"]
    (entry,) = card.json("ps")
    assert [entry[f"{kind}_{what}"] for kind in ("memory", "cores") for what in ("backend", "strength")] == [
        *("mps", "soft"),
        *("mps", "soft"),
    ]
    second = card.start(bundles(MPS, "XPU_CORES=40", "XPU_MEM=2G", args=SLEEP))
    assert daemons(card) == there
    card.remove(first)
    assert daemons(card) == there
    card.remove(second)
    assert daemons(card) == []
    assert kept(card) == []


def test_a_program_is_under_mps_with_its_percentage_and_memory(card: Node, bundles: Bundles) -> None:
    container = card.start(bundles(MPS, "XPU_MEM=4G", "XPU_CORES=30", args=SLEEP))
    assert card.oci("exec", container, "cuda-probe", "mps").stdout == "device 0: under MPS, 12\n"
    seen = card.oci("exec", container, "cuda-probe", "alloc", "3000", "2000").stdout
    assert "allocating 3000 MiB: CUDA_SUCCESS" in seen
    assert "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in seen
    # Its own variables can take less (not where the server decides), and no more, and cannot lead it to
    # another daemon, or to none.
    for asked, got in (("10", 12 if has_namespaces(card) else 4), ("90", 12)):
        env = ["--env", f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={asked}", "--env", "CUDA_MPS_PIPE_DIRECTORY=/tmp"]
        done = card.oci("exec", *env, container, "cuda-probe", "mps")
        assert done.stdout == f"device 0: under MPS, {got}\n", done.stderr


def test_from_r615_on_the_server_holds_each_container_in_a_namespace(node: Node, bundles: Bundles) -> None:
    """Neither a program's variables nor our library decide its limits: a program may avoid our library."""
    node.sim("1xT4")
    first = node.start(bundles(MPS, "XPU_MEM=4G", "XPU_CORES=30", args=SLEEP))
    second = node.start(bundles(MPS, "XPU_CORES=40", "XPU_MEM=2G", args=SLEEP))
    (uuid,) = kept(node)
    folder = node.run_dir / "devices" / "mps" / uuid
    assert f'allowed_devices = "{uuid}"' in (folder / "config.toml").read_text()
    (program,) = node.run_dir.rglob("usr/bin/nvidia-cuda-mps-control")

    def namespaces() -> list[list[str]]:
        done = subprocess.run(
            [program, "namespace", "list", "--format=csv,noheader"],
            env={"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe")},
            capture_output=True,
            text=True,
            check=True,
        )
        rows = [line.split(",") for line in done.stdout.splitlines()]
        return [row[3:5] for row in rows if row[0] != "default"]

    assert namespaces() == [["4096M", "30.00"], ["2048M", "40.00"]]
    script = (
        "mkdir /tmp/x; ln -s /usr/lib/xpu/libcuda.real /tmp/x/libcuda.so.1; exec env LD_LIBRARY_PATH=/tmp/x"
    )
    env = ["--env", "CUDA_MPS_PIPE_DIRECTORY=/usr/lib/xpu/mps"]
    done = node.oci("exec", *env, first, "sh", "-c", f"{script} cuda-probe mps")
    assert done.stdout == "device 0: under MPS, 12\n", done.stderr
    node.xpu("set", first, "--cores", "50", "--mem", "6G")
    assert namespaces()[0] == ["6144M", "50.00"]
    # A restarted daemon has the namespaces of the running containers, and none of an ended one.
    kill(number(node, "control"))
    until(lambda: names(node) == [], "the server has ended")
    node.remove(second)
    third = node.start(bundles(MPS, "XPU_CORES=20", "XPU_MEM=1G", args=SLEEP))
    assert namespaces() == [["6144M", "50.00"], ["1024M", "20.00"]]
    for container, count in ((first, 20), (third, 8)):
        told = node.oci("exec", container, "cuda-probe", "mps").stdout
        assert told == f"device 0: under MPS, {count}\n"
    node.remove(first)
    node.start(bundles(MPS, "XPU_CORES=10", "XPU_MEM=1G", args=SLEEP))
    assert namespaces() == [["1024M", "10.00"], ["1024M", "20.00"]]


def test_users_of_all_containers_share_the_server(card: Node, bundles: Bundles) -> None:
    bundle = bundles(MPS, "XPU_CORES=50", "XPU_MEM=4G", args=SLEEP)
    (bundle / "rootfs").chmod(0o755)
    container = card.start(bundle)
    for user in ("0", "1000", "1001"):
        done = card.oci("exec", "--user", user, container, "cuda-probe", "mps")
        assert done.stdout == "device 0: under MPS, 20\n", done.stderr
    assert names(card) == ["control", "server"]


def test_a_container_cannot_end_the_daemon(card: Node, bundles: Bundles) -> None:
    container = card.start(bundles(MPS, "XPU_MEM=4G", args=SLEEP))
    there = daemons(card)
    listed = card.oci("exec", container, "ls", "/usr/lib/xpu/mps").stdout.split()
    assert listed == (["control"] if has_namespaces(card) else ["control", "log"])
    env = ["--env", "CUDA_MPS_PIPE_DIRECTORY=/usr/lib/xpu/mps"]
    done = card.oci("exec", *env, container, "sh", "-c", "echo quit | nvidia-cuda-mps-control")
    assert (done.returncode, done.stdout) == (1, "Cannot find MPS control daemon process\n")
    assert daemons(card) == there


def test_containers_without_a_cap_run_side_by_side_and_that_is_shown(card: Node, bundles: Bundles) -> None:
    told = card.xpu("explain", "-e", MPS, "-e", "XPU_MEM=4G").stdout
    assert "no cap on cores, side by side with others on the device" in told
    assert "under MPS a fatal error of one container's kernel ends the programs of all" in told
    card.start(bundles(MPS, "XPU_MEM=4G", args=SLEEP))
    (entry,) = card.json("ps")
    assert entry["cores_shared"] == "side by side"
    assert " side by side " in card.xpu("ps").stdout


def test_a_root_folder_that_was_under_mps_serves_without_it(card: Node, bundles: Bundles) -> None:
    """The mountpoints of its files are still there."""
    bundle = bundles(MPS, "XPU_MEM=4G", args=SLEEP)
    card.remove(card.start(bundle))
    config = bundle / "config.json"
    spec = json.loads(config.read_text())
    spec["process"]["env"].remove(MPS)
    spec["process"]["env"] += ["XPU_ENFORCE=library", "XPU_CORES=30"]
    config.write_text(json.dumps(spec))
    container = card.start(bundle)
    done = card.oci("exec", container, "cuda-probe", "mps")
    assert done.stdout == "device 0: without MPS, 40\n", done
    done = card.oci("exec", container, "cuda-probe", "alloc", "5000")
    assert "allocating 5000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in done.stdout


def test_a_cap_changes_live_and_new_programs_get_more(card: Node, bundles: Bundles) -> None:
    container = card.start(bundles(MPS, "XPU_MEM=4G", "XPU_CORES=30", args=SLEEP))

    def in_force() -> Any:
        return card.json("inspect", container)["grants"][0]["slices"][0]["cores_in_force"]

    def program() -> str:
        return card.oci("exec", container, "cuda-probe", "mps").stdout

    assert in_force() == 30
    assert card.xpu("set", container, "--cores", "10").stderr == ""
    assert (in_force(), program()) == (10, "device 0: under MPS, 12\n")  # the pacer holds the rest
    told = card.xpu("set", container, "--cores", "60", "--mem", "6G").stderr
    assert "only programs that start from now on get more" in told
    assert "if it is less than 60%, start them again" in told
    assert (in_force(), program()) == (60, "device 0: under MPS, 24\n")
    seen = card.oci("exec", container, "cuda-probe", "alloc", "5000").stdout
    assert "allocating 5000 MiB: CUDA_SUCCESS" in seen
    done = card.xpu("set", container, "--sched", "burst", check=False)
    assert "which supports neither --sched nor --priority" in done.stderr


class Busy:
    """A container under MPS whose programs have work for the card all the time."""

    def __init__(self, node: Node, bundles: Bundles, cores: int, processes: int) -> None:
        words = f"/load/share-load async kernel=1ms processes={processes} seconds=100 log=/log".split()
        bundle = bundles(MPS, "XPU_MEM=1G", f"XPU_CORES={cores}", args=words)
        self.id = node.start(bundle)
        self._logs = [bundle / "rootfs" / f"log.{number}" for number in range(processes)]
        until(lambda: all(logs.state(each)[0] == logs.RUNNING for each in self._logs), "all are at work")

    def work(self) -> float:
        """Seconds of the card's time that its programs have completed."""
        return sum(sum(each.work[-1:]) for each in map(logs.read, self._logs))


@pytest.mark.alone  # shares of time are measured
def test_caps_hold_side_by_side_for_all_processes_together_and_when_they_shrink(
    node: Node, with_load: Bundles
) -> None:
    """A program alone needs no pacing: its percentage is the cap. Several, or one with a lower cap, do."""
    node.sim("1xT4-R580")
    several = Busy(node, with_load, 30, processes=3)
    one = Busy(node, with_load, 60, processes=1)

    def shares() -> tuple[list[float], list[float]]:
        """Both programs' completed part of the card's time, and `xpu ps`'s figures."""
        time.sleep(0.5)  # launches that the old cap has let through
        before, began = [each.work() for each in (several, one)], time.monotonic()
        time.sleep(1)
        told = {entry["container_id"]: entry["cores_got_percent"] for entry in node.json("ps")}
        time.sleep(0.5)
        after, passed = [each.work() for each in (several, one)], time.monotonic() - began
        pairs = zip(before, after, strict=True)
        return [100 * (b - a) / passed for a, b in pairs], [told[several.id], told[one.id]]

    for cap, other, changed in ((30, 60, None), (10, 60, several), (10, 20, one)):
        if changed is not None:
            node.xpu("set", changed.id, "--cores", str(cap if changed is several else other))
        timing.equals((pytest.approx([cap, other], abs=5), pytest.approx([cap, other], abs=8)), shares)


def test_a_run_folder_too_long_for_the_sockets_is_refused_with_the_way_out(
    node: Node, bundles: Bundles
) -> None:
    """NVIDIA's daemon ends there with status 1, without a word."""
    node.run_dir = node.folder / "a-run-folder-of-30-characters-"
    node.environ["XPU_RUN_DIR"] = str(node.run_dir)
    node.sim("1xT4-R580")
    done = node.run(bundles(MPS, "XPU_MEM=4G"))
    assert done.returncode != 0
    assert "/pipe/control_privileged has 21 bytes more than the 106 that fit" in done.stderr, done.stderr
    assert "set XPU_RUN_DIR to a shorter path" in done.stderr
    explained = node.xpu("explain", "-e", MPS, "-e", "XPU_MEM=4G", check=False)
    assert "set XPU_RUN_DIR to a shorter path" in explained.stdout + explained.stderr
    assert node.run(bundles("XPU_MEM=4G", args=["true"])).returncode == 0  # without MPS it serves


def test_requests_that_mps_cannot_serve_are_refused_with_the_reason(node: Node, bundles: Bundles) -> None:
    node.sim("2xT4-R535")
    for asked, why in (
        (["XPU_MEM=4G"], "mps needs driver R555 or newer, not 535"),
        ([], "XPU_ENFORCE=mps holds a limit: it needs XPU_MEM or XPU_CORES"),
    ):
        done = node.run(bundles(MPS, *asked))
        assert why in done.stderr
    both = node.xpu("explain", "-e", MPS, "-e", "XPU_MEM=4G", "-e", "XPU_CORES=30", check=False).stdout
    assert both.count("mps needs driver R555") == 1  # one reason for memory and for cores
    node.xpu("sim", "down")
    node.sim("2xT4")
    for words, why in (
        (("XPU_MEM=4G", "XPU_COUNT=2"), "mps serves one device per container"),
        (("XPU_CORES=30", "XPU_SCHED=burst"), "mps supports neither XPU_SCHED nor XPU_PRIORITY"),
    ):
        done = node.run(bundles(MPS, *words))
        assert why in done.stderr, done.stderr
    (entry,) = [node.json("explain", "-e", "XPU_MEM=4G", "-e", "XPU_CORES=30")["slices"]]
    assert re.search("mps", str(entry)) is None  # never unless it is named
