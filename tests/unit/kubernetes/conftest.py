"""An API server in memory, and replicas of the extender on it, which end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.scheduling_api import ApiServer
from unit.kubernetes.replica import Replica, until


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.down()


@pytest.fixture
def replicas(api: ApiServer) -> Iterator[Callable[..., Replica]]:
    """Makes replicas, which are ready when they are returned, and ends them."""
    made: list[Replica] = []

    def make(*args: Any, wait: bool = True, **kwargs: Any) -> Replica:
        made.append(Replica(api, *args, **kwargs))
        if wait:
            until(lambda: made[-1].is_ready, "a replica is ready")
        return made[-1]

    yield make
    for each in made:
        each.extender.stop()
