"""The stand-in for NVIDIA's MPS: its commands, and the shares of its clients."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.sharing_time import until
from support.simulation import SUCCESS, Process, Start, Up

MIB = 1 << 20
RPC_FAILURE, NOT_READY, ILLEGAL_ADDRESS = 806, 807, 700


class Daemon:
    """A control daemon below `folder`, and the root of its simulation."""

    def __init__(self, root: str, folder: Path) -> None:
        self.root = root
        self.program = str(Path(root) / "usr/bin/nvidia-cuda-mps-control")
        self.folder = folder
        (libcuda,) = Path(root).glob("usr/lib/*/libcuda.so.1")
        self.places = {"PATH": str(Path(root) / "usr/bin"), "LD_LIBRARY_PATH": str(libcuda.parent)}
        self.environ = {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        }

    def run(self, *options: str, text: str = "", check: bool = True) -> str:
        done = subprocess.run(
            [self.program, *options],
            input=text,
            env={**self.places, **self.environ},
            capture_output=True,
            text=True,
            timeout=20,
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


def took(*workers: Process, since: float) -> float:
    """Milliseconds from that time of time.monotonic until all processes have done their work."""
    for each in workers:
        each.send("synchronize")
    assert [each.result() for each in workers] == [SUCCESS] * len(workers)
    return 1000 * (time.monotonic() - since)


def test_the_daemon_leaves_the_files_of_the_real_one_and_takes_them_away(daemon: Daemon) -> None:
    pipe = daemon.folder / "pipe"
    files = ["control", "control_lock", "control_privileged", "log", "nvidia-cuda-mps-control.pid"]
    assert sorted(each.name for each in pipe.iterdir()) == files
    assert "already running" in daemon.run("-d", check=False)
    daemon.run(text="quit\n")
    assert list(pipe.iterdir()) == []
    assert daemon.run(text="get_server_list\n", check=False) == "Cannot find MPS control daemon process\n"


@pytest.mark.parametrize(("length", "status"), [(87, 0), (88, 1)])
def test_a_path_that_is_too_long_for_a_socket_ends_the_daemon_without_a_word(
    up: Up, tmp_path: Path, length: int, status: int
) -> None:
    """By NVIDIA's R555 the pipe folder may have 87 bytes at most."""
    one = Daemon(up("1xT4-R580").root, tmp_path)
    pipe = tmp_path / ("p" * (length - len(str(tmp_path)) - 1))
    one.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(pipe)
    done = subprocess.run(
        [one.program, "-d", "-multiuser-server"],
        env={**one.places, **one.environ},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout + done.stderr) == (status, "")
    assert (pipe / "control").exists() == (status == 0)
    one.run(text="quit\n", check=False)


def test_the_server_is_found_by_path_and_libcuda_by_the_loaders_rules(up: Up, tmp_path: Path) -> None:
    one = Daemon(up("1xT4-R580").root, tmp_path)
    places, one.places = one.places, {"LD_LIBRARY_PATH": one.places["LD_LIBRARY_PATH"], "PATH": "/nowhere"}
    one.run("-d", "-multiuser-server")
    assert one.ask("start_server -uid 0", "get_server_list") == []
    assert "Server exited" in (tmp_path / "log/control.log").read_text()
    one.run(text="quit\n")
    one.places = {"PATH": places["PATH"]}
    done = subprocess.run([one.program, "-d"], env={**one.places, **one.environ}, check=False)
    assert done.returncode == 244


def test_commands_work_as_documented(daemon: Daemon, process: Start) -> None:
    assert daemon.ask("get_server_list", "get_default_active_thread_percentage") == ["100.0"]
    daemon.ask("start_server -uid 0")
    server = daemon.server()
    assert daemon.ask(f"get_server_status {server}") == ["ACTIVE"]
    one = client(daemon, process)
    assert daemon.ask(f"get_client_list {server}") == [str(one.popen.pid)]
    assert "Unrecognized command" in daemon.ask("make tea")[0]


