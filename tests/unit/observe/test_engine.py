"""Which processes are an engine, and an engine's answer in time: with real processes and sockets."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from xpu_runtime.observe import engine

NOBODY = 65534


@pytest.fixture
def program() -> Iterator[Path]:
    """A program of a name of its own, which everybody may start."""
    folder = Path(tempfile.mkdtemp(prefix="xpu-t-", dir="/run"))
    folder.chmod(0o755)
    yield Path(shutil.copy("/bin/sleep", folder / f"engine-{os.getpid()}"))
    shutil.rmtree(folder)


@contextmanager
def started(*words: str | Path, user: int = 0, **options: str | Path) -> Iterator[int]:
    with subprocess.Popen([*words, "1000"], user=user, **options) as process:  # type: ignore[call-overload]
        try:
            yield process.pid
        finally:
            process.kill()


def pids(program: Path) -> list[int]:
    return [each.pid for each in engine.running(program.name)]


def test_an_engine_is_a_process_of_root(program: Path) -> None:
    with started(program) as pid:
        assert pids(program) == [pid]
        program.unlink()  # upgraded
        assert pids(program) == [pid]


def test_a_process_with_an_engines_name_is_no_engine(program: Path) -> None:
    with started(program, user=NOBODY), started(program.name, executable="/bin/sleep"):
        assert pids(program) == []
    with started("unshare", "--map-root-user", program, user=NOBODY) as pid:
        deadline = time.monotonic() + 10
        while os.readlink(f"/proc/{pid}/exe") != str(program) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.readlink(f"/proc/{pid}/exe") == str(program)
        assert pids(program) == []
