"""`xpu inspect`, and use in `xpu ps`: by process and by kind, also with false pages."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import GIB, MIB
from xpu_runtime.ledger.grants import MEMORY
from xpu_runtime.ledger.store import Ledger

from ..conftest import SLEEP, Bundles, Node
from ..inside import allocated, kill

CONTEXT = 300 * MIB
#: As on a card, a context takes memory, so that the driver reports a process at once. It reports no process
#: without memory: that one's context is then estimated by the card's loss of free memory, which may be
#: another's.
OLD_DRIVER = {"driver": "R580", "gpus": [{"model": "T4", "context_mib": CONTEXT // MIB}]}
#: Programs that hold 1024, 512 and 256 MiB.
THREE = "for mib in 512 256; do cuda-probe alloc $mib --hold & done; exec cuda-probe alloc 1024 --hold"
PAGE = "/usr/lib/xpu/usage"


def old_driver(node: Node) -> None:
    topology = node.folder / "topology.yaml"
    topology.write_text(json.dumps(OLD_DRIVER))
    node.sim(topology)


def of_slice(node: Node, container: str) -> dict[str, Any]:
    """`xpu inspect`'s entry of the container's only slice."""
    (grant,) = node.json("inspect", container)["grants"]
    (part,) = grant["slices"]
    assert isinstance(part, dict)
    return part


def three(node: Node, bundles: Bundles) -> str:
    return allocated(node, bundles("XPU_MEM=4G", args=["sh", "-c", THREE]), 3)


def test_each_process_is_shown_with_its_memory_to_programs_and_people(node: Node, bundles: Bundles) -> None:
    old_driver(node)
    container = three(node, bundles)
    told = node.json("inspect", container[:-1])
    assert told["container_id"] == container
    assert told["problems"] == []
    (grant,) = told["grants"]
    assert (grant["state"], grant["mode"]) == ("running", "hook")
    assert (grant["pages"]["abi"], grant["pages"]["valid"]) == (2, True)
    assert Path(grant["pages"]["folder"]).is_dir()
    (part,) = grant["slices"]
    assert (part["memory_backend"], part["memory_strength"]) == ("library", "soft")
    assert (part["memory_bytes"], part["limit_in_force_bytes"]) == (4 * GIB, 4 * GIB)
    assert part["device_memory_bytes"] == 15 * GIB
    processes = part["processes"]
    assert [each["kinds"]["linear"] for each in processes] == [GIB, 512 * MIB, 256 * MIB]
    assert sum(each["used_bytes"] for each in processes) == part["memory_used_bytes"]
    for each in processes:
        assert each["used_bytes"] == each["driver_used_bytes"] == sum(each["kinds"].values())
        assert (each["name"], each["ended"]) == ("cuda-probe", False)
        with open(f"/proc/{each['pid']}/status") as lines:
            (numbers,) = (line.split()[1:] for line in lines if line.startswith("NSpid:"))
        assert numbers == [str(each["pid"]), str(each["container_pid"])]
    assert processes[0]["pid"] == grant["pid"]
    used = part["memory_used_bytes"] // MIB
    text = node.xpu("inspect", container).stdout
    assert f"  used     {used}M/4G, {used}M reported by the driver" in text
    assert "  held by  memory: library (soft)" in text
    assert "linear 1G" in text
    (line,) = (line for line in text.splitlines() if "linear 512M" in line)
    numbers = [str(processes[1]["pid"]), str(processes[1]["container_pid"])]
    assert line.split()[:3] == [*numbers, "cuda-probe"]
    (entry,) = node.json("ps")
    assert (entry["memory_used_bytes"], entry["memory_unaccounted_bytes"]) == (part["memory_used_bytes"], 0)
    shown = node.xpu("ps")
    (row,) = shown.stdout.splitlines()[1:]
    assert f" {used}M/4G " in row
    assert " memory: library (soft) " in row
    assert "unaccounted" not in shown.stdout + shown.stderr


def test_memory_of_a_killed_process_is_shown_until_it_is_given_back(node: Node, bundles: Bundles) -> None:
    old_driver(node)
    container = three(node, bundles)
    before = of_slice(node, container)
    smallest = before["processes"][-1]
    kill(smallest["pid"])
    after = of_slice(node, container)
    assert after["memory_used_bytes"] == before["memory_used_bytes"] - smallest["used_bytes"]
    ended = [each for each in after["processes"] if each["ended"]]
    assert [(each["pid"], each["container_pid"]) for each in ended] == [(None, smallest["container_pid"])]
    assert [each["used_bytes"] for each in ended] == [smallest["used_bytes"]]
    assert "ended" in node.xpu("inspect", container).stdout
    # The next program that finds no room gives the memory back. A program cannot give back its own context,
    # so the one after it does.
    for _ in range(2):
        program = node.oci("exec", container, "sh", "-c", "echo $$; exec cuda-probe alloc 3000")
        number, answer, *_ = program.stdout.splitlines()
        assert answer == "allocating 3000 MiB: CUDA_ERROR_OUT_OF_MEMORY"
        ended = [each for each in of_slice(node, container)["processes"] if each["ended"]]
        assert [(each["container_pid"], each["kinds"]) for each in ended] == [
            (int(number), {"overhead": CONTEXT})
        ]


def test_the_driver_backend_has_the_drivers_reported_usage(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = three(node, bundles)
    (grant,) = node.json("inspect", container)["grants"]
    assert grant["pages"] is None
    (part,) = grant["slices"]
    assert part["limit_in_force_bytes"] == 4 * GIB
    assert part["driver_used_bytes"] == part["memory_used_bytes"] >= 1792 * MIB
    assert [each["used_bytes"] for each in part["processes"]] == [None] * 3
    assert [
        each["driver_used_bytes"] >= amount * MIB
        for each, amount in zip(part["processes"], (1024, 512, 256), strict=True)
    ]
    assert {each["name"] for each in part["processes"]} == {"cuda-probe"}


def test_a_container_that_goes_round_its_limit_is_marked_and_told_of(
    node: Node, bundles: Bundles, system_log: socket.socket
) -> None:
    old_driver(node)
    script = (
        "cuda-probe alloc 512 --hold & LD_PRELOAD=/usr/lib/xpu/libcuda.real exec cuda-probe alloc 2000 --hold"
    )
    container = allocated(node, bundles("XPU_MEM=1G", args=["sh", "-c", script]), 2)
    (entry,) = node.json("ps")
    assert entry["memory_used_bytes"] == 512 * MIB + CONTEXT
    assert entry["memory_unaccounted_bytes"] == 2000 * MIB + CONTEXT
    line = f"container {container}: the driver counts 2300M on GPU 0 that its account lacks"
    shown = node.xpu("ps")
    assert "(2300M unaccounted)" in shown.stdout
    assert line in shown.stderr
    assert line in system_log.recv(4096).decode()
    assert line in node.xpu("gc").stderr
    told = node.json("inspect", container)
    assert any(line in problem for problem in told["problems"])
    part = of_slice(node, container)
    assert part["memory_unaccounted_bytes"] == 2000 * MIB + CONTEXT
    (process,) = [each for each in part["processes"] if each["used_bytes"] is None]
    assert (process["name"], process["container_pid"]) == ("cuda-probe", 1)
    assert process["driver_used_bytes"] == 2000 * MIB + CONTEXT
    # Once a container: `watch xpu ps` fills no log.
    system_log.setblocking(False)
    with pytest.raises(BlockingIOError):
        system_log.recv(4096)


def test_a_container_without_a_limit_and_a_dead_one_are_shown(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_COUNT=1", args=SLEEP))
    told = node.xpu("inspect", container).stdout
    assert "  limit    the whole device, 15G, cores -" in told
    assert "  used     0M/15G" in told
    assert of_slice(node, container)["memory_bytes"] is None
    kill(node.grants()[0].pid)
    assert node.json("inspect", container)["grants"][0]["state"] == "dead"
    unknown = node.xpu("inspect", "nope", check=False)
    assert (unknown.returncode, unknown.stderr) == (
        1,
        "xpu: no container 'nope' holds a slice: give its id, the beginning of it or its name, "
        "or it has already ended: see `xpu ps`\n",
    )


def test_a_backend_that_only_a_newer_version_has_hides_no_container(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=2G", "XPU_CORES=20", args=SLEEP))
    node.change_ledger("UPDATE slices SET cores_backend = 'newer'")
    assert [row["container_id"] for row in node.json("ps")] == [container]
    assert of_slice(node, container)["memory_backend"] == "driver"
    kill(node.grants()[0].pid)
    assert "gave back 2G" in node.xpu("gc").stdout
    assert node.json("ps") == []


@pytest.mark.parametrize(
    "attack",
    [
        f": > {PAGE}",
        f"dd if=/dev/urandom of={PAGE} bs=4096 conv=notrunc 2>&1 || true",
        f"truncate -s 1024G {PAGE}",
        f"truncate -s 6200 {PAGE}",
        f"tr '\\0' '\\377' < {PAGE} > /noise; cat /noise > {PAGE}",
    ],
)
def test_the_host_goes_on_whatever_a_container_writes_to_its_page(
    node: Node, bundles: Bundles, attack: str
) -> None:
    old_driver(node)
    container = three(node, bundles)
    done = node.oci("exec", container, "sh", "-c", attack)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (["ps"], ["inspect", container], ["set", container, "--mem", "5G"], ["inspect", container]):
        told = node.xpu(*words, check=False)
        assert told.returncode == 0, told.stderr
        assert "Traceback" not in told.stderr
        assert told.stdout.isascii()
    (entry,) = node.json("ps")
    assert entry["memory_bytes"] == 5 * GIB
    assert 0 <= entry["memory_used_bytes"] <= 15 * GIB
    # The quota page is not the container's to write.
    tried = node.oci("exec", container, "sh", "-c", "echo > /usr/lib/xpu/quota")
    assert tried.returncode != 0
    assert "Read-only file system" in tried.stderr


@contextmanager
def leased(page: str, how: str) -> Iterator[None]:
    """A program of the page's owner, as in a container, has a lease on it, and keeps others from opening
    it."""
    program = (
        "import fcntl, os, signal, sys\n"
        "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        f"fd = os.open(sys.argv[1], os.{how})\n"
        "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
        "print('leased', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        ["/usr/bin/python3", "-c", program, page], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"leased\n"
    try:
        yield
    finally:
        holder.communicate()


def test_a_container_that_takes_leases_on_its_pages_is_shown_by_the_driver_and_keeps_nobody_waiting(
    node: Node, bundles: Bundles
) -> None:
    """A reader would wait for /proc/sys/fs/lease-break-time, 45 seconds."""
    old_driver(node)
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    folder = node.json("inspect", container)["grants"][0]["pages"]["folder"]
    with leased(f"{folder}/usage", "O_RDWR"):
        told = node.xpu("ps")
        assert "the usage page" in told.stderr
        assert " 0M/4G " in told.stdout
        (problem,) = node.json("inspect", container)["problems"]
        assert "cannot be read" in problem
    assert node.xpu("ps").stderr == ""
    with leased(f"{folder}/quota", "O_RDONLY"):
        (problem,) = node.json("inspect", container)["problems"]
        assert "the quota page" in problem and "cannot be read" in problem
    assert node.json("inspect", container)["problems"] == []


@pytest.mark.parametrize("up", [lambda node: node.sim("1xT4"), old_driver], ids=["driver", "library"])
def test_a_change_that_was_cut_short_is_told_and_mended_by_repeating_it(
    node: Node, bundles: Bundles, up: Callable[[Node], None]
) -> None:
    up(node)
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    # Booked and not in force, as after a kill between the two.
    with Ledger(str(node.run_dir / "ledger.db")) as ledger:
        ledger.resize(node.grants()[0].id, lambda *_: {(0, MEMORY): 6 * GIB})
    assert of_slice(node, container)["limit_in_force_bytes"] == 4 * GIB
    (problem,) = node.json("inspect", container)["problems"]
    assert problem.startswith("GPU 0: 4G is in force and 6G is booked")
    assert "repeat it" in problem
    node.xpu("set", container, "--mem", "6G")
    assert node.json("inspect", container)["problems"] == []
    assert of_slice(node, container)["limit_in_force_bytes"] == 6 * GIB
    assert node.oci("exec", container, "cuda-probe", "info").stdout.endswith("of 6144 MiB\n")


def test_what_the_driver_does_not_tell_is_unknown_and_not_nothing(node: Node, bundles: Bundles) -> None:
    topology = node.folder / "silent.yaml"
    silent = "fail: {nvmlDeviceGetComputeRunningProcesses_v2: NVML_ERROR_NO_PERMISSION}"
    topology.write_text(f"driver: R580\ngpus: [{{model: T4, {silent}}}]")
    node.sim(topology)
    node.configure("enforcement: {allow_unenforced: [memory, cores]}")
    ask = ("XPU_MEM=4G", "XPU_ENFORCE=none")
    container = node.start(bundles(*ask, args=SLEEP))
    part = of_slice(node, container)
    assert (part["memory_used_bytes"], part["driver_used_bytes"]) == (None, None)
    lower = node.xpu("set", container, "--mem", "1G", check=False)
    assert lower.returncode == 1
    assert "is not known: give --force" in lower.stderr


def test_where_the_driver_has_gone_its_containers_are_shown_and_end(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    node.xpu("sim", "down")
    assert of_slice(node, container)["limit_in_force_bytes"] is None
    (row,) = node.json("ps")
    assert (row["memory_bytes"], row["memory_used_bytes"], row["state"]) == (4 * GIB, None, "running")
    done = node.xpu("set", container, "--mem", "5G", check=False)
    assert (done.returncode, done.stderr.startswith("xpu: ")) == (1, True), done.stderr
    node.remove(container)
    assert node.grants() == []
