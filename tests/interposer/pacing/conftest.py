"""Sandboxes with a cap, and their program, which is compiled once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..sandboxes import Sandbox
from .paced import Make, Paced, compile_paced


@pytest.fixture(scope="session")
def paced_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], Path]:
    """`paced_program(library, sanitizers)` is the program. All drivers' libraries have the same exports."""
    folder = tmp_path_factory.mktemp("paced")

    def compiled(library: Path, fenced: str) -> Path:
        out = folder / f"paced_work{fenced and '-'}{fenced}"
        return out if out.exists() else compile_paced(library, out, fenced)

    return compiled


@pytest.fixture
def paced(sandbox: Callable[..., Sandbox], paced_program: Callable[[Path, str], Path]) -> Make:
    """`paced(30)` is a sandbox with a cap of 30 %, and its program; `fenced`: see fork_fence.c."""

    def make(*caps: int | None, fenced: str = "", **options: Any) -> Paced:
        one = sandbox(*(None for _ in caps), **options)
        return Paced(one, paced_program(one.driver / "libcuda.so.1", fenced), *caps)

    return make
