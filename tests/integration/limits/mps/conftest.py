from __future__ import annotations

from collections.abc import Iterator

import pytest

from ...conftest import Node
from .daemons import daemons, kept


@pytest.fixture(params=["1xT4-R580", "1xT4"])
def card(node: Node, request: pytest.FixtureRequest) -> Iterator[Node]:
    node.sim(request.param)
    yield node
    node.close_containers()
    assert daemons(node) == []
    assert kept(node) == []
