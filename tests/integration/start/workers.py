"""The agent's start workers on a node."""

from __future__ import annotations

from pathlib import Path

from support.sharing_time import Serve, Service, until, workers_of

from ..conftest import Node


def with_card(node: Node, topology: str) -> None:
    """Brings it up; and it is known, for a worker that has asked the driver for devices ends."""
    node.sim(topology)
    node.xpu("devices")


def workers_are_there(node: Node, count: int = 3) -> None:
    """The process that has them, and two of them (with more processors more)."""
    until(lambda: len(workers_of(node)) >= count, "the start workers are there")


def agent_with_card(node: Node, start_agent: Serve, topology: str) -> Service:
    """Brings up the card, then an agent with all its workers."""
    with_card(node, topology)
    agent = start_agent()
    workers_are_there(node)
    return agent


def without_python(prefix: Path) -> None:
    """Nothing but a worker can prepare a container from here on."""
    for name in ("shim.py", "hook.py"):
        (prefix / "lib/xpu-container-runtime" / name).unlink()
