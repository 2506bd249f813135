"""The `xpu` command on the files of engines, made for one test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import REPOSITORY
from xpu_runtime import engines

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


@pytest.fixture(autouse=True)
def _no_containerd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text that configure writes depends on the installed engine. Tests have none, unless they put one on
    PATH."""
    if "containerd_says" not in request.fixturenames:
        monkeypatch.setattr(engines, "installed_version", lambda _: None)


@pytest.fixture
def containerd_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a containerd of this version on PATH, independent of the machine."""

    def put(version: str) -> None:
        program = tmp_path / "bin" / "containerd"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho containerd github.com/containerd/containerd {version} 0123abc\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return put


@pytest.fixture
def containerd_2(tmp_path: Path, containerd_says: Callable[[str], None]) -> Path:
    """A config.toml with a folder of imported files, and a containerd 2."""
    containerd_says("v2.2.1")
    (tmp_path / "conf.d").mkdir()
    config = tmp_path / "config.toml"
    config.write_text(
        f"version = 3\nimports = ['{tmp_path}/other.toml', 'conf.d/*.toml'] # mine\n"
        "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n"
        "runtime_type = 'io.containerd.runc.v2'\noptions.SystemdCgroup = true\n"
    )
    return config


@pytest.fixture
def drop_in(containerd_2: Path) -> Path:
    """Where our file belongs, in the folder that `containerd_2` imports."""
    return containerd_2.parent / "conf.d" / "99-xpu.toml"
