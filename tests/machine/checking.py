"""The tools of the checks in the machine, and the program that runs them and reports their results."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import termios
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

GIB = 1 << 30
IMAGE = "probe:1"
HERE = "/usr/local/share/checks"
XPU = "/usr/local/bin/xpu"
RUNTIME = "/usr/local/bin/xpu-container-runtime"
CONFIG = "/etc/xpu/config.yaml"
DRIVER = "/run/xpu/sim/root"

#: The errors of opening a device that the cgroup allows but has no driver, and a device that it denies.
ALLOWED = "No such device or address"
DENIED = "Operation not permitted"
GPU0, GPU1 = "195:0", "195:1"

_OPEN = """for device in "$@"; do
    case $device in
    /*) echo "$device: $(cat "$device" 2>&1)" ;;
    *)  mknod "/dev/probe-$device" c "${device%:*}" "${device#*:}" || exit 9
        echo "$device: $(cat "/dev/probe-$device" 2>&1)"
        rm "/dev/probe-$device" ;;
    esac
done"""
_LIMIT = """
import ctypes, sys
sys.path.insert(0, "/usr/local/lib/xpu-container-runtime/vendor")
import pynvml
pynvml.nvmlInit()
record = pynvml.c_nvmlGetMemoryLimits_v1_t(sys.argv[1].encode())
pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByIndex(0), record)
print(record.hardLimit)
"""
#: NVML_DEVICE_MEMORY_LIMIT_MAX
_NO_LIMIT = (1 << 64) - 1

CHECKS: list[Callable[[], None]] = []
_transcript: list[str] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


# Tools of the checks.


def run(*command: str, fails: bool = False, environ: dict[str, str] | None = None) -> str:
    """The command's output, with stderr; AssertionError if its status is not the expected one."""
    started = time.monotonic()
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        env={**os.environ, **(environ or {})},
    )
    seconds = time.monotonic() - started
    _transcript.append(f"$ {' '.join(command)}\n{done.stdout}[status {done.returncode}, {seconds:.1f} s]")
    assert (done.returncode != 0) is fails, f"{' '.join(command)} ended with status {done.returncode}"
    return done.stdout


def xpu(*words: str) -> Any:
    return json.loads(run(XPU, *words, "--json"))


class Engine:
    """A docker engine, by the socket that it listens on."""

    #: Options of a container.
    GIVEN: tuple[str, ...] = ("--detach", "--runtime=xpu", "--network=none")

    def __init__(self, socket: str = "/run/docker.sock") -> None:
        self.socket = socket

    def docker(self, *words: str, fails: bool = False) -> str:
        return run("docker", "--host", f"unix://{self.socket}", *words, fails=fails)

    def load_image(self) -> None:
        self.docker("import", f"{HERE}/image.tar", IMAGE)

    @contextlib.contextmanager
    def container(self, *options: str) -> Iterator[str]:
        """Runs a sleeping container; its id."""
        try:
            said = self.docker("run", "--name=checked", *self.GIVEN, *options, IMAGE, "sleep", "1000")
            yield said.split()[-1]
        finally:
            self.docker("rm", "--force", "checked")

    def openings(self, *devices: str) -> dict[str, str]:
        """The error of opening each device in the container: a path, or the major:minor of a new node."""
        said = self.docker("exec", "checked", "sh", "-c", _OPEN, "sh", *devices)
        return {line.partition(": ")[0]: line.rpartition(": ")[2] for line in said.splitlines()}


class Podman(Engine):
    """podman in front of runc, without our runtime."""

    GIVEN = ("--detach", "--network=none")

    def __init__(self) -> None:
        self.load_image()

    def docker(self, *words: str, fails: bool = False) -> str:
        return run("podman", "--runtime=runc", *words, fails=fails)


@contextlib.contextmanager
def private_engine(name: str, *options: str) -> Iterator[Engine]:
    """An engine besides systemd's; it has only the cgroup driver cgroupfs."""
    folder = f"/run/{name}"
    os.mkdir(folder)
    engine = Engine(f"{folder}/docker.sock")
    log_path = f"{folder}/log"
    command = [
        "dockerd", "--host", f"unix://{engine.socket}", "--data-root", f"/var/lib/{name}",
        "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid",
        "--containerd", "/run/containerd/containerd.sock", "--containerd-namespace", name,
        "--containerd-plugins-namespace", f"{name}-plugins",
        "--exec-opt", "native.cgroupdriver=cgroupfs", *options,
    ]  # fmt: skip
    with open(log_path, "wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 90
        while not os.path.exists(engine.socket) or subprocess.call(
            ["docker", "--host", f"unix://{engine.socket}", "version"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ):
            assert daemon.poll() is None and time.monotonic() < deadline, run("tail", "-n", "30", log_path)
            time.sleep(0.2)
        engine.load_image()
        yield engine
    finally:
        daemon.terminate()
        daemon.wait(60)


def limit_on(cgroup: str) -> int | None:
    """The memory limit in bytes that the driver holds on a cgroup, as NVML reports it."""
    libraries = f"{DRIVER}/usr/lib/x86_64-linux-gnu"
    said = run("/usr/bin/python3", "-c", _LIMIT, cgroup, environ={"LD_LIBRARY_PATH": libraries})
    return None if int(said) == _NO_LIMIT else int(said)


def nothing_is_held() -> bool:
    return xpu("ps") == [] and all(device["memory_granted_bytes"] == 0 for device in xpu("devices"))


SYSTEM = Engine()
SLICE = ("--env=XPU_MEM=4G", "--env=XPU_CORES=30")


# Running the checks and reporting their results.


def _result(function: Callable[[], None]) -> dict[str, Any]:
    _transcript.clear()
    started = time.monotonic()
    try:
        function()
        ok = True
    except Exception:
        ok = False
        _transcript.append(traceback.format_exc())
    seconds = round(time.monotonic() - started, 1)
    return {"name": function.__name__, "ok": ok, "seconds": seconds, "transcript": "\n".join(_transcript)}


def main(terminal: str, checks: Iterable[Callable[[], None]]) -> int:
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    with open(terminal, "wb", buffering=0) as port:
        attributes = termios.tcgetattr(port)
        attributes[1] &= ~termios.OPOST
        attributes[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(port, termios.TCSANOW, attributes)
        for function in checks:
            result = _result(function)
            print(
                f"{result['name']}: {'ok' if result['ok'] else 'FAILED'}, {result['seconds']} s", flush=True
            )
            data = json.dumps(result).encode() + b"\n"
            while data:
                data = data[os.write(port.fileno(), data) :]
            termios.tcdrain(port)
    return 0
