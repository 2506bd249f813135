"""docker's names of containers: shown beside ids, taken by commands, absent where docker does not answer."""

from __future__ import annotations

import json
import signal

from support import GIB

from ..conftest import Node
from .conftest import Daemon, Docker, until

HOLD = ("sleep", "1000")


def entry(node: Node, container: str) -> dict[str, object]:
    (found,) = [each for each in node.json("ps") if each["container_id"] == container]
    return dict(found)


def events(node: Node, container: str) -> list[tuple[str, str | None]]:
    lines = node.xpu("events", "--container", container, "--json").stdout.splitlines()
    return [(each["event"], each["name"]) for each in map(json.loads, lines)]


def test_a_docker_containers_name_is_shown_and_taken(docker: Docker, node: Node) -> None:
    container = docker.start("XPU_MEM=2G", *HOLD, options=["--name", "web"])
    assert entry(node, container)["name"] == "web"
    assert node.json("inspect", "web")["container_id"] == container
    node.xpu("set", "web", "--mem", "3G")
    assert entry(node, container)["memory_bytes"] == 3 * GIB
    docker.must("rename", "web", "db")
    assert entry(node, container)["name"] == "db"
    assert node.json("inspect", "db")["container_id"] == container
    gone = node.xpu("inspect", "web", check=False)
    assert "no container 'web' holds a slice" in gone.stderr
    docker.must("stop", "--time", "0", "db")
    # docker has it still, and with it the name of what has happened to it.
    until(lambda: events(node, "db")[-1] == ("released", "db"), "its slice is given back")
    docker.must("rm", "db")
    assert events(node, container)[-1] == ("released", None)


def test_an_id_wins_over_a_name(docker: Docker, node: Node) -> None:
    first = docker.start("XPU_MEM=2G", *HOLD)
    second = docker.start("XPU_MEM=2G", *HOLD, options=["--name", first[:12]])
    assert entry(node, second)["name"] == first[:12]
    node.xpu("set", first[:12], "--mem", "3G")
    assert (entry(node, first)["memory_bytes"], entry(node, second)["memory_bytes"]) == (3 * GIB, 2 * GIB)
    docker.must("rename", second, "second")  # with docker, a name wins over the beginning of an id


def test_a_docker_that_hangs_costs_its_names_and_nothing_else(
    docker: Docker, dockerd: Daemon, node: Node
) -> None:
    container = docker.start("XPU_MEM=2G", *HOLD, options=["--name", "web"])
    dockerd.send(signal.SIGSTOP)
    try:
        assert entry(node, container)["name"] is None
        assert container[:12] in node.xpu("ps").stdout
        assert ("granted", None) in events(node, container)
        done = node.xpu("inspect", "web", check=False)
        assert "no container 'web' holds a slice" in done.stderr
    finally:
        dockerd.send(signal.SIGCONT)
    assert entry(node, container)["name"] == "web"
