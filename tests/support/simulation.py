"""The simulated device for tests: compiled parts, a running simulation, processes on it.

A worker (worker/worker.py) is a real process with the real libraries; tests call its functions and see the
results. Each test has its own run folder, and so its own simulation.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xpu_simulator import simulator
from xpu_simulator.simulator import SimState

from . import REPOSITORY

#: CUresult and nvmlReturn_t values that tests compare with.
SUCCESS, OUT_OF_MEMORY, NOT_INITIALIZED, UNAVAILABLE, NO_DEVICE, NOT_READY = 0, 2, 3, 46, 100, 600
NVML_INVALID, NVML_NOT_SUPPORTED, NVML_NO_PERMISSION, NVML_NOT_FOUND = 2, 3, 4, 6
NVML_NOT_LOADED, NVML_NO_FUNCTION, NVML_LOST = 9, 13, 15
NO_LIMIT = (1 << 64) - 1

#: The types of the fixtures `up`, `process` and `working`.
Up = Callable[..., SimState]
Start = Callable[..., "Process"]
Working = Callable[..., tuple[str, "Process"]]


def build(out: str, *settings: str) -> Path:
    """Builds sim/ into build/OUT, if it is out of date; one worker at a time."""
    folder = REPOSITORY / "build" / out
    subprocess.run(
        [
            *("flock", f"{folder}.lock", "make", "-s", f"-j{os.cpu_count()}"),
            *("-C", f"{REPOSITORY}/sim", f"OUT={folder}", *settings),
        ],
        check=True,
        timeout=300,
    )
    return folder


@pytest.fixture(scope="session")
def native() -> Path:
    """The compiled parts."""
    return build("sim")


def build_sanitized(kind: str) -> Path:
    """The same with gcc's sanitizers: "address,undefined" or "thread"."""
    return build(f"sim-{kind.replace(',', '-')}", f"SANITIZE={kind}")


@pytest.fixture(scope="session")
def sanitized() -> Path:
    """The compiled parts with AddressSanitizer and UndefinedBehaviorSanitizer."""
    return build_sanitized("address,undefined")


def libraries(root: str | Path) -> Path:
    """The folder of the driver's libraries in a driver root."""
    (found,) = Path(root).glob("usr/lib/*-linux-gnu")
    return found


def compile_program(state: SimState, source: Path, folder: Path, sanitize: str = "") -> Path:
    """Compiles a C program into `folder`; it is linked with the running simulation's libraries, and finds
    them."""
    there = libraries(state.root)
    program = folder / source.stem
    flags = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    if sanitize:
        flags.append(f"-fsanitize={sanitize}")
    links = [f"-L{there}", f"-Wl,-rpath,{there}", "-lcuda", "-lnvidia-ml"]
    subprocess.run(["cc", *flags, "-o", program, source, *links], check=True)
    return program


def assert_check(
    state: SimState, source: Path, folder: Path, check: str, sanitize: str = "", **environ: str
) -> None:
    """Compiles the program and runs one of its checks, which must print "ok" and nothing more."""
    program = compile_program(state, source, folder, sanitize)
    done = subprocess.run(
        [program, check], capture_output=True, text=True, timeout=100, env={**os.environ, **environ}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


@pytest.fixture
def run_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run folder of the test's own, which every user may enter; a simulation in it ends with the test."""
    parent = Path(tempfile.mkdtemp(prefix="xpu-sim-"))
    parent.chmod(0o755)
    monkeypatch.setenv("XPU_RUN_DIR", str(parent / "run"))
    yield parent / "run"
    simulator.down()
    shutil.rmtree(parent)


@pytest.fixture
def up(run_dir: Path, native: Path) -> Iterator[Up]:
    """`up("1xT4")` starts a simulation until the test ends; a dict becomes a file first."""

    def bring(topology: str | dict[str, Any], **options: Any) -> SimState:
        if isinstance(topology, dict):
            file = run_dir.parent / "topology.yaml"
            file.write_text(json.dumps(topology))
            topology = str(file)
        return simulator.up(topology, **{"native": str(native), **options})

    yield bring
    simulator.down()


class Process:
    """A worker: `process.alloc(5)` calls its function of that name."""

    def __init__(self, command: list[str], environ: dict[str, str], cgroup: Path | None) -> None:
        def enter() -> None:
            if cgroup is not None:
                (cgroup / "cgroup.procs").write_text(str(os.getpid()))

        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environ},
            preexec_fn=enter,
            text=True,
        )

    def send(self, name: str, *arguments: Any) -> None:
        """Calls a function, and does not wait for its result."""
        assert self.popen.stdin
        self.popen.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.popen.stdin.flush()

    def result(self) -> Any:
        """The result of the next function that was sent."""
        assert self.popen.stdout
        line = self.popen.stdout.readline()
        assert line, f"the worker ended with {self.popen.wait()}"
        return json.loads(line)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.send(name, *arguments)
            return self.result()

        return call

    def kill(self) -> None:
        """Kills it with SIGKILL, and waits for its end."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()

    def end(self) -> None:
        """Closes its stdin, and waits for its end."""
        self.popen.communicate()


@pytest.fixture(scope="session")
def cgroup2() -> Path:
    """The mount point of the whole tree of cgroups v2."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if " - cgroup2 " in line and fields[3] == "/":
            return Path(fields[4])
    pytest.fail("this machine has no cgroup v2 tree: mount -t cgroup2 none /sys/fs/cgroup/unified")


