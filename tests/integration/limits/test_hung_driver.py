"""Commands while the driver hangs: each ends, shows the facts that need no driver, and leaves no process
behind."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support import GIB
from support.sharing_time import until

from ..conftest import Bundles, Node, processes_of

SLEEP = ["sleep", "1000"]


def test_a_driver_that_hangs_leaves_the_lists_of_slices_and_devices(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4-R580")
    container = node.start(bundles("XPU_MEM=2G", args=["sleep", "1000"]))
    whole_uuid = node.xpu("devices", "-q").stdout.strip()

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return node.xpu(*words, check=False)

    # Side by side, because each waits for seconds. Metrics wait longest.
    with node.hanging_driver(), ThreadPoolExecutor() as pool:
        longest = pool.submit(ask, "metrics")
        asked = [("ps",), ("devices",), ("top", "--once"), ("inspect", container)]
        asked.append(("set", container, "--mem", "1G"))
        slices, devices, top, whole, less = pool.map(lambda words: ask(*words), asked)
        (node.run_dir / "inventory.json").unlink()
        asked = [("ps",), ("drain", whole_uuid), ("devices",), ("drain", "0"), ("top", "--once")]
        still, drained, *nothing = pool.map(lambda words: ask(*words), asked)
        figures = longest.result()
    silent = "memory in use is not known: the driver did not answer within"
    assert container[:12] in top.stdout and f"{silent} 5 s" in top.stderr
    assert f"container  {container}" in whole.stdout and f"{silent} 8 s" in whole.stdout
    assert "\nxpu_up 0.0\n" in figures.stdout and "the driver did not answer within 20 s" in figures.stderr
    assert less.returncode == 1 and "the driver did not answer within 8 s" in less.stderr
    assert "give --force" in less.stderr
    assert drained.stdout.startswith(f"{whole_uuid} is drained") and container[:12] in drained.stdout
    for each in nothing:
        assert each.returncode == 1
        assert each.stderr.startswith("xpu: the driver did not answer within 8 s: ")
    assert still.stdout.splitlines()[1].startswith(container[:12])
    (line,) = slices.stdout.splitlines()[1:]
    assert line.split()[:4] == [container[:12], "0", "2G", "-"]
    assert f"{silent} 8 s: see whether" in slices.stderr
    assert "Tesla T4" in devices.stdout
    assert "their use is not known: the driver did not answer within 8 s" in devices.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("words", [("devices",), ("set", "--mem", "1G")], ids=["devices", "set"])
def test_a_command_that_is_ended_leaves_nothing_in_the_driver(
    node: Node, bundles: Bundles, words: tuple[str, ...], number: signal.Signals
) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=2G", args=SLEEP))
    command: list[str | Path] = [
        node.prefix / "bin" / "xpu",
        words[0],
        *([container] if words[1:] else []),
        *words[1:],
    ]

    def asking() -> list[str]:
        return [each for each in processes_of(node) if f"xpu {words[0]} " in each]

    with node.hanging_driver():
        process = subprocess.Popen(command, env=node.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        until(lambda: len(asking()) == 2, "it asks")
        process.send_signal(number)
        process.communicate(timeout=10)  # also the end of any other process with its stdout
        until(lambda: not asking(), "none is left")


def test_slices_of_ended_containers_are_given_back(node: Node, bundles: Bundles) -> None:
    """The limit of the cgroup, which stays, is the driver's."""
    node.sim("1xT4")
    node.start(bundles("XPU_MEM=2G", args=SLEEP))
    (grant,) = node.grants()
    os.kill(grant.pid, signal.SIGKILL)
    until(lambda: node.json("ps")[0]["state"] == "dead", "it has ended")
    with node.hanging_driver():
        done = node.xpu("gc", check=False)
    assert (done.returncode, done.stdout) == (0, f"{grant.container_id}: gave back 2G of GPU 0\n")
    assert done.stderr.startswith("xpu: limits of released slices may still be in force: the driver")
    assert node.grants() == []


@pytest.mark.parametrize("words", [("set", "--cores", "50"), ("release",)], ids=["set", "release"])
def test_a_dead_container_whose_limit_the_driver_holds_keeps_no_command(
    node: Node, bundles: Bundles, words: tuple[str, ...]
) -> None:
    """The request needs no driver: the interposers hold cores."""
    node.sim("1xT4")
    lives = node.start(bundles("XPU_MEM=1G", "XPU_CORES=30", args=SLEEP))
    dead = node.start(bundles("XPU_MEM=1G", args=SLEEP))
    (grant,) = (each for each in node.grants() if each.container_id == dead)
    os.kill(grant.pid, signal.SIGKILL)
    until(lambda: "dead" in [each["state"] for each in node.json("ps")], "it has ended")
    command, *options = words
    with node.hanging_driver():
        done = node.xpu(command, lives if command == "set" else dead, *options)
    assert done.stderr.startswith("xpu: limits of released slices may still be in force: the driver")
    (entry,) = node.json("ps")
    assert (entry["container_id"], entry["cores"]) == (lives, 50 if command == "set" else 30)
    (shown,) = node.json("inspect", lives)["grants"][0]["slices"]
    assert shown["cores_in_force"] == entry["cores"]


def test_less_than_is_in_use_perhaps_takes_force(node: Node, bundles: Bundles) -> None:
    """A process beside the account may have more than the account says."""
    node.sim("1xT4-R580")
    container = node.start(bundles("XPU_MEM=2G", args=["cuda-probe", "alloc", "200", "--hold"]))
    until(lambda: node.json("ps")[0]["memory_used_bytes"], "it has allocated")
    with node.hanging_driver():
        refused = node.xpu("set", container, "--mem", "1G", check=False)
        assert refused.returncode == 1 and "is not known (the driver did not answer" in refused.stderr
        node.xpu("set", container, "--mem", "1G", "--force")
    (grant,) = node.grants()
    assert grant.slices[0].memory_bytes == GIB


def test_a_caller_that_ignores_its_children_is_told_what_came_of_a_change(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    command: list[str | Path] = [node.prefix / "bin" / "xpu", "set", container, "--mem"]
    for amount, status in (("2G", 0), ("100G", 3)):
        done = subprocess.run(
            [*command, amount],
            env=node.environ,
            capture_output=True,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        )
        assert done.returncode == status, done.stderr
    assert node.grants()[0].slices[0].memory_bytes == 2 * GIB
