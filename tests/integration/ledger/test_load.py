"""A hundred containers at once are granted exactly what fits."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support import GIB
from support.bundles import copy_root

from ..conftest import SLEEP, Bundles, Node


@pytest.mark.parametrize("topology", ["4xT4", "4xT4-R580"])
def test_a_hundred_creates_at_once_get_exactly_what_fits(node: Node, bundles: Bundles, topology: str) -> None:
    node.configure("mode: hook")
    node.sim(topology)
    pattern = bundles("XPU_MEM=1G", args=SLEEP)
    copies = []
    for number in range(100):
        copy = pattern.with_name(f"{pattern.name}-{number}")
        copy_root(pattern / "rootfs", copy / "rootfs", os.link)
        spec = (pattern / "config.json").read_text()
        (copy / "config.json").write_text(spec.replace(f"/{pattern.name}", f"/{copy.name}"))
        copies.append(copy)

    def create(bundle: Path) -> int:
        with (bundle / "errors").open("wb") as errors:
            command = node.command("create", "--bundle", bundle, bundle.name)
            done = subprocess.run(
                command, env=node.environ, stdout=subprocess.DEVNULL, stderr=errors, timeout=200
            )
        return done.returncode

    def delete(bundle: Path) -> int:
        # Its messages are runc's own: a cgroup is busy, and it tries again.
        return node.oci("delete", "--force", bundle.name, timeout=200).returncode

    with ThreadPoolExecutor(len(copies)) as at_once:
        outcomes = dict(zip(copies, at_once.map(create, copies), strict=True))
        assert Counter(outcomes.values()) == {0: 60, 1: 40}
        held = Counter(part.device_index for grant in node.grants() for part in grant.slices)
        assert held == dict.fromkeys("0123", 15)
        assert {device["memory_granted_bytes"] for device in node.json("devices")} == {15 * GIB}
        for bundle, outcome in outcomes.items():
            told = (bundle / "errors").read_text()
            if outcome:
                assert "refused: no device has 1G of memory free (GPU 0-3: 0G free, 1G requested)" in told
            else:
                assert told == ""
        created = [bundle for bundle, outcome in outcomes.items() if outcome == 0]
        assert {name.name for name in node.state_root.iterdir()} == {bundle.name for bundle in created}
        assert set(at_once.map(delete, created)) == {0}
    assert node.grants() == []
    assert list(node.run_dir.glob("slices/*")) == []
