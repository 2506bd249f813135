from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.sharing_time import Serve

from ..conftest import Node
from .workers import without_python, workers_are_there


@pytest.fixture
def served(node: Node, copy: Path, start_agent: Serve) -> Iterator[Node]:
    """A node with a card whose starts must be done by workers."""
    start_agent()
    workers_are_there(node)
    without_python(copy)
    yield node
