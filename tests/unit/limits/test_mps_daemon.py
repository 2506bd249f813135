"""Which processes are taken for MPS's daemon of a card."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.sharing_time import until
from xpu_runtime.limits.mps_daemon import PROGRAM, Daemon


@contextmanager
def running(folder: Path, *before: str, user: int = 0) -> Iterator[int]:
    """A program with the daemon's name and environment; the number of the first process."""
    program = folder / PROGRAM
    if not program.exists():
        shutil.copy("/bin/sleep", program)
        program.chmod(0o755)
    environ = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe")}
    process = subprocess.Popen([*before, program, "1000"], env=environ, user=user, start_new_session=True)
    try:
        until(lambda: _is_there(folder), "it runs", 20)
        yield process.pid
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def _is_there(folder: Path) -> bool:
    """(Others' daemons may run.)"""
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if (each / "comm").read_text() == f"{PROGRAM[:15]}\n" and (each / "environ").read_bytes().count(
                os.fsencode(folder / "pipe")
            ):
                return True
        except OSError:
            pass
    return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for each in (tmp_path, *tmp_path.parents[:3]):
        each.chmod(0o755)
    return tmp_path


def test_the_daemon_is_found_by_its_name_and_folder(folder: Path) -> None:
    with running(folder) as pid:
        control, server = Daemon(str(folder), "GPU-1").find()
        assert control and control.pid == pid
        assert server is None
        assert Daemon(str(folder / "other"), "GPU-1").find() == (None, None)


def test_a_container_s_process_does_not_pass_for_it(folder: Path) -> None:
    with running(folder, "unshare", "--pid", "--fork", "--kill-child"):
        assert Daemon(str(folder), "GPU-1").find() == (None, None)
    with running(folder, user=65534):
        assert Daemon(str(folder), "GPU-1").find() == (None, None)
