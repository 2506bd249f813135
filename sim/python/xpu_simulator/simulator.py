"""The simulated device: brings it up, takes it down, and reports it.

All of it is in one folder: the driver root (`root/`, see driver_root.py), the daemon in the place of the
kernel driver, and the file with the state. It serves people's commands: each imports what it needs.
"""

from __future__ import annotations

import os

from xpu_runtime import paths
from xpu_runtime.errors import DeviceError
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_simulator.topology import Topology

_REAL_DRIVER = "/proc/driver/nvidia/version"
_DRIVER = "xpu-sim-driver"

#: The part of the daemon's protocol (sim/protocol.h) that asks for its users.
_PROTOCOL_VERSION, _OP_USERS, _STATUS_OK = 2, 8, 0
_REQUEST, _REPLY = "=IIQIIIIQQ", "=QIIQQQ"
_LONGEST_REPLY = 1 << 16
#: Seconds for a daemon that answers within microseconds; a wait without an end is worse than an error.
_PATIENCE = 20


class SimState(Value):
    """The running simulation: the topology's name, its driver version, its root, its daemon, and the number
    of cards.

    `started` is the daemon's start time in clock ticks since boot. With the pid it identifies one process.
    """

    topology: str
    driver: str
    cuda: str
    root: str
    gpus: int
    pid: int
    started: int


class Available(Value):
    """A topology of ours."""

    name: str
    description: str
    gpus: int


def status() -> SimState | None:
    """The running simulation, or None. If the daemon was killed, it is None, though the files still exist."""
    import json

    from xpu_runtime.linux import proc

    try:
        with open(paths.in_run_dir("sim", "state.json"), "rb") as file:
            state = SimState(**json.load(file))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return state if proc.is_alive(state.pid, state.started) else None


def topologies() -> list[Available]:
    """Our topologies."""
    from xpu_simulator import topology

    read = [topology.read(name) for name in topology.names()]
    return [Available(found.name, found.description, len(found.gpus)) for found in read]


def branches() -> list[str]:
    """The driver branches of each topology, the oldest first."""
    from xpu_simulator import topology

    return list(topology.DRIVERS)


def up(topology: str, *, force: bool = False, native: str | None = None) -> SimState:
    """Brings the topology (a name or a file) up, in place of another one without users.

    If the same topology is up already, it stays unchanged. `force` leaves out two refusals: beside a real
    driver, and while processes use the present one. `native` is the folder of the compiled parts. ConfigError
    for the topology; DeviceError if it cannot come up. Nothing is left then.
    """
    from xpu_runtime.linux.files import Lock
    from xpu_simulator.topology import read

    wanted = read(topology)
    if os.path.exists(_REAL_DRIVER) and not force:
        raise DeviceError(
            "this machine has a real NVIDIA driver, which needs no simulation",
            "add --force to simulate beside it",
        )
    os.makedirs(paths.run_dir(), mode=0o755, exist_ok=True)
    with Lock(paths.in_run_dir("sim.lock")):
        present = status()
        if present and present.topology == topology and _has_settings(wanted):
            return present
        busy = users() if present and not force else []
        if present and busy:
            each = "them" if len(busy) > 1 else "it"
            raise DeviceError(
                f"{present.topology} is up and in use by {_processes(busy)}",
                f"end {each}, or add --force to take the devices away from {each}",
            )
        _clear(present)
        try:
            return _start(wanted, os.path.abspath(native or os.path.join(paths.NATIVE_DIR, "sim")))
        except BaseException:
            _clear(_daemon())
            raise


def down() -> bool:
    """Takes the simulation down, and removes leftovers. False if there was nothing."""
    from xpu_runtime.linux.files import Lock

    if not os.path.isdir(paths.run_dir()):
        return False
    with Lock(paths.in_run_dir("sim.lock")):
        there = os.path.exists(paths.in_run_dir("sim"))
        _clear(_daemon())
    return there


def users() -> list[int]:
    """Processes that hold a context on a simulated device; none if the driver does not answer."""
    import socket
    import struct

    request = struct.pack(_REQUEST, _PROTOCOL_VERSION, _OP_USERS, 1, 0, 0xFFFFFFFF, 0, 0, 0, 0)
    try:
        # A descriptor gives a short path: a socket's name may be shorter than a path.
        folder = os.path.join(_folder(), "root", "run", "nvidia-sim")
        directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(_PATIENCE)
                connection.connect(f"/proc/self/fd/{directory}/socket")
                connection.sendall(request)
                reply = connection.recv(_LONGEST_REPLY)
        finally:
            os.close(directory)
    except OSError:
        return []
    _, result, size, *_ = struct.unpack_from(_REPLY, reply)
    if result != _STATUS_OK:
        return []
    return list(struct.unpack_from(f"={size // 4}I", reply, struct.calcsize(_REPLY)))


