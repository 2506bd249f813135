"""An API server in memory, and replicas of the extender on it, which end with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unit.kubernetes.replica import ControlPlane


@pytest.fixture
def api() -> Iterator[ControlPlane]:
    server = ControlPlane()
    yield server
    server.close()
