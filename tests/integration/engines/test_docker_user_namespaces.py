"""`dockerd --userns-remap`: the containers' root user is an ordinary user of the host."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from support.engine_table import tried

from ..conftest import Node
from .conftest import Docker, Engines

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
def remapped(engines: Engines, private_docker: Callable[..., Docker], subordinate_ids: str) -> Docker:
    return private_docker(f"--userns-remap={subordinate_ids}", "--config-file", str(engines.docker_config))


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
