"""The `xpu` command on engines' files that exist for one test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import REPOSITORY

Xpu = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def xpu() -> Xpu:
    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        code = "from xpu_runtime.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run
