"""What people are told: on the node, in an engine's error line, by `xpu explain`."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import Node

Bundles = Callable[..., Path]

#: A /dev of the commands' own, in which /dev/log is the test's.
_DEV = """set -e
mkdir $0/dev; mount -t tmpfs none $0/dev; cp -a /dev/null /dev/zero /dev/urandom /dev/tty $0/dev
ln -s $0/log $0/dev/log; mount --move $0/dev /dev; echo ready; exec sleep infinity"""


@pytest.fixture
def system_log(node: Node) -> Iterator[socket.socket]:
    """The socket of a syslog daemon, for the node's commands."""
    daemon = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    daemon.bind(str(node.folder / "log"))
    daemon.settimeout(30)
    with (
        daemon,
        subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _DEV, node.folder],
            stdout=subprocess.PIPE,
            text=True,
        ) as holder,
    ):
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        node.view = ["nsenter", "--mount", "--target", str(holder.pid), "--"]
        yield daemon
        node.close_containers()
        node.view = []
        holder.kill()


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
