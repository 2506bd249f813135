"""Containers on a ledger of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .resizing import GIB, Container


@pytest.fixture
def container(run_dir: Path) -> Iterator[Container]:
    found = Container("c1", 4 * GIB)
    yield found
    found.close()


@pytest.fixture
def pair(run_dir: Path) -> Iterator[Container]:
    """One container with a slice on each of two devices."""
    found = Container("c2", 4 * GIB, 8 * GIB)
    yield found
    found.close()
