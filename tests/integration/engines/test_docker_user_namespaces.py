"""`dockerd --userns-remap`: the containers' root user is an ordinary user of the host."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine_table import tried

from ..conftest import Node
from .conftest import Daemon, Docker, Engines

FIRST = 200_000


@pytest.fixture
def subordinate_ids(engines: Engines) -> Iterator[str]:
    """A user with ids for a user namespace; the mount over /etc/subuid goes with the test."""
    ids = engines.folder / "subid"
    ids.write_text(f"nobody:{FIRST}:65536\nnogroup:{FIRST}:65536\n")
    covered = ("/etc/subuid", "/etc/subgid")
    for path in covered:
        subprocess.run(["mount", "--bind", ids, path], check=True)
    yield "nobody:nogroup"
    for path in covered:
        subprocess.run(["umount", path], check=True)


@pytest.fixture
def remapped(engines: Engines, node: Node, image_root: Path, subordinate_ids: str) -> Iterator[Docker]:
    """docker on a dockerd of its own, which has a containerd of its own."""
    folder = engines.folder / "remap"
    folder.mkdir(mode=0o711)
    socket = f"unix://{folder}/docker.sock"
    command = (
        f"dockerd --userns-remap={subordinate_ids} --config-file {engines.docker_config} --host {socket} "
        f"--data-root {folder}/root --exec-root {folder}/exec --pidfile {folder}/pid "
        f"--cgroup-parent=/{engines.name} --iptables=false --ip6tables=false --bridge=none"
    )
    daemon = Daemon(command.split(), ["docker", "--host", socket, "version"], folder / "log", node.environ)
    daemon.start()
    try:
        docker = Docker(engines)
        docker.command = ["docker", "--host", socket]
        docker.make_image(image_root, Docker.IMAGE)
        yield docker
        if there := docker.must("ps", "--all", "--quiet").split():
            docker.must("rm", "--force", *there)
    finally:
        daemon.stop()
        for point in [each for each in engines.mounts() if each.startswith(f"{folder}/")][::-1]:
            subprocess.run(["umount", "--lazy", point], check=True)
        shutil.rmtree(folder)


@tried("userns")
def test_a_container_of_a_remapped_engine_gets_its_slice(remapped: Docker, node: Node) -> None:
    script = "cat /proc/self/uid_map; nvidia-smi -L; ls -ln /etc/ld.so.cache; cuda-probe alloc 500 2000"
    for ask in ("XPU_MEM=1G", "XPU_MEM=1G XPU_ENFORCE=library"):
        done = remapped.run(ask, "sh", "-c", script)
        assert str(FIRST) in done.out, done
        assert "Tesla T4" in done.out, done
        assert "allocating 500 MiB: CUDA_SUCCESS" in done.out
        assert "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in done.out
        assert " 0 0 " in " ".join(done.out.split()), done
    assert node.json("ps") == []


def test_the_uid_of_its_root_is_told_for_quotas(remapped: Docker, node: Node) -> None:
    node.configure(f"policy: {{quotas: [{{name: u, match: {{user_namespace: {FIRST}}}, max_slices: 1}}]}}\n")
    remapped.start("XPU_MEM=1G", "sleep", "1000")
    done = remapped.run("XPU_MEM=1G", "true")
    assert f"quota u (user namespace of uid {FIRST}): 0 of 1 slices left, 1 requested" in done.error
