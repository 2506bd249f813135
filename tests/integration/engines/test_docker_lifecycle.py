"""A container's life under docker: its slice comes when it starts and goes when it ends, however often."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import GIB, MIB
from support.engine_table import tried

from ..conftest import Node
from .conftest import BACKENDS, Daemon, Docker, Engines, completed, until


@tried("docker")
def test_stop_gives_the_slice_back_and_start_takes_one_again(docker: Docker, node: Node, mode: str) -> None:
    container = docker.start("XPU_MEM=4G", "sleep", "1000")
    first = node.json("ps")
    assert [entry["container_id"] for entry in first] == [container]
    docker.must("stop", "--time=0", container)
    assert node.json("ps") == []
    docker.must("start", container)
    (again,) = node.json("ps")
    assert again["container_id"] == container
    assert again["memory_bytes"] == 4 * GIB
    assert again["pid"] == docker.pid(container) != first[0]["pid"]
    assert docker("exec", container, "cuda-probe", "alloc", "3000", "2000").status == 3


@BACKENDS
def test_a_restarted_container_has_one_slice_and_its_limit(
    docker: Docker, node: Node, mode: str, ask: str
) -> None:
    container = docker.start(ask, "sleep", "1000")
    for _ in range(3):
        docker.must("restart", "--time=0", container)
    (entry,) = node.json("ps")
    assert (entry["container_id"], entry["pid"]) == (container, docker.pid(container))
    done = docker("exec", container, "cuda-probe", "alloc", "3000", "2000")
    assert "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in done.out


def test_a_container_that_fails_and_is_restarted_leaves_no_grant(docker: Docker, node: Node) -> None:
    container = docker.start("XPU_MEM=15G", "sh", "-c", "exit 1", options=["--restart=on-failure:3"])
    until(
        lambda: docker.inspect(container)["RestartCount"] == 3 and not docker.is_running(container),
        "docker has given up",
    )
    assert docker.inspect(container)["State"]["Error"] == ""
    assert docker.inspect(container)["State"]["ExitCode"] == 1
    assert node.json("ps") == []


def test_a_container_started_again_after_a_driver_upgrade_gets_the_new_drivers_files(
    docker: Docker, topology: Callable[[str], None], mode: str
) -> None:
    topology("1xT4-R580")
    container = docker.start("XPU_COUNT=1", "sleep", "1000")
    old = docker.must("exec", container, "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    docker.must("stop", "--time=0", container)
    topology("1xT4")
    docker.must("start", container)
    new = docker.must("exec", container, "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    assert old.startswith("580.") and new.startswith("615.")
    assert "of 15360 MiB" in docker.must("exec", container, "cuda-probe", "info")


def test_a_stopped_container_whose_slice_was_taken_is_refused_and_starts_later(
    docker: Docker, node: Node
) -> None:
    container = docker.start("XPU_MEM=10G", "sleep", "1000")
    docker.must("stop", "--time=0", container)
    other = docker.start("XPU_MEM=10G", "sleep", "1000")
    done = docker("start", container)
    assert done.status == 1
    assert "refused: no device has 10G of memory free" in done.error
    assert [entry["container_id"] for entry in node.json("ps")] == [other]
    docker.must("rm", "--force", other)
    docker.must("start", container)
    assert [entry["container_id"] for entry in node.json("ps")] == [container]


def test_a_program_started_by_exec_has_the_device_and_shares_the_containers_limit(
    docker: Docker,
) -> None:
    container = docker.hold("XPU_MEM=4G", 3000)
    assert "/   4096MiB" in docker.must("exec", container, "nvidia-smi")
    words = ["exec", "--user=1000", "--env=XPU_MEM=8G", container, "cuda-probe", "alloc", "500", "1000"]
    done = docker(*words)
    assert done.out.splitlines()[:2] == [
        "allocating 500 MiB: CUDA_SUCCESS",
        "allocating 1000 MiB: CUDA_ERROR_OUT_OF_MEMORY",
    ]
    assert docker("exec", container, "sh", "-c", "exit 42").status == 42


def test_a_paused_container_keeps_its_slice_and_goes_on(docker: Docker, node: Node) -> None:
    container = docker.hold("XPU_MEM=10G", 1000)
    docker.must("pause", container)
    assert docker.run("XPU_MEM=10G", "true").status == 125
    assert [entry["container_id"] for entry in node.json("ps")] == [container]
    docker.must("unpause", container)
    assert docker("exec", container, "cuda-probe", "alloc", "1000").status == 0
    docker.must("pause", container)
    docker.must("rm", "--force", container)
    assert node.json("ps") == []


def test_docker_update_leaves_the_devices_usable(docker: Docker, mode: str) -> None:
    container = docker.start("XPU_MEM=4G", "sleep", "1000", options=["--memory=64m", "--memory-swap=64m"])
    docker.must("update", "--memory=128m", "--memory-swap=128m", "--cpu-shares=512", container)
    done = docker("exec", container, "cat", "/dev/nvidia0")
    assert "No such device or address" in done.error  # allowed, and there is no driver behind it
    assert docker("exec", container, "cuda-probe", "alloc", "3000", "2000").status == 3


def test_a_health_check_that_uses_the_device_every_second_passes(docker: Docker) -> None:
    container = docker.start(
        "XPU_MEM=4G",
        "sleep",
        "1000",
        options=["--health-cmd=nvidia-smi -L", "--health-interval=1s", "--health-retries=1"],
    )

    def checks() -> list[int]:
        return [check["ExitCode"] for check in docker.inspect(container)["State"]["Health"]["Log"]]

    until(lambda: len(checks()) >= 3, "three health checks were made")
    assert set(checks()) == {0}
    assert docker.inspect(container)["State"]["Health"]["Status"] == "healthy"


@pytest.fixture
def default_runtime(docker: Docker, dockerd: Daemon, engines: Engines) -> Iterator[None]:
    """`xpu runtime configure docker --set-as-default`, as a running dockerd takes it up."""

    def default() -> str:
        return docker.must("info", "--format", "{{.DefaultRuntime}}")

    before = engines.docker_config.read_text()
    engines.node.xpu("runtime", "configure", "docker", "--config", engines.docker_config, "--set-as-default")
    dockerd.send(signal.SIGHUP)
    until(lambda: default() == "xpu", "dockerd has the default runtime")
    yield
    engines.docker_config.write_text(json.dumps({**json.loads(before), "default-runtime": "runc"}))
    dockerd.send(signal.SIGHUP)
    until(lambda: default() == "runc", "dockerd has its own default runtime again")
    engines.docker_config.write_text(before)


@tried("default")
@pytest.mark.usefixtures("default_runtime")
def test_as_the_default_runtime_it_serves_ordinary_containers_and_slices(docker: Docker, node: Node) -> None:
    assert docker.run("", "sh", "-c", "ls /dev | grep -c nvidia; exit 42", runtime="").status == 42
    ordinary = docker.start("", "sleep", "1000", runtime="")
    assert node.json("ps") == []
    assert docker("exec", ordinary, "test", "-e", "/dev/nvidiactl").status == 1
    assert "of 1024 MiB" in docker.run("XPU_MEM=1G", "cuda-probe", "info", runtime="").out
    assert node.json("devices")[0]["memory_bytes"] == 15360 * MIB


@tried("build")
@pytest.mark.usefixtures("default_runtime")
def test_as_the_default_runtime_it_serves_docker_build(docker: Docker, tmp_path: Path) -> None:
    # An image's variables give a build's step nothing; the build's arguments do.
    (tmp_path / "Dockerfile").write_text(
        f"FROM {Docker.IMAGE}\nRUN touch /built\nENV NVIDIA_VISIBLE_DEVICES=all\nRUN ! nvidia-smi\n"
        "ARG XPU_MEM\nRUN nvidia-smi > /seen\nRUN echo its own > /etc/ld.so.cache\n"
    )

    def build(network: str) -> None:
        words = ["build", f"--network={network}", "--tag=xpu-test-built:1", "--build-arg=XPU_MEM=4G"]
        environ = {**os.environ, "DOCKER_BUILDKIT": "0"}
        done = completed([*docker.command, *words, str(tmp_path)], env=environ)
        assert done.status == 0, done

    build("none")
    try:
        done = docker.run("", "sh", "-c", "cat /seen; cuda-probe info", image="xpu-test-built:1", runtime="")
        assert "/   4096MiB" in done.out and "of 15360 MiB" in done.out, done
        done = docker.run("", "cat", "/etc/ld.so.cache", image="xpu-test-built:1", runtime="runc")
        assert done.out == "its own\n", done

        # In the network of another one a step has none of docker's files of its own.
        (tmp_path / "Dockerfile").write_text(
            f"FROM {Docker.IMAGE}\nENV NVIDIA_VISIBLE_DEVICES=all\nRUN ! nvidia-smi\n"
        )
        other = docker.start("", "sleep", "1000", runtime="")
        build(f"container:{other}")
    finally:
        docker.must("rmi", "xpu-test-built:1")
