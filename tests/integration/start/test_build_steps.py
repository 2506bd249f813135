"""Ends of steps of builds, with real runc: the files that go from a step's root folder, and those that
stay."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Bundles, Node
from .test_hook import by_a_link


def as_step(spec: dict[str, Any]) -> None:
    spec["hostname"] = "buildkitsandbox"


def files(bundle: Path) -> set[str]:
    root = bundle / "rootfs"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or path.is_file()}


@pytest.mark.parametrize(("asked", "status"), [("XPU_MEM=1G", 0), ("XPU_VISIBLE_DEVICES=none", 1)])
def test_the_end_of_another_container_of_the_same_id_takes_nothing_from_a_step(
    node: Node, bundles: Bundles, asked: str, status: int
) -> None:
    node.sim("1xT4")
    step = bundles("XPU_MEM=4G", args=["sleep", "1000"], change=as_step)
    before = files(step)
    node.start(step)
    assert node.oci("exec", step.name, "cuda-probe", "info").stdout.endswith("of 4096 MiB\n")

    # As another engine, or a namespace of containerd's, may have it.
    other = bundles(asked, args=["cuda-probe", "info"])
    words: list[str | Path] = [node.runtime, "--root", node.folder / "other"]
    words += ["run", "--bundle", other, step.name]
    done = subprocess.run(words, env=node.environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0) == status, done.stderr
    assert node.oci("exec", step.name, "cuda-probe", "info").stdout.endswith("of 4096 MiB\n")

    node.remove(step.name)
    assert files(step) == before
    assert list((node.run_dir / "builds").iterdir()) == []


def test_a_step_whose_hook_is_called_twice_leaves_nothing(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")

    def change(spec: dict[str, Any]) -> None:
        as_step(spec)
        by_a_link(node, "createRuntime")(spec)

    step = bundles("XPU_VISIBLE_DEVICES=none", args=["ls", "/usr/bin/nvidia-smi"], change=change)
    before = files(step)
    done = node.run(step)
    assert done.returncode == 0, done.stderr
    assert files(step) == before


def test_a_step_whose_folders_have_odd_names_leaves_nothing(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    step = bundles("XPU_MEM=4G", args=["cuda-probe", "info"], change=as_step)
    root = step / "rootfs"
    (root / "usr/bin").rename(root / "usr/b\udcff")
    (root / "usr/bin").symlink_to("b\udcff")
    before = files(step)
    done = node.run(step)
    assert done.stdout.endswith("of 4096 MiB\n"), done.stderr
    assert files(step) == before