def _folder() -> str:
    # The product looks for a driver root and its socket here: vendors/discovery.py.
    return os.path.join(os.path.realpath(paths.run_dir()), "sim")


def _settings(topology: Topology) -> str:
    """The text of the daemon's configuration."""
    folder = _folder()
    return topology.conf(
        socket_dir=os.path.join(folder, "root/run/nvidia-sim"),
        pid_file=os.path.join(folder, "pid"),
        log_file=os.path.join(folder, "log"),
    )


def _has_settings(topology: Topology) -> bool:
    """Whether the running simulation has exactly these settings: a file may have changed meanwhile."""
    try:
        with open(os.path.join(_folder(), "driver.conf"), encoding="utf-8") as file:
            return file.read() == _settings(topology)
    except FileNotFoundError:
        return False


def _processes(pids: list[int]) -> str:
    shown = ", ".join(map(str, pids[:5]))
    return f"process{'es' if len(pids) > 1 else ''} {shown}{' and others' if len(pids) > 5 else ''}"


def _start(topology: Topology, native: str) -> SimState:
    import json

    from xpu_runtime.linux import files
    from xpu_simulator import driver_root

    folder = _folder()
    place = os.path.join(folder, "root")
    conf = os.path.join(folder, "driver.conf")
    mask = os.umask(0o022)  # containers' users must be able to read it
    try:
        os.mkdir(folder)
        driver_root.make(place, topology, native)
    finally:
        os.umask(mask)
    files.write_atomic(conf, _settings(topology).encode())
    _run_daemon(os.path.join(native, _DRIVER), conf)
    daemon = _daemon()
    if daemon is None:
        raise DeviceError("the simulated driver ended at once", f"see {os.path.join(folder, 'log')}")
    state = SimState(
        topology.name,
        topology.driver,
        topology.cuda,
        place,
        len(topology.gpus),
        daemon.pid,
        daemon.started,
    )
    files.write_atomic(os.path.join(folder, "state.json"), json.dumps(state.as_dict()).encode())
    return state


def _run_daemon(program: str, conf: str) -> None:
    """Starts the daemon and waits until it listens. The daemon writes the result on a pipe, and closes it."""
    import select
    import subprocess

    reader, writer = os.pipe()
    try:
        try:
            subprocess.run(
                [program, "--config", conf, "--ready-fd", str(writer)],
                pass_fds=(writer,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                timeout=_PATIENCE,
                check=False,
            )
        finally:
            os.close(writer)
        said = b""
        while select.select([reader], [], [], _PATIENCE)[0]:
            part = os.read(reader, 4096)
            if not part:
                break
            said += part
    finally:
        os.close(reader)
    if said != b"ok\n":
        why = said.decode(errors="replace").strip() or "it did not say why"
        raise DeviceError(f"the simulated driver did not start ({why})", "see its log in the run folder")


class _Daemon(Value):
    pid: int
    started: int


def _daemon() -> _Daemon | None:
    """The daemon of the pid file, if that very process is alive."""
    from xpu_runtime.linux import proc

    try:
        with open(paths.in_run_dir("sim", "pid"), "rb") as file:
            pid, started = map(int, file.read(64).split())
    except (FileNotFoundError, ValueError):
        return None
    return _Daemon(pid, started) if proc.is_alive(pid, started) else None


def _clear(daemon: _Daemon | SimState | None) -> None:
    """Ends the daemon and removes the folder."""
    import shutil

    from xpu_simulator import driver_root

    if daemon is not None:
        _end(daemon.pid, daemon.started)
    driver_root.unmake(paths.in_run_dir("sim", "root"))
    shutil.rmtree(paths.in_run_dir("sim"), ignore_errors=True)


def _end(pid: int, started: int) -> None:
    """Sends SIGTERM, and later SIGKILL. A pidfd makes sure that no later process is meant."""
    import select
    import signal

    from xpu_runtime.linux import proc

    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not proc.is_alive(pid, started):
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(pidfd, number)
            if select.select([pidfd], [], [], _PATIENCE)[0]:
                return
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)