@pytest.fixture
def cgroup(request: pytest.FixtureRequest) -> Iterator[Callable[..., Path]]:
    """`cgroup()` makes one at the top of the tree, `cgroup(parent)` one below another; both are removed in
    the end."""
    made: list[Path] = []

    def make(parent: Path | None = None, name: str = "") -> Path:
        top: Path = parent or request.getfixturevalue("cgroup2")
        folder = top / (name or f"xpu-test-{uuid.uuid4().hex[:12]}")
        folder.mkdir()
        made.append(folder)
        return folder

    yield make
    for folder in reversed(made):
        if folder.exists():
            folder.rmdir()


@pytest.fixture
def process(up: object, cgroup: object) -> Iterator[Start]:
    """`process(root)` starts a worker; `setup` is shell code that runs first, in a mount namespace.

    The workers end before their cgroups are removed.
    """
    started: list[Process] = []

    def start(
        root: str, environ: dict[str, str] | None = None, cgroup: Path | None = None, setup: str = ""
    ) -> Process:
        command = [sys.executable, str(Path(__file__).parent / "worker/worker.py"), root]
        if setup:
            command = ["unshare", "-m", "sh", "-ec", f'{setup}\nexec "$@"', "sh", *command]
        one = Process(command, environ or {}, cgroup)
        started.append(one)
        return one

    yield start
    for one in started:
        one.kill()
        one.popen.communicate()


@pytest.fixture
def working(up: Up, process: Start) -> Working:
    """`working("2xT4", 1, GIB)`: the root of a new simulation, and a worker with a context on the second card
    and that many bytes."""

    def bring(topology: str, device: int = 0, size: int = 0) -> tuple[str, Process]:
        root = up(topology).root
        worker = process(root)
        assert worker.start(device) == SUCCESS
        assert not size or worker.alloc(size)[0] == SUCCESS
        return root, worker

    return bring


@pytest.fixture
def one(working: Working) -> Process:
    """A process with a context on a T4; these contexts take no memory by themselves."""
    return working("1xT4")[1]


@pytest.fixture
def two(one: Process, process: Start) -> Process:
    """A second process with a context on the same T4."""
    state = simulator.status()
    assert state
    second = process(state.root)
    assert second.start() == SUCCESS
    return second


def used(observer: Process, device: int = 0) -> int:
    """Bytes in use on a device, as NVML reports."""
    memory: dict[str, int] = observer.nvml("nvmlDeviceGetMemoryInfo", device)
    assert memory["used"] + memory["free"] == memory["total"]
    return memory["used"]


@pytest.fixture
def pair(up: Up, process: Start, sanitized: Path) -> tuple[Process, Process]:
    """Two processes with a context each, and their driver built with sanitizers."""
    root = up("1xT4", native=str(sanitized)).root
    preload = {"LD_PRELOAD": sanitizer(libraries(root) / "libcuda.so.1"), "ASAN_OPTIONS": "detect_leaks=0"}
    workers = process(root, preload), process(root, preload)
    for worker in workers:
        assert worker.start() == SUCCESS
    return workers


@pytest.fixture
def owner(pair: tuple[Process, Process]) -> Process:
    """The first of the two, which has the things that it shares."""
    return pair[0]


@pytest.fixture
def other(pair: tuple[Process, Process]) -> Process:
    return pair[1]


def assert_driver_ends_well(state: SimState) -> None:
    """Ends the driver, whose sanitizers must have found nothing."""
    pidfd = os.pidfd_open(state.pid)
    os.kill(state.pid, signal.SIGTERM)
    assert select.select([pidfd], [], [], 60)[0]
    os.close(pidfd)
    log = Path(state.root).with_name("log").read_text()
    assert log.endswith("ended\n")
    assert "Sanitizer" not in log and "runtime error" not in log, log


def sanitizer(library: Path) -> str:
    """The runtime that an unsanitized program needs for a sanitized library."""
    listed = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout
    found = [line.split("=> ")[1].split()[0] for line in listed.splitlines() if "libasan" in line]
    assert found, listed
    return found[0]
