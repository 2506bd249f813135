"""Messages about the limit for a container's programs and its operator: XPU_LOG, and the line on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Node

Bundles = Callable[..., Path]


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_a_debug_log_that_nobody_writes_is_told(node: Node, bundles: Bundles, mode: str) -> None:
    """R615 holds limits itself: there are no interposers in the container."""
    node.sim("1xT4-R615")
    node.configure(f"mode: {mode}\n")
    bundle = bundles("XPU_MEM=4G", "XPU_LOG=debug", args=["true"])
    log = node.folder / "log.json"
    done = node.oci("--log", log, "--log-format", "json", "run", "--bundle", bundle, bundle.name)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line)["msg"] for line in log.read_text().splitlines()]
    assert [line for line in told if "XPU_LOG=debug writes no log" in line and "driver" in line]
    explained = node.xpu("explain", "-e", "XPU_MEM=4G", "-e", "XPU_LOG=debug").stdout
    assert "note: XPU_LOG=debug writes no log" in explained
    node.sim("1xT4-R580")
    explained = node.xpu("explain", "-e", "XPU_MEM=4G", "-e", "XPU_LOG=debug").stdout
    assert "writes no log" not in explained
