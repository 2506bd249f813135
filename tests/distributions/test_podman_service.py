"""Clients of podman's service, for which podman has no `--runtime`: `podman --remote`, and compose v2 on its
docker API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.engine_table import tried

from .test_podman import Podman, podman_on

pytestmark = pytest.mark.timeout(900)

_SERVE = """podman system service --time 0 unix:///run/service > /run/service.log 2>&1 < /dev/null &
echo $! > /run/service.pid
until podman --url unix:///run/service version > /dev/null 2>&1; do kill -0 $! || exit; sleep 0.1; done
"""
_REMOTE = ("podman", "--url", "unix:///run/service")
_COMPOSE = ("docker-compose", "--host", "unix:///run/service", "--file", "/run/compose.yaml")
_SERVICE = """    image: docker.io/library/debian:12
    command: sleep infinity
    network_mode: none
"""
_SERVICES = f"""name: app
services:
  variable:
{_SERVICE}    runtime: xpu
    environment: {{XPU_MEM: 4G}}
  device:
{_SERVICE}    deploy:
      resources:
        reservations:
          devices: [{{driver: cdi, device_ids: ["yoyoworks.com/xpu=4g"], capabilities: [gpu]}}]
"""


@pytest.fixture(scope="module", params=["trixie", "forky"])
def podman(request: pytest.FixtureRequest, debs: list[Path]) -> Iterator[Podman]:
    with podman_on(request.param, debs) as found:
        yield found


@contextmanager
def serving(podman: Podman, *options: str) -> Iterator[None]:
    """The service, which reads its configuration when it starts."""
    podman.must("xpu", "runtime", "configure", "podman", *options)
    podman.must("sh", "-c", _SERVE)
    try:
        yield
    finally:
        podman.must("sh", "-c", "kill $(cat /run/service.pid)")
        podman.must("xpu", "runtime", "unconfigure", "podman")


@tried("podman-service")
def test_remote_clients_and_compose_get_slices_and_hear_refusals(podman: Podman) -> None:
    podman.machine.path("/run/compose.yaml").write_text(_SERVICES)
    slices = {"web": ["--env=XPU_MEM=4G"], "lab": ["--device=yoyoworks.com/xpu=4g"]}
    with serving(podman, "--set-as-default"):
        for name, asked in slices.items():
            podman.must(*_REMOTE, "run", "--detach", f"--name={name}", *asked, "debian:12", "sleep", "1000")
        podman.must(*_COMPOSE, "up", "--detach", "device")
        assert podman.names() == ["web", "lab", "app-device-1"]
        refused = podman.run(*_REMOTE, "run", "--rm", *slices["lab"], "debian:12", "true")
        assert "xpu: refused: no device has 4G of memory free" in refused.stdout and refused.returncode
        refused = podman.run(*_COMPOSE, "up", "--detach", "variable")
        assert "xpu: refused: no device has 4G of memory free" in refused.stdout and refused.returncode
        podman.must(*_REMOTE, "rm", "--force", "--time", "0", *slices)
        podman.must(*_COMPOSE, "up", "--detach")
        assert podman.names() == ["app-device-1", "app-variable-1"]
        # The client attaches first, and does not show what the service answers then.
        refused = podman.run(*_COMPOSE, "run", "--rm", "--env=XPU_MEM=40G", "variable", "true")
        assert "received 500" in refused.stdout and "xpu: " not in refused.stdout
        assert "no device has 40G" in podman.must("xpu", "events")
        podman.must(*_COMPOSE, "down", "--timeout", "0")
        assert podman.names() == []
    # compose's `runtime` does not reach podman.
    with serving(podman):
        podman.must(*_COMPOSE, "up", "--detach")
        assert podman.names() == ["app-device-1"]
        podman.must(*_COMPOSE, "down", "--timeout", "0")
        assert podman.names() == []
