"""A ledger's place, and processes that hold its grants. They end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from xpu_runtime.ledger.store import Ledger

from .granting import Process


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture
def ledger(path: str) -> Iterator[Ledger]:
    with Ledger(path) as opened:
        yield opened


@pytest.fixture
def holder() -> Iterator[Process]:
    process = Process()
    yield process
    process.end()
