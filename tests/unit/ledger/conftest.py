"""A ledger's place, and processes that hold its grants. They end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .granting import Process


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture
def holder() -> Iterator[Process]:
    process = Process()
    yield process
    process.end()
