"""A node's configuration file and run folder, made anew for each test."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support import STAND_INS

#: Long before the test, so that the file does not count as changed just now.
AN_OLD_TIME = 1_000_000_000


@pytest.fixture(autouse=True)
def runtime_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Low-level runtimes are looked up where a stand-in is: none has to be installed."""
    monkeypatch.setattr("xpu_runtime.config.low_level_runtime.RUNTIME_FOLDERS", (str(STAND_INS),))


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    monkeypatch.setenv("XPU_RUN_DIR", str(folder))
    return folder


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config.yaml"
    monkeypatch.setenv("XPU_CONFIG", str(file))
    return file


@pytest.fixture
def write_config(config_file: Path, run_dir: Path) -> Callable[[str | bytes], Path]:
    """Writes the configuration file as an editor does: a new file, renamed over the old one."""

    def write(text: str | bytes) -> Path:
        aside = config_file.with_name("aside")
        aside.write_bytes(text if isinstance(text, bytes) else text.encode())
        os.utime(aside, (AN_OLD_TIME, AN_OLD_TIME))
        aside.rename(config_file)
        return config_file

    return write
