"""NVIDIA's MPS control daemon of one device: started, found, asked and ended.

One daemon a device, with a folder of its own in the run folder:

    pipe/        its sockets (CUDA_MPS_PIPE_DIRECTORY); `control_privileged` is in no container
    clients/     a folder for each container, mounted into it: links to the sockets of pipe/ for its programs
    config.toml  from R615 on: the daemon's configuration
    shm/         the tmpfs that it, its server and the containers have at /dev/shm
    log/         control.log, server.log

It is found by its environment in /proc, so that a start which was killed leaves no unknown daemon. It has the
host's root cgroup, a session and a mount namespace of its own: it outlives the hook that starts it, and the
first container. Commands are as NVIDIA documents them (docs.nvidia.com/deploy/mps): of "Legacy MPS v2
Interface", or, from R615 on, of "MPS v3 Interface", where the server has a namespace for each container, with
the percentage and the pinned limit of its processes. Knows no grants.
"""

from __future__ import annotations

import os
import stat
import subprocess
import time

from xpu_runtime.errors import DeviceError
from xpu_runtime.limits import folders, mps_programs
from xpu_runtime.limits.mps_namespaces import configuration
from xpu_runtime.linux import cgroups, files, proc, syscalls
from xpu_runtime.value import Value

PROGRAM, SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
_SHM = "/dev/shm"  # noqa: S108 - the place that it has
#: The files of the pipe folder that a client opens.
_FOR_CLIENTS = ("control", "log")
#: Clients of all users share the server, which is root's: otherwise a container of another user waits until
#: all others have ended ("Provisioning Sequence" in NVIDIA's document).
_OPTIONS = ("-d", "-multiuser-server")
#: Seconds: for one command, for the daemon to answer, for a server to have initialized the device.
_COMMAND_S, _START_S, _SERVER_S = 5.0, 10.0, 40.0
#: Seconds until a missing server is given up: one that cannot work ends as soon as it is forked.
_FORK_S = 5.0
#: Seconds for the end: `quit`'s allowance for the server, then the rest until SIGKILL.
_QUIT_S, _END_S = 1, 3.0
_POLL_S = 0.01
_MAX_ENVIRON = 1 << 20
#: TASK_COMM_LEN cuts both programs' names to this.
_COMM = "nvidia-cuda-mps"
#: Protocol 3: the server's name, and the options beside -a: in the background, for clients of all users.
_SERVER_NAME = "xpu"
_OPTIONS_3 = ("-d", "-p", "3", "-m")
_CONFIGURATION = "config.toml"
#: Seconds for a change, which `xpu set` gives 4 (separate_process.py).
_SET_S = 2.0


