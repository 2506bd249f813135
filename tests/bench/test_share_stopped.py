"""A stopped run of the accuracy harness leaves nothing. The next run removes what a killed one leaves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from share import runfolder
from share.node import Node
from support import REPOSITORY
from xpu_runtime.linux import cgroups

Pair = tuple[subprocess.Popen[str], subprocess.Popen[str]]


@pytest.fixture
def two(installed: Path) -> Iterator[Pair]:
    """Runs with a working container and an agent each. After the test nothing of them is left."""
    words = ["-m", "share", str(installed), "--topology", "1xT4-R580", "--only", "burst, alone"]
    paths = ":".join(str(REPOSITORY / name) for name in ("bench", "src", "packaging"))
    one, other = (
        subprocess.Popen(
            [sys.executable, *words, "--seconds", "15"],
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=interrupted,
        )
        for _ in range(2)
    )
    try:
        for process in (one, other):
            wait_until(partial(at_work, process), process)
        yield one, other
    finally:
        for process in (one, other):
            folders = left(process)
            process.kill()
            process.wait()
            for folder in folders:
                runfolder.remove(folder, installed)


def interrupted() -> None:
    """A shell starts background programs with SIGINT ignored. The tests' runs would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def at_work(process: subprocess.Popen[str]) -> bool:
    return any((folder / "agent.log").exists() and cgroups_of(folder) for folder in left(process))


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def left(process: subprocess.Popen[str]) -> list[Path]:
    return list(runfolder.TOP.glob(f"{runfolder.PREFIX}{process.pid}-*"))


def folder_of(process: subprocess.Popen[str]) -> Path:
    (folder,) = left(process)
    return folder


def cgroups_of(folder: Path) -> list[Path]:
    return [path for each in cgroups.mounted() for path in Path(each.mountpoint).glob(f"{folder.name}-*")]


def assert_nothing_of(folder: Path) -> None:
    assert not folder.exists()
    assert runfolder.processes(folder) == []
    assert cgroups_of(folder) == []
    assert runfolder.mounted_below(folder) == []


def test_a_terminated_run_leaves_nothing(two: Pair) -> None:
    for process, number in zip(two, (signal.SIGINT, signal.SIGTERM), strict=True):
        folder = folder_of(process)
        assert len(runfolder.processes(folder)) >= 2  # the simulated driver and the agent
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
        assert process.returncode == 128 + number, said
        assert "stopped: the containers and the node are removed" in said
        assert_nothing_of(folder)


def test_the_next_run_removes_a_killed_runs_leftovers_and_not_a_living_runs(
    two: Pair, installed: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    living, killed = two
    folder = folder_of(killed)
    killed.kill()
    killed.wait()
    assert folder.exists() and runfolder.processes(folder) and cgroups_of(folder)
    with Node(installed, "1xT4-R580"):
        assert_nothing_of(folder)
        assert f"removed the leftovers of a killed run: {folder}" in capfd.readouterr().err
    assert living.poll() is None
    assert any(cgroups_of(folder_of(living)))


def test_a_dead_runs_folder_is_found_though_its_pid_is_reused() -> None:
    mine, other = runfolder.make(), runfolder.make()
    pid, started, namespace = (mine / runfolder.OWNER).read_text().split()
    (other / runfolder.OWNER).write_text(f"{pid} {int(started) - 1} {namespace}")
    try:
        assert other in runfolder.dead() and mine not in runfolder.dead()
        (other / runfolder.OWNER).write_text(f"{pid} {int(started) - 1} {int(namespace) + 1}")
        assert other not in runfolder.dead()  # another process may live there
    finally:
        for each in (mine, other):
            shutil.rmtree(each, ignore_errors=True)


def test_folders_of_the_same_pid_differ_and_have_short_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in several PID namespaces. A socket of MPS adds 81 bytes to the path, of at most 106."""
    monkeypatch.setattr(runfolder, "TOP", tmp_path)
    made = [runfolder.make("xpu-gpu-") for _ in range(1000)]
    assert len(set(made)) == 1000
    longest = made[0].name.replace(str(os.getpid()), "4194304")  # the largest pid: proc_sys_kernel(5)
    assert len(f"/run/{longest}/run/devices/mps/GPU-{uuid4()}/pipe/control_privileged") <= 106
