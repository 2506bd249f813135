"""docker's facts about the asking user, for `policy.quotas`, and a reserved device."""

from __future__ import annotations

from ..conftest import Node
from .conftest import Docker

QUOTA = "policy: {quotas: [{name: a, match: {annotation: team, value: a}, max_memory: 4G}]}\n"


def test_a_label_is_not_told_and_an_annotation_is_from_docker_24_on(docker: Docker, node: Node) -> None:
    node.configure(QUOTA)
    assert docker.run("XPU_MEM=5G", "true", options=["--label", "team=a"]).status == 0
    version = docker.must("version", "--format", "{{.Server.APIVersion}}")
    done = docker.run("XPU_MEM=5G", "true", options=["--annotation", "team=a"])
    if tuple(map(int, version.split("."))) < (1, 43):
        # The engine is too old, or the command already.
        assert done.status and "--annotation" in done.error
    else:
        assert "refused: quota a (annotation team=a): 4G of 4G of memory left, 5G requested" in done.error


def test_a_restart_after_the_device_was_reserved_is_refused_without_its_name(
    docker: Docker, node: Node
) -> None:
    plain = docker.start("XPU_MEM=1G", "sleep", "1000")
    node.xpu("reserve", "0", "--for", "team-a", "--reason", "course")
    try:
        named = docker.start("XPU_MEM=1G XPU_RESERVATION=team-a", "sleep", "1000")
        assert docker.is_running(plain)  # it keeps what it has
        docker.must("restart", "--time", "0", named)
        done = docker("restart", "--time", "0", plain)
        assert "reserved for team-a: course (XPU_RESERVATION is not set)" in done.error
        assert docker.is_running(named) and not docker.is_running(plain)
    finally:
        node.xpu("unreserve", "0")
    docker.must("start", plain)
