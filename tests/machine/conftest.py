"""The machine, booted once for all tests that ask for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import machine as emulated


@pytest.fixture(scope="session")
def told(kubernetes_image: Path) -> emulated.Told:
    """What the machine told; one that cannot be had fails every test that asks, with the reason."""
    return emulated.boot(emulated.REPOSITORY / "build" / "machine", kubernetes_image)
