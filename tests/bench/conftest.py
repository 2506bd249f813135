"""Fixtures for tests of runs on a lent machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .lent_machine import make_kit
from .stepped import Run, Step


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    """Runs steps to their end."""

    def to_its_end(*steps: Step, seconds: float = 100) -> Run:
        made = Run(tmp_path / "out", steps, seconds)
        made.popen.wait(120)
        return made

    return to_its_end


@pytest.fixture(scope="session")
def kit(installed: Path) -> Path:
    return make_kit()
