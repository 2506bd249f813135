"""Processes of the engine killed while containers have slices: none is lost, and none is held by the dead."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from support.engine_table import tried

from ..conftest import Node
from .conftest import Daemon, Docker, Engines, shim_of, until


def _shim(engines: Engines, docker: Docker, container: str) -> int:
    engines.shim_socket("moby", container)
    return shim_of(docker.pid(container))


def _kill_init(engines: Engines, docker: Docker, container: str) -> None:
    os.kill(docker.pid(container), signal.SIGKILL)


def _kill_shim(engines: Engines, docker: Docker, container: str) -> None:
    os.kill(_shim(engines, docker, container), signal.SIGKILL)


def _kill_shim_and_init(engines: Engines, docker: Docker, container: str) -> None:
    init, shim = docker.pid(container), _shim(engines, docker, container)
    os.kill(shim, signal.SIGKILL)
    os.kill(init, signal.SIGKILL)


def _kill_init_and_shim(engines: Engines, docker: Docker, container: str) -> None:
    init, shim = docker.pid(container), _shim(engines, docker, container)
    os.kill(shim, signal.SIGSTOP)  # it shall not see the end of its container
    os.kill(init, signal.SIGKILL)
    os.kill(shim, signal.SIGKILL)


@pytest.mark.parametrize("kill", [_kill_init, _kill_shim, _kill_shim_and_init, _kill_init_and_shim])
def test_the_slice_of_a_container_that_was_killed_with_its_shim_is_free_again(
    docker: Docker, node: Node, engines: Engines, kill: Callable[[Engines, Docker, str], None]
) -> None:
    container = docker.hold("XPU_MEM=15G", 14000)
    kill(engines, docker, container)
    until(lambda: not docker.is_running(container), "docker knows that the container has ended")
    # Nobody need do anything: the next container reaps the dead, and the driver has its memory back.
    assert (
        "allocating 14000 MiB: CUDA_SUCCESS" in docker.run("XPU_MEM=15G", "cuda-probe", "alloc", "14000").out
    )
    node.xpu("gc")
    assert node.json("ps") == []


@tried("live-restore")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "restarted"])
def test_containers_that_live_on_when_dockerd_is_killed_or_restarted_keep_their_slices(
    docker: Docker, dockerd: Daemon, node: Node, number: int
) -> None:
    """By live-restore."""
    container = docker.hold("XPU_MEM=4G", 3000)
    (before,) = node.json("ps")
    dockerd.stop(number)
    assert node.json("ps") == [before]  # with its name, which docker has written down
    node.xpu("gc")
    assert node.json("ps") == [before]
    dockerd.start()
    assert docker.is_running(container)
    assert docker("exec", container, "cuda-probe", "alloc", "2000").status == 3
    assert docker.run("XPU_MEM=12G", "true").status == 125
    docker.must("stop", "--time=0", container)
    assert node.json("ps") == []


@tried("dockerd-dead")
def test_a_container_that_ends_while_dockerd_is_dead_gives_its_slice_back(
    docker: Docker, dockerd: Daemon, node: Node
) -> None:
    container = docker.hold("XPU_MEM=4G", 3000)
    pid = docker.pid(container)
    dockerd.stop(signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}/stat").exists(), "the shim has waited for the container")
    assert [each["state"] for each in node.json("ps")] == ["dead"]
    node.xpu("gc")
    assert node.json("ps") == []
    dockerd.start()
    until(lambda: not docker.is_running(container), "docker knows that the container has ended")


def test_a_slice_that_was_never_given_back_does_not_stand_in_the_way_of_its_own_container(
    docker: Docker, node: Node, mode: str
) -> None:
    container = docker.start("XPU_MEM=10G", "sleep", "1000")
    ledger = node.run_dir / "ledger.db"
    aside = ledger.rename(node.run_dir / "aside")
    docker.must("stop", "--time=0", container)  # poststop finds no ledger, as it may find a full disk
    aside.rename(ledger)
    # The new container has its predecessor's id, bundle and cgroup.
    docker.must("start", container)
    assert [entry["pid"] for entry in node.json("ps")] == [docker.pid(container)]