class Process(Value):
    """A process, and the clock ticks since boot at which it started."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        return proc.is_alive(self.pid, self.started)

    def __str__(self) -> str:
        return f"{self.pid} {self.started}"


class Daemon:
    """The daemon of the device with this UUID, below `folder`."""

    def __init__(self, folder: str, uuid: str) -> None:
        self.folder = folder
        self._uuid = uuid
        self.pipe = os.path.join(folder, "pipe")
        self.clients = os.path.join(folder, "clients")
        self.shm = os.path.join(folder, "shm")
        self._configuration = os.path.join(folder, _CONFIGURATION)

    # The present state.

    @property
    def has_namespaces(self) -> bool:
        """Whether it was started with protocol 3."""
        return os.path.exists(self._configuration)

    def clients_of(self, name: str) -> str:
        """The folder that a container gets; its name is its namespace's, too."""
        return os.path.join(self.clients, name)

    def find(self) -> tuple[Process | None, Process | None]:
        """The control daemon and its server, by /proc; None for one that does not run."""
        found: dict[str, Process] = {}
        for name in os.listdir("/proc"):
            if name.isdecimal() and proc.name(int(name)) == _COMM:
                each = self._own(int(name))
                if each is not None:
                    found[each[0]] = each[1]
        return found.get(PROGRAM), found.get(SERVER)

    def _own(self, pid: int) -> tuple[str, Process] | None:
        """Which of this daemon's processes `pid` is; None: none.

        A process chooses its name, arguments and environment itself: one of a container could pose as the
        daemon. It cannot choose its user and PID namespace.
        """
        wanted = b"CUDA_MPS_PIPE_DIRECTORY=" + os.fsencode(self.pipe)
        try:
            if os.stat(f"/proc/{pid}").st_uid or proc.pid_namespace(pid) != proc.pid_namespace():
                return None
            if wanted not in files.read(f"/proc/{pid}/environ", _MAX_ENVIRON).split(b"\0"):
                return None
            program = files.read(f"/proc/{pid}/cmdline", _MAX_ENVIRON).split(b"\0")[0]
        except OSError:
            return None  # it has ended
        started = proc.start_time(pid)
        if started is None or not proc.is_alive(pid, started):
            return None
        return os.path.basename(os.fsdecode(program)), Process(pid, started)

    def ask(self, program: str, command: str, seconds: float = _COMMAND_S) -> str:
        """The daemon's answer to one command; DeviceError if it gives none."""
        third = self.has_namespaces
        try:
            done = subprocess.run(
                [program, *command.split()] if third else [program],
                input="" if third else command + "\n",
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=seconds,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            raise DeviceError(f"the MPS control daemon does not answer {command!r}", self._see()) from None
        except OSError as error:
            raise DeviceError(f"cannot run {program}: {error.strerror}") from error
        if done.returncode:
            told = " ".join((done.stdout + done.stderr).split())
            raise DeviceError(
                f"the MPS control daemon does not take {command!r}: {told or done.returncode}", self._see()
            )
        return done.stdout

    def status(self, program: str, server: Process) -> str:
        """INITIALIZING, ACTIVE or FAULT; "" where the daemon does not tell. DeviceError."""
        if self.has_namespaces:
            word = self.ask(program, f"server get {_SERVER_NAME} status").strip().upper()
            return "ACTIVE" if word == "READY" else word if word == "FAULT" else ""
        words = self.ask(program, f"get_server_status {server.pid}").upper().split()
        return next((word for word in words if word in ("INITIALIZING", "ACTIVE", "FAULT")), "")

    # Its life; under the device's lock.

    def start(
        self, programs: Programs, namespaces: list[Namespace], own: Namespace, *, third: bool
    ) -> Process:
        """Starts the daemon and the server if they do not run, and returns the server. A DeviceError has
        their logs, because the folder goes with the container. A started process stays for the next call.

        `namespaces`: those of all containers that may run, `own` of the one that starts. `third`: the driver
        has protocol 3; a daemon that runs already keeps its own.
        """
        longest = os.path.join(_SERVER_NAME, own.name, "control") if third else mps_programs.PRIVILEGED
        refusal = mps_programs.too_long(self.pipe, longest)
        if refusal is not None:
            raise DeviceError(refusal)
        try:
            return self._start(programs, namespaces, own, third=third)
        except DeviceError as error:
            told = mps_programs.said(os.path.join(self.folder, "log"))
            raise DeviceError(f"{error.what}; {told}", error.todo) from error

    def _start(
        self, programs: Programs, namespaces: list[Namespace], own: Namespace, *, third: bool
    ) -> Process:
        program = programs.control
        control, server = self.find()
        if control is not None and server is None and self.has_namespaces:
            # Nothing says that a named server which was killed is started again.
            self._quit(program)
            control = None
        if control is None:
            if server is not None:
                self._quit(program)  # a server without a daemon takes no new client
            self._make(namespaces, third=third)
            self._launch(programs)
            self._await(lambda: self.find()[0] is not None and self._answers(program), _START_S, "answer")
        elif self.has_namespaces:
            self._keep_namespaces(program, namespaces, own)
        self._link([each.name for each in namespaces], own.name)
        if self.find()[1] is None and not self.has_namespaces:
            self.ask(program, "start_server -uid 0", _SERVER_S)
        seen = time.monotonic()

        def serves() -> bool:
            nonlocal seen
            if self.has_namespaces or self.find()[1] is not None:
                seen = time.monotonic()
            elif time.monotonic() - seen > _FORK_S:
                raise DeviceError("the MPS server ends at once", self._see())
            return self._serves(program)

        self._await(serves, _SERVER_S, "get a server for the device ready")
        server = self.find()[1]
        if server is None:
            raise DeviceError("the MPS server ended at once", self._see())
        return server

    def end(self, program: str | None) -> None:
        """Ends server and daemon, and removes the folder. DeviceError."""
        self._quit(program)
        self._remove()

    def _quit(self, program: str | None) -> None:
        """Ends them, politely where `program` is there. DeviceError."""
        control, _ = self.find()
        if control is not None and program is not None:
            try:
                self.ask(program, "-q" if self.has_namespaces else f"quit -t {_QUIT_S}", _QUIT_S + 2.0)
            except DeviceError:
                pass  # by force, then
        until = time.monotonic() + _END_S
        while any(each is not None for each in self.find()) and time.monotonic() < until:
            if control is None or program is None:
                break
            time.sleep(_POLL_S)
        for each in self.find():
            if each is not None:
                proc.kill(each.pid, each.started)
        self._await(lambda: self.find() == (None, None), _END_S, "end")

    def set(self, program: str, namespace: Namespace) -> None:
        """Sets the limits of the container's programs that start from now on. DeviceError."""
        words = [f"--{key.replace('_', '-')}={value}" for key, value in namespace.limits]
        if words:
            command = f"namespace set {namespace.name} --server={_SERVER_NAME} {' '.join(words)}"
            self.ask(program, command, _SET_S)

    def _keep_namespaces(self, program: str, namespaces: list[Namespace], own: Namespace) -> None:
        """Makes its own; those of containers that have ended go. Each has a folder of its name."""
        of_server = f"--server={_SERVER_NAME}"
        there = set(os.listdir(self.clients))
        for name in sorted(there - {each.name for each in namespaces}):
            self._try(program, f"namespace delete {name} {of_server} --force")
        if own.name not in there:
            # A call that was killed may have made it.
            self._try(program, f"namespace create {own.name} {of_server}")
        self.set(program, own)

    def _try(self, program: str, command: str) -> None:
        try:
            self.ask(program, command)
        except DeviceError:
            pass

    def _launch(self, programs: Programs) -> None:
        program = programs.control
        options = [*_OPTIONS_3, "-a", self._configuration] if self.has_namespaces else [*_OPTIONS]
        with open(os.path.join(self.folder, "log", "start.log"), "wb") as log:
            try:
                # To files: an engine that waits for the end of the hook's output must not wait for the
                # daemon's end.
                done = subprocess.run(
                    [program, *options],
                    env={**self._environment(), **programs.environment()},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    timeout=_START_S,
                    start_new_session=True,
                    preexec_fn=self._leave,
                )
            except subprocess.TimeoutExpired:
                raise DeviceError(f"{program} does not go into the background", self._see()) from None
            except (OSError, subprocess.SubprocessError) as error:
                raise DeviceError(f"cannot run {program}: {error}") from error
        if done.returncode:
            raise DeviceError(f"{program} {' '.join(options)} fails ({done.returncode})", self._see())

    def _leave(self) -> None:
        """In the child: out of the caller's cgroups, and with the shared /dev/shm."""
        for each in cgroups.mounted():
            try:
                with open(os.path.join(each.mountpoint, "cgroup.procs"), "w", encoding="ascii") as members:
                    members.write("0")
            except OSError:
                pass  # such as cgroups that are mounted read-only
        # Slave, not private: a mount that ends on the host must end here too, or it is busy as long as we run
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_SLAVE)
        syscalls.mount(self.shm, _SHM, "", syscalls.MS_BIND)
        os.umask(0o022)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "CUDA_MPS_PIPE_DIRECTORY": self.pipe,
            "CUDA_MPS_LOG_DIRECTORY": os.path.join(self.folder, "log"),
            "CUDA_VISIBLE_DEVICES": self._uuid,
        }

    def _make(self, namespaces: list[Namespace], *, third: bool) -> None:
        """Makes the folder, without an earlier daemon's files."""
        try:
            for name in ("pipe", "clients", "log", "shm"):
                os.makedirs(os.path.join(self.folder, name), mode=0o755, exist_ok=True)
            # The folders that containers have stay.
            self._remove_below(self.pipe)
            os.mkdir(self.pipe, 0o755)
            for top, _, others in os.walk(self.clients):
                for name in others:
                    os.unlink(os.path.join(top, name))
            if third:
                with open(self._configuration, "w", encoding="ascii") as file:
                    file.write(configuration(_SERVER_NAME, self._uuid, namespaces))
            elif self.has_namespaces:
                os.unlink(self._configuration)
            if not os.path.ismount(self.shm):
                flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
                syscalls.mount("xpu-mps", self.shm, "tmpfs", flags, "mode=1777")
        except OSError as error:
            raise DeviceError(f"cannot make {self.folder}: {error.strerror}") from error

    def _link(self, names: list[str], own: str) -> None:
        """Makes the clients' links in the containers' folders; again after a daemon was restarted."""
        try:
            for name in sorted(set(os.listdir(self.clients)) - set(names)):
                self._remove_below(self.clients_of(name))
            for name in names:
                if name == own or os.path.lexists(os.path.join(self._sockets(name), "control")):
                    self._link_one(name)  # the others' starts make theirs
        except OSError as error:
            raise DeviceError(f"cannot link {error.filename}: {error.strerror}", self._see()) from error

    def _sockets(self, client: str) -> str:
        return os.path.join(self.pipe, _SERVER_NAME, client) if self.has_namespaces else self.pipe

    def _link_one(self, client: str) -> None:
        os.makedirs(self.clients_of(client), mode=0o755, exist_ok=True)
        for name in _FOR_CLIENTS:
            source = os.path.join(self._sockets(client), name)
            place = os.path.join(self.clients_of(client), name)
            if os.path.lexists(place) and os.path.samestat(os.lstat(source), os.lstat(place)):
                continue
            if os.path.lexists(place):
                os.unlink(place)
            if name == "control" or os.path.lexists(source):
                os.link(source, place)

    def _remove_below(self, folder: str) -> None:
        for top, names, others in os.walk(folder, topdown=False):
            for name in others:
                os.unlink(os.path.join(top, name))
            for name in names:
                os.rmdir(os.path.join(top, name))
        os.rmdir(folder)

    def _remove(self) -> None:
        folders.unmount(self.shm)
        try:
            self._remove_below(self.folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise DeviceError(f"cannot remove {error.filename}: {error.strerror}") from error

    def _answers(self, program: str) -> bool:
        try:
            if not stat.S_ISSOCK(os.lstat(os.path.join(self.pipe, "control")).st_mode):
                return False
            asked = "server list" if self.has_namespaces else "get_default_active_thread_percentage"
            return bool(self.ask(program, asked).split())
        except (DeviceError, OSError):
            return False

    def _serves(self, program: str) -> bool:
        server = self.find()[1]
        return server is not None and self.status(program, server) in ("ACTIVE", "FAULT")

    def _await(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while not done():
            if time.monotonic() > until:
                raise DeviceError(f"the MPS control daemon does not {what} in {seconds:.0f} s", self._see())
            time.sleep(_POLL_S)

    def _see(self) -> str:
        return f"see {os.path.join(self.folder, 'log')} while it is there"


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from xpu_runtime.limits.mps_namespaces import Namespace
    from xpu_runtime.limits.mps_programs import Programs
