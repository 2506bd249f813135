"""podman calls our hook by the package's hooks.d files, whichever runtime it has: an annotation asks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import image
from support import GIB, REPOSITORY

from .root import Root
from .test_packages import install
from .ways import IMAGE

pytestmark = pytest.mark.timeout(900)

_PODMAN = [
    "podman", "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--runtime=runc", "run", "--network=none",
    # Where root may not raise them (CAP_SYS_RESOURCE), podman's own limits would stop every container.
    "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024",
]  # fmt: skip


def test_an_annotation_asks_for_a_slice_without_a_runtime_of_ours(
    root: Callable[..., Root], debs: list[Path]
) -> None:
    machine = root("bookworm", packages=("busybox-static", "podman", "python3", "runc"), network=False)
    assert install(machine, debs).returncode == 0
    image.make(str(machine.path(IMAGE)), [str(REPOSITORY / "build" / "probe" / "cuda-probe")])
    assert machine.run("xpu", "sim", "up", "--topology", "1xT4").returncode == 0

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
    # Who has no annotation is not looked at.
    done = podman("--rm", "--env=XPU_MEM=8G", "true")
    assert (done.returncode, done.stdout) == (0, "")

    assert machine.run("podman", "rm", "--force", "held").returncode == 0
    assert json.loads(machine.run("xpu", "ps", "--json").stdout) == []
