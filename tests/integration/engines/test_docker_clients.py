"""docker without its `docker run`: clients of its API, device requests as compose sends them, a swarm."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support import GIB
from support.engine_table import tried

from ..conftest import Node
from .conftest import PATIENCE, Docker, Engines, until


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def post(engines: Engines, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    """What the engine's API answers, of a version that docker has from 20.10 on."""
    connection = _Connection(engines.docker_socket.removeprefix("unix://"))
    connection.request("POST", f"/v1.41{path}", json.dumps(body or {}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text or "{}")


def create(engines: Engines, env: list[str], **host: Any) -> str:
    body = {
        "Image": Docker.IMAGE,
        "Cmd": ["sleep", "1000"],
        "Env": env,
        "HostConfig": {"Runtime": "xpu", "NetworkMode": "none", **host},
    }
    status, answer = post(engines, "/containers/create", body)
    assert status == 201, answer
    return str(answer["Id"])


@tried("api")
def test_a_client_of_the_api_gets_a_slice_and_a_refusal_as_its_error(
    engines: Engines, docker: Docker, node: Node
) -> None:
    first = create(engines, ["XPU_MEM=10G"])
    assert node.json("ps") == []
    assert post(engines, f"/containers/{first}/start") == (204, {})
    (entry,) = node.json("ps")
    assert (entry["container_id"], entry["memory_bytes"]) == (first, 10 * GIB)
    second = create(engines, ["XPU_MEM=10G"])
    status, answer = post(engines, f"/containers/{second}/start")
    assert status == 500
    assert "xpu: refused: no device has 10G of memory free" in answer["message"]
    assert post(engines, f"/containers/{first}/stop?t=0") == (204, {})
    assert post(engines, f"/containers/{second}/start") == (204, {})


#: As `docker run --gpus all`, compose's `gpus: all`, and `deploy.resources.reservations.devices` send them.
DEVICE_REQUESTS = {
    "--gpus all": {"Driver": "", "Count": -1, "Capabilities": [["gpu"]]},
    "gpus: all": {"Driver": "", "Count": -1, "Capabilities": [["gpu"]], "Options": {}},
    "driver: nvidia, count: 1": {"Driver": "nvidia", "Count": 1, "Capabilities": [["gpu"]]},
    "device_ids": {"Driver": "nvidia", "DeviceIDs": ["0"], "Capabilities": [["gpu", "utility"]]},
    "driver: xpu": {"Driver": "xpu", "Count": 1, "Capabilities": [["gpu"]]},
}


@tried("gpus")
@pytest.mark.parametrize("name", DEVICE_REQUESTS)
def test_a_device_request_without_nvidias_toolkit_is_dockers_error_and_books_nothing(
    engines: Engines, docker: Docker, node: Node, name: str
) -> None:
    container = create(engines, ["XPU_MEM=4G"], DeviceRequests=[DEVICE_REQUESTS[name]])
    status, answer = post(engines, f"/containers/{container}/start")
    assert status == 500
    assert answer["message"].startswith("could not select device driver")
    assert node.json("ps") == []


@pytest.fixture
def swarm(engines: Engines, node: Node, private_docker: Callable[..., Docker]) -> Iterator[Docker]:
    """A swarm of one node on a dockerd of its own, with our runtime as its default: live-restore and a swarm
    do not go together."""
    config = engines.folder / "swarm.json"
    node.xpu("runtime", "configure", "docker", "--config", config, "--set-as-default")
    docker = private_docker("--config-file", str(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    docker.must("swarm", "init", "--advertise-addr=127.0.0.1", f"--listen-addr=127.0.0.1:{port}")
    yield docker
    docker.must("swarm", "leave", "--force")


@tried("swarm")
def test_a_service_of_a_swarm_has_slices_by_the_default_runtime_and_tells_a_refusal(
    swarm: Docker, node: Node
) -> None:
    options = ("--detach", "--network=host", "--no-resolve-image", "--restart-condition=none")
    service = ("service", "create", *options)
    swarm.must(*service, "--name=train", "--replicas=2", "--env=XPU_MEM=5G", Docker.IMAGE, "sleep", "1000")
    until(lambda: len(node.json("ps")) == 2, "both replicas have a slice")
    assert {entry["memory_bytes"] for entry in node.json("ps")} == {5 * GIB}
    swarm.must(*service, "--name=large", "--env=XPU_MEM=10G", Docker.IMAGE, "sleep", "1000")
    words = ("service", "ps", "large", "--no-trunc", "--format={{.Error}}")
    until(lambda: swarm.must(*words) != "", "the service has failed")
    assert "xpu: refused: no device has 10G of memory free" in swarm.must(*words)
    swarm.must("service", "rm", "train", "large")
    until(lambda: node.json("ps") == [], "the slices are free")
