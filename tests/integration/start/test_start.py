"""The inputs of a start: the cached inventory, while it is valid; the spec of a bundle that is restored; the
bundle of modules."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from ..conftest import Bundles, Node


def asks_for_more_than_the_card_has(node: Node) -> int:
    return node.xpu("explain", "-e", "XPU_MEM=20G", check=False).returncode


def test_the_cache_is_believed_until_the_boot_or_the_drivers_files_change(node: Node) -> None:
    node.sim("1xT4")
    assert asks_for_more_than_the_card_has(node) == 3
    cache = node.run_dir / "inventory.json"

    def pretend() -> dict[str, object]:
        """A card of 30 GiB in the cache: a reader of the cache believes that."""
        text = cache.read_text().replace(str(15 << 30), str(30 << 30))
        cache.write_text(text)
        assert asks_for_more_than_the_card_has(node) == 0
        record: dict[str, object] = json.loads(text)
        return record

    record = pretend()
    cache.write_text(json.dumps({**record, "boot": "another boot"}))
    assert asks_for_more_than_the_card_has(node) == 3
    record = pretend()
    cache.write_text(json.dumps({**record, "build": "another"}))
    assert asks_for_more_than_the_card_has(node) == 3
    pretend()
    os.utime(node.run_dir / "sim" / "root" / "etc" / "ld.so.cache", (1, 1))
    assert asks_for_more_than_the_card_has(node) == 3


def test_restore_of_a_bundle_that_asks_gets_the_hooks_before_runc_is_started(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G")
    done = node.oci("restore", "--image-path", bundle / "no-checkpoint", "--bundle", bundle, bundle.name)
    # runc's own words: there is no checkpoint (and here no criu).
    assert done.returncode != 0
    assert "xpu:" not in done.stderr
    assert list(json.loads((bundle / "config.json").read_text())["hooks"]) == ["createRuntime", "poststop"]
    wrong = bundles("XPU_MEN=1G")
    assert "did you mean XPU_MEM?" in node.oci("restore", "--bundle", wrong, wrong.name).stderr


@pytest.mark.parametrize("topology", ["1xT4", "1xT4-R580"])
def test_a_container_from_start_to_end_reads_no_module_but_the_bundle(
    node: Node, bundles: Bundles, tmp_path: Path, topology: str, any_mode: str
) -> None:
    node.sim(topology)
    node.run(bundles("XPU_MEM=1G"))  # the caches of a boot's first start are there
    bundle, trace = bundles("XPU_MEM=1G"), tmp_path / "trace"
    words = ["strace", "-f", "-qq", "-e", "trace=openat", "-o"]
    command = [*words, trace, *node.command("run", "--bundle", bundle, bundle.name)]
    done = subprocess.run(command, env=node.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    opened = re.findall(r'openat\([^"]*"([^"]*)"[^"]*\) = \d', trace.read_text())
    assert any(path.endswith("/start.bundle") for path in opened)
    assert [path for path in opened if "/xpu_runtime/" in path and path.endswith((".py", ".pyc"))] == []
