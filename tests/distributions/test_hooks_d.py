"""podman calls our hook by the package's hooks.d files, with any low-level runtime: an annotation asks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import image
from support import GIB, REPOSITORY
from support.engine_table import tried

from .root import Root
from .test_packages import install
from .ways import IMAGE

pytestmark = pytest.mark.timeout(900)

_PODMAN = [
    "podman", "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--runtime=runc", "run", "--network=none",
    # podman's own limits would stop every container: raising them needs CAP_SYS_RESOURCE.
    "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024",
]  # fmt: skip


def with_podman(root: Callable[..., Root], debs: list[Path]) -> Root:
    """A machine with podman, our packages, an image and a simulated card."""
    machine = root("bookworm", packages=("busybox-static", "podman", "python3", "runc"), network=False)
    assert install(machine, debs).returncode == 0
    image.make(str(machine.path(IMAGE)), [str(REPOSITORY / "build" / "probe" / "cuda-probe")])
    assert machine.run("xpu", "sim", "up", "--topology", "1xT4").returncode == 0
    return machine


@tried("hooks.d")
def test_an_annotation_asks_for_a_slice_without_a_runtime_of_ours(
    root: Callable[..., Root], debs: list[Path]
) -> None:
    machine = with_podman(root, debs)

    def podman(*words: str) -> subprocess.CompletedProcess[str]:
        return machine.run(*_PODMAN, *words[:-1], "--rootfs", IMAGE, *words[-1].split())

    done = podman(
        "--detach", "--name=held", "--annotation=yoyoworks.com/xpu-mem=10G", "cuda-probe alloc 1000 --hold"
    )
    assert done.returncode == 0, done.stdout
    (held,) = json.loads(machine.run("xpu", "ps", "--json").stdout)
    assert (held["memory_bytes"], held["mode"]) == (10 * GIB, "hook")

    done = podman("--rm", "--annotation=yoyoworks.com/xpu-mem=4G", "nvidia-smi")
    assert "/   4096MiB" in done.stdout
    done = podman("--rm", "--annotation=yoyoworks.com/xpu-mem=8G", "true")
    assert done.returncode == 126
    assert "xpu: refused: no device has 8G of memory free" in done.stdout
    # Without the annotation, a container gets nothing.
    done = podman("--rm", "--env=XPU_MEM=8G", "true")
    assert (done.returncode, done.stdout) == (0, "")

    assert machine.run("podman", "rm", "--force", "held").returncode == 0
    assert json.loads(machine.run("xpu", "ps", "--json").stdout) == []


_OTHER = """#!/bin/sh
exec /usr/sbin/runc --root /run/other "$@"
"""


def test_podmans_later_commands_reach_the_runtime_that_conmon_called(
    root: Callable[..., Root], debs: list[Path]
) -> None:
    """conmon_env_vars (containers.conf(5)) reach conmon alone: podman itself calls start, exec and delete."""
    machine = with_podman(root, debs)
    other = machine.path("/opt/other")
    other.write_text(_OTHER)
    other.chmod(0o755)
    machine.path("/etc/conmon.yaml").write_text("low_level_runtimes: [/opt/other]\n")
    conf = machine.path("/etc/containers/containers.conf.d/test.conf")
    conf.parent.mkdir(parents=True)
    variables = '"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "XPU_CONFIG=/etc/conmon.yaml"'
    conf.write_text(f"[engine]\nconmon_env_vars = [{variables}]\n")
    podman = ["--runtime=/usr/bin/xpu-container-runtime" if "--runtime" in each else each for each in _PODMAN]
    for request in ("XPU_MEM=10G", "NOTHING="):
        words = ["--detach", "--name=held", f"--env={request}", "--rootfs", IMAGE, "sleep", "1000"]
        done = machine.run(*podman, *words)
        assert done.returncode == 0, done.stdout
        for later in (["exec", "held", "true"], ["stop", "--time=0", "held"], ["rm", "held"]):
            done = machine.run(*podman[: podman.index("run")], *later)
            assert done.returncode == 0, (later, done.stdout)
        assert json.loads(machine.run("xpu", "ps", "--json").stdout) == []
        assert list(machine.path("/run/xpu").glob("created/*")) == []
    # A container that does not start leaves nothing either.
    done = machine.run(*podman, "--rm", "--env=XPU_MEM=40G", "--rootfs", IMAGE, "true")
    assert (done.returncode, "refused" in done.stdout) == (126, True)
    assert list(machine.path("/run/xpu").glob("created/*")) == []
