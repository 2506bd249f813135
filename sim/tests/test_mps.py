"""The stand-in for NVIDIA's MPS: its commands, and what its clients share."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.simulation import SUCCESS, Process
from xpu_simulator.simulator import SimState

Start = Callable[..., Process]
Up = Callable[..., SimState]

MIB = 1 << 20
RPC_FAILURE, NOT_READY, TERMINATED, ILLEGAL_ADDRESS = 806, 807, 810, 700


class Daemon:
    """A control daemon below `folder`, and the simulation's root that it is of."""

    def __init__(self, root: str, folder: Path) -> None:
        self.root = root
        self.program = str(Path(root) / "usr/bin/nvidia-cuda-mps-control")
        self.folder = folder
        self.environ = {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        }

    def run(self, *options: str, text: str = "", check: bool = True) -> str:
        done = subprocess.run(
            [self.program, *options], input=text, env=self.environ, capture_output=True, text=True, timeout=20
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def ask(self, *commands: str) -> list[str]:
        return self.run(text="".join(f"{command}\n" for command in commands)).split("\n")[:-1]

    def server(self) -> int:
        (number,) = self.ask("get_server_list")
        return int(number)


@pytest.fixture
def daemon(up: Up, tmp_path: Path) -> Iterator[Daemon]:
    one = Daemon(up("1xT4").root, tmp_path)
    one.run("-d", "-multiuser-server")
    yield one
    one.run(text="quit\n", check=False)
    for entry in Path("/proc").iterdir():
        try:
            assert os.fsencode(tmp_path) not in (entry / "environ").read_bytes()
        except OSError:
            continue


def client(daemon: Daemon, process: Start, **more: str) -> Process:
    one = process(daemon.root, {**daemon.environ, **more})
    one.start()
    return one


def took(*workers: Process) -> float:
    """Milliseconds until all have done what they were given."""
    begun = time.monotonic()
    for each in workers:
        each.send("synchronize")
    assert [each.result() for each in workers] == [SUCCESS] * len(workers)
    return 1000 * (time.monotonic() - begun)


def test_the_daemon_leaves_the_files_of_the_real_one_and_takes_them_away(daemon: Daemon) -> None:
    pipe = daemon.folder / "pipe"
    files = ["control", "control_lock", "control_privileged", "log", "nvidia-cuda-mps-control.pid"]
    assert sorted(each.name for each in pipe.iterdir()) == files
    assert "already running" in daemon.run("-d", check=False)
    daemon.run(text="quit\n")
    assert list(pipe.iterdir()) == []
    assert daemon.run(text="get_server_list\n", check=False) == "Cannot find MPS control daemon process\n"


def test_commands_are_taken_as_documented(daemon: Daemon, process: Start) -> None:
    assert daemon.ask("get_server_list", "get_default_active_thread_percentage") == ["100.0"]
    daemon.ask(
        "set_default_active_thread_percentage 40",
        "set_default_device_pinned_mem_limit 0 2G",
        "start_server -uid 0",
    )
    server = daemon.server()
    assert daemon.ask(f"get_server_status {server}", f"get_active_thread_percentage {server}") == [
        "ACTIVE",
        "40.0",
    ]
    assert daemon.ask(f"get_device_pinned_mem_limit {server} 0") == ["2G"]
    one = client(daemon, process)
    assert daemon.ask(f"get_client_list {server}") == [str(one.popen.pid)]
    assert "Unrecognized command" in daemon.ask("make tea")[0]


def test_clients_run_side_by_side_and_others_in_turn(daemon: Daemon, process: Start) -> None:
    one, two = client(daemon, process), client(daemon, process)
    outside = process(daemon.root, {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"})
    outside.start()
    # All of it for each of two: half each, so that both take twice as long as alone.
    for each in (one, two):
        each.launch("busy_100ms", 2)
    assert took(one, two) >= 390
    # The server's clients have one turn together: the third has half of the card, not a third.
    each_alone = 200.0
    for each in (one, two, outside):
        each.launch("busy_100ms", 2)
    assert took(outside) <= 2 * each_alone + 100
    assert took(one, two) >= 100


@pytest.mark.parametrize("percent", [25, 50])
def test_a_client_is_held_to_its_percentage_and_the_rest_is_for_others(
    daemon: Daemon, process: Start, percent: int
) -> None:
    one = client(daemon, process, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(percent))
    assert one.timed("busy_20ms", 4)[1] == pytest.approx(8000 / percent, rel=0.02)
    two = client(daemon, process, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(percent))
    for each in (one, two):
        each.send("timed", "busy_20ms", 4)
    for each in (one, two):
        assert each.result()[1] == pytest.approx(8000 / percent, rel=0.02)


def test_memory_is_held_to_the_lower_of_both_limits(daemon: Daemon, process: Start) -> None:
    daemon.ask("set_default_device_pinned_mem_limit 0 2G")
    one = client(daemon, process)
    assert (one.alloc(1500 * MIB)[0], one.alloc(1000 * MIB)[0]) == (SUCCESS, 2)
    two = client(daemon, process, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G")
    assert two.alloc(1100 * MIB)[0] == 2


def test_a_wrong_pipe_folder_runs_without_mps_and_tells_nobody(daemon: Daemon, process: Start) -> None:
    daemon.ask("set_default_device_pinned_mem_limit 0 1G")
    outside = process(daemon.root, {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"})
    outside.start()
    assert outside.alloc(4000 * MIB)[0] == SUCCESS


def test_the_end_of_the_server_is_the_end_of_its_clients_contexts(daemon: Daemon, process: Start) -> None:
    one, two = client(daemon, process), client(daemon, process)
    outside = process(daemon.root)
    outside.start()
    for each in (one, two):
        each.launch("busy_3600s")
    os.kill(daemon.server(), signal.SIGKILL)
    assert one.synchronize() == RPC_FAILURE
    assert two.synchronize() == RPC_FAILURE
    assert outside.timed("busy_20ms", 1) == [SUCCESS, 20.0]
    three = client(daemon, process)
    assert three.timed("busy_20ms", 1) == [SUCCESS, 20.0], "the daemon has started another"


def test_one_clients_fault_is_that_of_all_until_they_have_ended(daemon: Daemon, process: Start) -> None:
    one, two = client(daemon, process), client(daemon, process)
    outside = process(daemon.root)
    outside.start()
    two.launch("busy_3600s")
    one.launch("fault_illegal_address")
    assert (one.synchronize(), two.synchronize()) == (ILLEGAL_ADDRESS, ILLEGAL_ADDRESS)
    assert outside.timed("busy_20ms", 1) == [SUCCESS, 20.0]
    assert daemon.ask(f"get_server_status {daemon.server()}") == ["FAULT"]
    three = process(daemon.root, daemon.environ)
    assert three.start() == NOT_READY
    for each in (one, two):
        each.kill()
    end = time.monotonic() + 20
    while daemon.ask(f"get_server_status {daemon.server()}") != ["ACTIVE"]:
        assert time.monotonic() < end
    assert client(daemon, process).timed("busy_20ms", 1) == [SUCCESS, 20.0]


def test_a_client_can_be_terminated(daemon: Daemon, process: Start) -> None:
    one, two = client(daemon, process), client(daemon, process)
    one.launch("busy_3600s")
    daemon.ask(f"terminate_client {daemon.server()} {one.popen.pid}")
    assert one.synchronize() == TERMINATED
    assert two.alloc(MIB)[0] == SUCCESS
