"""Fixtures of unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from xpu_simulator import simulator


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XPU_RUN_DIR", str(tmp_path))
    yield tmp_path
    assert simulator.status() is None, "a simulated driver is left"
