"""docker of each release but CI's own, whose containers live on, are restarted, or ask by a device request.

tests/integration/engines tries more of it with this machine's docker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.engine_table import tried

from .root import Root
from .test_packages import PACKAGES, image_in, install, told
from .ways import Docker

pytestmark = pytest.mark.timeout(900)

_PATIENCE = 60
_RUN = ("docker", "run", "--runtime=xpu", "--network=none", "--detach", "--name")


def state(machine: Root, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(machine.run("docker", "inspect", name).stdout)[0]
    return {"RestartCount": found["RestartCount"], **dict(found["State"])}  # type: ignore[call-overload]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.1)


@tried("live-restore", "restart", "restart-refused", "gpus")
@pytest.mark.parametrize("suite", ["bullseye", "trixie", "forky"])
def test_slices_over_restarts_of_dockerd_and_of_containers(
    root: Callable[..., Root], debs: list[Path], suite: str
) -> None:
    machine = root(suite, packages=PACKAGES[suite], network=False)
    assert install(machine, debs).returncode == 0
    image_in(machine)
    assert machine.run("xpu", "sim", "up", "--topology", "1xT4").returncode == 0
    machine.path("/etc/docker").mkdir(exist_ok=True)
    machine.path("/etc/docker/daemon.json").write_text('{"live-restore": true}\n')
    docker = Docker(machine)

    docker.start("kept", ["XPU_MEM=10G"], "cuda-probe", "alloc", "3000", "--hold")
    before = told(machine, "ps")
    assert len(before) == 1
    machine.run("sh", "-c", "kill $(pidof dockerd); while pidof dockerd; do sleep 0.1; done")
    docker.serve()
    assert told(machine, "ps") == before
    assert state(machine, "kept")["Running"] is True
    assert "refused: no device has 10G of memory free" in docker.run(["XPU_MEM=10G"], "true").stdout
    assert machine.run("docker", "stop", "--time=0", "kept").returncode == 0
    assert told(machine, "ps") == []

    def kill(name: str) -> None:
        machine.run("sh", "-c", f"kill -9 {state(machine, name)['Pid']}")

    words = (*_RUN, "again", "--restart=always", "-e", "XPU_MEM=10G", "image:1", "sleep", "1000")
    assert machine.run(*words).returncode == 0
    kill("again")
    until(lambda: state(machine, "again")["RestartCount"] == 1, "docker restarts the container")
    until(
        lambda: [each["pid"] for each in told(machine, "ps")] == [state(machine, "again")["Pid"]],
        "it has its slice",
    )
    assert machine.run("xpu", "reserve", "0", "--for", "team-a").returncode == 0
    kill("again")
    until(lambda: "reserved for team-a" in str(state(machine, "again")["Error"]), "the restart is refused")
    assert machine.run("xpu", "unreserve", "0").returncode == 0
    assert told(machine, "ps") == []
    docker.remove("again")

    done = machine.run(*_RUN, "whole", "--gpus=all", "-e", "XPU_MEM=4G", "image:1", "true")
    assert "could not select device driver" in done.stdout
    assert told(machine, "ps") == []
