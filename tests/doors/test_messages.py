"""What people are told: on the node, in an engine's error line, by `xpu explain`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Node

Bundles = Callable[..., Path]


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_whoever_runs_the_node_learns_that_a_limit_is_not_enforced(
    node: Node, bundles: Bundles, system_log: socket.socket, mode: str
) -> None:
    node.sim("1xT4")
    node.configure(f"mode: {mode}\n")
    bundle = bundles("XPU_MEM=1G", "XPU_CORES=30")
    done = node.run(bundle)
    assert done.returncode == 0, done.stderr
    told = system_log.recv(4096).decode()
    assert told.startswith("<28>")
    assert f"container {bundle.name}: its limit on cores of GPU 0 is booked and not enforced" in told
