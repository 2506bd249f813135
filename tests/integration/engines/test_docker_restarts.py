"""Restart policies: docker starts a container again, and its slice is booked anew each time, once."""

from __future__ import annotations

import os
import signal

import pytest

from support.engine_table import tried

from ..conftest import Node
from .conftest import Daemon, Docker, until


def events(node: Node, container: str) -> list[str]:
    return [each["event"] for each in node.events("--container", container)]


@tried("restart")
@pytest.mark.parametrize("policy", ["always", "unless-stopped", "on-failure"])
def test_each_restart_of_a_policy_books_one_slice(docker: Docker, node: Node, policy: str) -> None:
    container = docker.start("XPU_MEM=10G", "sleep", "1000", options=[f"--restart={policy}"])
    for count in (1, 2):
        before = docker.pid(container)
        os.kill(before, signal.SIGKILL)
        until(lambda: docker.pid(container) not in (0, before), "docker restarts the container")  # noqa: B023
        assert docker.inspect(container)["RestartCount"] == count
        until(lambda: [e["pid"] for e in node.json("ps")] == [docker.pid(container)], "it has its slice")
    assert events(node, container) == ["granted", "released"] * 2 + ["granted"]
    docker.must("stop", "--time=0", container)
    assert node.json("ps") == []


@tried("restart-refused")
@pytest.mark.parametrize("policy", ["always", "unless-stopped", "on-failure"])
def test_a_refusal_at_a_restart_is_the_container_s_error_and_ends_the_policy(
    docker: Docker, node: Node, policy: str
) -> None:
    container = docker.start("XPU_MEM=1G", "sleep", "1000", options=[f"--restart={policy}"])
    node.xpu("reserve", "0", "--for", "team-a")
    try:
        os.kill(docker.pid(container), signal.SIGKILL)
        until(lambda: "reserved for team-a" in docker.inspect(container)["State"]["Error"], "it is refused")
        until(lambda: not docker.inspect(container)["State"]["Restarting"], "docker has given up")
        assert not docker.is_running(container)
        assert events(node, container) == ["granted", "released", "refused"]
    finally:
        node.xpu("unreserve", "0")
    assert not docker.is_running(container)
    docker.must("start", container)
    assert [entry["pid"] for entry in node.json("ps")] == [docker.pid(container)]


@tried("boot")
@pytest.mark.parametrize(("policy", "runs"), [("always", True), ("unless-stopped", True), ("no", False)])
def test_a_dockerd_that_starts_brings_back_what_its_policy_says(
    docker: Docker, dockerd: Daemon, node: Node, policy: str, runs: bool
) -> None:
    """As after a boot of the machine: the containers have ended, and dockerd has not seen it."""
    container = docker.start("XPU_MEM=10G", "sleep", "1000", options=[f"--restart={policy}"])
    pid = docker.pid(container)
    dockerd.stop(signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    dockerd.start()
    until(lambda: docker.is_running(container) is runs and docker.pid(container) != pid, "dockerd has looked")
    assert [entry["pid"] for entry in node.json("ps")] == ([docker.pid(container)] if runs else [])
