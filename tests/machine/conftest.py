"""The machine, booted once for all tests that ask for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import machine as emulated


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each check told, by its name; a machine that cannot be had fails every test, with the reason."""
    cache = Path(emulated.REPOSITORY / "build" / "machine")
    return emulated.boot(cache, tmp_path_factory.mktemp("machine") / "console.log")