def test_clients_run_side_by_side_and_others_in_turn(daemon: Daemon, process: Start) -> None:
    one, two = client(daemon, process), client(daemon, process)
    outside = process(daemon.root, {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"})
    outside.start()
    # Two processes with all of the card have half each, so both take twice as long as alone.
    began = time.monotonic()
    for each in (one, two):
        each.launch("busy_100ms", 2)
    assert took(one, two, since=began) >= 390
    # The server's clients have one turn together: the third process has half of the card, not a third.
    for each in (one, two):
        each.launch("busy_3600s")
    assert outside.timed("busy_100ms") == [SUCCESS, pytest.approx(200, rel=0.1)]


@pytest.mark.parametrize("percent", [25, 50])
def test_a_client_is_held_to_its_percentage_and_others_get_the_rest(
    daemon: Daemon, process: Start, percent: int
) -> None:
    one = client(daemon, process, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(percent))
    assert one.timed("busy_20ms", 4)[1] == pytest.approx(8000 / percent, rel=0.02)
    two = client(daemon, process, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(percent))
    for each in (one, two):
        each.send("timed", "busy_20ms", 4)
    for each in (one, two):
        assert each.result()[1] == pytest.approx(8000 / percent, rel=0.02)


def test_memory_is_held_to_the_pinned_limit(daemon: Daemon, process: Start) -> None:
    one = client(daemon, process, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2G")
    assert (one.alloc(1500 * MIB)[0], one.alloc(1000 * MIB)[0]) == (SUCCESS, 2)


def test_with_a_wrong_pipe_folder_a_program_runs_without_mps_and_without_a_message(
    daemon: Daemon, process: Start
) -> None:
    outside = process(
        daemon.root,
        {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"},
    )
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


def test_one_clients_fault_affects_all_until_they_have_ended(daemon: Daemon, process: Start) -> None:
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
    until(lambda: daemon.ask(f"get_server_status {daemon.server()}") == ["ACTIVE"], "it is active", 20)
    assert client(daemon, process).timed("busy_20ms", 1) == [SUCCESS, 20.0]


CONFIGURATION = """# as our runtime writes it
schema_version = "1.0"
[servers.shared]
allowed_devices = "GPU-1"
uid = 0

[servers.shared.namespaces.small]
pinned_memory_limit = "1G"
active_thread_percentage = "25"
"""


@pytest.fixture
def third(up: Up, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with protocol 3, from a file."""
    one = Daemon(up("1xT4").root, tmp_path)
    (tmp_path / "config.toml").write_text(CONFIGURATION)
    one.run("-d", "-p", "3", "-m", "-a", str(tmp_path / "config.toml"))
    yield one
    one.run("-q", check=False)


def test_a_configuration_file_makes_a_server_with_its_namespaces(third: Daemon, process: Start) -> None:
    row = third.run("server", "list", "--format=csv,noheader").rstrip("\n").split(",")
    assert (row[0], row[1], row[3]) == ("shared", "0", "Ready")
    assert third.run("namespace", "list", "--format=csv,noheader").splitlines() == [
        "default,shared,Ready,-,-",
        "small,shared,Ready,1G,25.00",
    ]
    pipe = third.folder / "pipe"
    sockets = sorted(str(each.relative_to(pipe)) for each in pipe.rglob("control"))
    assert sockets == ["control", "shared/control", "shared/default/control", "shared/small/control"]
    third.run("-q")
    assert list(pipe.iterdir()) == []


def in_namespace(third: Daemon, process: Start, name: str, **more: str) -> Process:
    return client(third, process, CUDA_MPS_PIPE_DIRECTORY=f"{third.folder}/pipe/shared/{name}", **more)


def test_a_namespaces_limits_hold_for_its_clients(third: Daemon, process: Start) -> None:
    third.run("namespace", "create", "other", "--server=shared")
    small, other = (
        in_namespace(third, process, name, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10")
        for name in ("small", "other")
    )
    assert small.timed("busy_10ms", 4)[1] == pytest.approx(160, rel=0.02)
    assert (small.alloc(900 * MIB)[0], small.alloc(200 * MIB)[0]) == (SUCCESS, 2)
    # A namespace that sets nothing gives all, and is not the server's: the clients' own percentage counts.
    assert other.timed("busy_10ms", 1)[1] == pytest.approx(100, rel=0.02)
    assert other.alloc(4000 * MIB)[0] == SUCCESS
    assert "has clients" in third.run("namespace", "delete", "small", "--server=shared", check=False)
    third.run("namespace", "set", "other", "--server=shared", "--active-thread-percentage=50")
    late = in_namespace(third, process, "other")
    assert late.timed("busy_10ms", 4)[1] == pytest.approx(80, rel=0.02)


def test_a_dead_server_comes_back_with_the_next_client_and_its_namespaces_with_it(
    third: Daemon, process: Start
) -> None:
    one = in_namespace(third, process, "small")
    one.launch("busy_3600s")
    os.kill(int(third.run("server", "get", "shared", "pid")), signal.SIGKILL)
    assert one.synchronize() == RPC_FAILURE
    two = in_namespace(third, process, "small")
    assert two.timed("busy_10ms", 4)[1] == pytest.approx(160, rel=0.02)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('schema_version = "2.0"', ':1 is not known here: schema_version = "2.0"'),
        ("[servers.shared]\ncolour = 3", ":2 is not known here: colour = 3"),
        ("[servers.x]\n[servers.x.namespaces.y]\nactive_thread_percentage = 50", ":3 is not known here"),
        ('[servers.x]\n[servers.x.namespaces.y]\nuid = "0"', ":3 is not known here"),
        ("[servers.x]\n[servers.y.namespaces.z]", ":2 is not known here"),
        ("[servers.x]\nuid = 1000", ":2 is not known here"),
        ("[servers.Shared]", "lowercase letters"),
    ],
)
def test_a_wrong_configuration_file_is_refused(up: Up, tmp_path: Path, line: str, told: str) -> None:
    one = Daemon(up("1xT4").root, tmp_path)
    (tmp_path / "config.toml").write_text(line + "\n")
    assert told in one.run("-f", "-p", "3", "-a", str(tmp_path / "config.toml"), check=False)
    assert "control" not in [each.name for each in (tmp_path / "pipe").iterdir()]
