"""docker's names of containers: shown beside ids, accepted by commands, kept for containers that are gone."""

from __future__ import annotations

import signal
from pathlib import Path

from support import GIB

from ..conftest import Node
from .conftest import Daemon, Docker, until

HOLD = ("sleep", "1000")


def entry(node: Node, container: str) -> dict[str, object]:
    (found,) = [each for each in node.json("ps") if each["container_id"] == container]
    return dict(found)


def events(node: Node, container: str) -> list[tuple[str, str | None]]:
    return [(each["event"], each["name"]) for each in node.events("--container", container)]


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
    # docker has it still, and events have the name that it had when it got its slice.
    until(lambda: events(node, "db")[-1] == ("released", "web"), "its slice is given back")
    docker.must("rm", "db")
    assert events(node, container)[-1] == ("released", "web")
    assert events(node, "web")[-1] == ("released", "web")


def test_a_containers_name_is_known_when_it_is_gone(docker: Docker, node: Node) -> None:
    done = docker.run("XPU_MEM=2G", "true", options=["--name", "short"])
    assert done.status == 0, done
    assert docker.run("XPU_MEM=200G", "true", options=["--name", "large"]).status == 125
    assert docker.must("ps", "--all", "--quiet") == ""  # --rm
    until(lambda: events(node, "short") == [("granted", "short"), ("released", "short")], "it has ended")
    assert events(node, "large") == [("refused", "large")]
    assert "  (large)  no device has " in node.xpu("events").stdout


def test_a_name_is_the_containers_own_whatever_is_mounted_in_it(
    docker: Docker, node: Node, tmp_path: Path
) -> None:
    (tmp_path / "config.v2.json").write_text('{"Name": "/mine"}')
    (tmp_path / "hostname").write_text("mine")
    own = ["--name", "own", "--volume", f"{tmp_path}/hostname:/etc/hostname"]
    other = docker.start("", *HOLD, options=["--name", "other"], runtime="")
    assert docker.run("XPU_MEM=2G", "true", options=own).status == 0
    until(lambda: events(node, "own") == [("granted", "own"), ("released", "own")], "it has ended")
    # With another's network it has no file of its own; docker itself tells its name while it has it.
    joined = docker.run_words("XPU_MEM=2G", *HOLD, options=["--detach", "--name", "joined"])
    joined[joined.index("--network=none")] = f"--network=container:{other}"
    docker.must(*joined)
    assert events(node, "joined") == [("granted", "joined")]
    assert events(node, "mine") == events(node, "other") == []


def test_a_docker_that_hangs_costs_a_second_and_no_names(docker: Docker, dockerd: Daemon, node: Node) -> None:
    container = docker.start("XPU_MEM=2G", *HOLD, options=["--name", "held"])
    dockerd.send(signal.SIGSTOP)
    try:
        assert entry(node, container)["name"] == "held"  # as docker has written it down
        assert node.xpu("ps").stdout.endswith("held\n")
        assert events(node, "held") == [("granted", "held")]
    finally:
        dockerd.send(signal.SIGCONT)
    assert entry(node, container)["name"] == "held"
