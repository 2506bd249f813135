"""The machine, booted once for all tests that use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import machine as emulated


@pytest.fixture(scope="session")
def output(debs: list[Path], kubernetes_image: Path) -> emulated.Output:
    """The machine's results; if it cannot be made, every test that uses it fails with the reason."""
    return emulated.boot(emulated.REPOSITORY / "build" / "machine", debs, kubernetes_image)
