"""Engines of the tests' own: a containerd and a dockerd on it, whose containers get the node's devices.

They are started once for this folder of tests, as a distribution's packages run them (dockerd uses the
existing containerd), with roots, sockets and a cgroup of their own below one short folder. When a test ends,
its containers are removed, and no grant may be left. When the engines end, nothing may be left.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support import created

from ..conftest import Node

PATIENCE = 60
TOPOLOGY = "1xT4"
#: The engine's own log lines are of no use where a test fails; this much of their end is.
_LOG_END = 4000
#: containerd 1.6 has its shims' sockets there, wherever its own state is (runtime/v2/shim/util_unix.go).
_SHIM_SOCKETS = Path("/run/containerd/s")


def until(condition: Callable[[], object], what: str) -> None:
    """Polls until `condition` holds; fails the test where it does not in time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {PATIENCE} s in vain until {what}")
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not, even if its new parent is slow."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def shim_of(init: int) -> int:
    """The containerd-shim of a container, which is its init's parent."""
    shim = int(Path(f"/proc/{init}/stat").read_text().rpartition(") ")[2].split()[1])
    assert b"containerd-shim" in Path(f"/proc/{shim}/cmdline").read_bytes()
    return shim


class Daemon:
    """A process that answers on a socket; started, ended and killed by its pid."""

    def __init__(self, command: list[str], ready: list[str], log: Path, environ: dict[str, str]) -> None:
        self.command = command
        self._ready = ready
        self._log = log
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environ
            )

        def answers() -> bool:
            if process.poll() is not None:
                pytest.fail(f"{self.command[0]} ended:\n{self.log()}")
            return subprocess.run(self._ready, capture_output=True, timeout=PATIENCE).returncode == 0

        until(answers, f"{self.command[0]} answers:\n{self.log()}")

    def ensure(self) -> None:
        """Starts it unless it runs: a test that killed it may have failed before it started it again."""
        if self._process is None or self._process.poll() is not None:
            self.start()

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE)
            self._process = None

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_END:] if self._log.exists() else ""


class Engines:
    """The folder, the node and the daemons that all tests here share."""

    def __init__(self, prefix: Path) -> None:
        # Its name is containerd's namespace: no underscore may follow the dash, which mkdtemp has at times.
        self.folder = Path("/run", f"xpu-e-{secrets.token_hex(4)}")
        self.folder.mkdir()
        self.folder.chmod(0o711)  # the root of a user namespace goes through it
        #: Their cgroup, and containerd's namespace for `ctr`, which makes a cgroup of that name.
        self.name = self.folder.name
        self.node = Node(prefix, self.folder)
        self.containerd_config = self.folder / "containerd.toml"
        self.docker_config = self.folder / "daemon.json"
        self.containerd_socket = f"{self.folder}/containerd.sock"
        self.docker_socket = f"unix://{self.folder}/docker.sock"
        self.sockets: set[Path] = set()
        self._topology = ""
        # The engine's environment reaches the runtime, so its variables are the node's.
        environ = self.node.environ
        self.containerd = Daemon(
            [
                "containerd", "--config", str(self.containerd_config), "--address", self.containerd_socket,
                "--root", f"{self.folder}/c-root", "--state", f"{self.folder}/c-state",
            ],
            ["ctr", "--address", self.containerd_socket, "version"],
            self.folder / "containerd.log",
            environ,
        )  # fmt: skip
        self.dockerd = Daemon(
            [
                "dockerd", "--config-file", str(self.docker_config), "--containerd", self.containerd_socket,
                "--host", self.docker_socket, "--data-root", f"{self.folder}/d-root",
                "--exec-root", f"{self.folder}/d-exec", "--pidfile", f"{self.folder}/d.pid",
                f"--cgroup-parent=/{self.name}", "--live-restore",
                "--iptables=false", "--ip6tables=false", "--bridge=none",
            ],
            ["docker", "--host", self.docker_socket, "version"],
            self.folder / "dockerd.log",
            environ,
        )  # fmt: skip

    def shim_socket(self, namespace: str, container: str) -> Path:
        """Where the containerd-shim of a container listens; one that is killed leaves it behind."""
        name = hashlib.sha256(f"{self.containerd_socket}/{namespace}/{container}".encode()).hexdigest()
        path = _SHIM_SOCKETS / name
        self.sockets.add(path)
        return path

    def change_topology(self, name: str) -> None:
        if self._topology:
            self.node.xpu("sim", "down")
        self.node.sim(name)
        self._topology = name

    def restore_topology(self) -> None:
        if self._topology != TOPOLOGY:
            self.change_topology(TOPOLOGY)

    def processes(self) -> dict[int, str]:
        """The processes that the engines have started and that still run: their shims, their containers."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (
                    self.folder.name.encode() in (entry / "environ").read_bytes()
                    or f"/{self.name}/" in (entry / "cgroup").read_text()
                ):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(entry.name)] = command
            except OSError:
                continue  # it has ended
        return found

    def cgroups(self) -> list[Path]:
        """The engines' cgroups, and those of their containers below them."""
        found: list[Path] = []
        for top in Path("/sys/fs/cgroup").glob(f"*/{self.name}"):
            found += [Path(path) for path, _, _ in os.walk(top, topdown=False)]
        return found

    def mounts(self) -> list[str]:
        with open("/proc/self/mounts") as lines:
            return [point for line in lines if (point := line.split()[1]).startswith(f"{self.folder}/")]

    def close(self) -> list[str]:
        """Ends everything; returns the left-overs."""
        self.dockerd.stop()
        self.containerd.stop()
        left_records = created.of(self.folder)
        listed = self.node.xpu("ps", "--json", check=False)
        left = [] if listed.stdout.strip() == "[]" else [f"xpu ps: {listed.stdout}{listed.stderr}"]
        left += [f"the record of {each.container_id}" for each in left_records.values()]
        created.forget(self.folder)
        self.node.xpu("sim", "down", check=False)
        for pid, command in self.processes().items():
            left.append(f"the process {pid}: {command}")
            os.kill(pid, signal.SIGKILL)
        until(lambda: not self.processes(), "the last process has ended")
        # dockerd keeps its network namespace, and containerd's overlays' parent; theirs, not ours.
        for point in reversed(self.mounts()):
            subprocess.run(["umount", "--lazy", point], check=True)
        for folder in self.cgroups():
            if len(folder.parts) > len(Path("/sys/fs/cgroup/x/y").parts):
                left.append(f"the cgroup {folder}")
            folder.rmdir()
        for path in self.sockets:
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder)
        return left


@pytest.fixture(scope="package")
def engines(installed: Path) -> Iterator[Engines]:
    """Both engines' files as the product configures them, and a simulated T4; nothing runs yet."""
    links = os.listdir("/dev/char") if os.path.isdir("/dev/char") else None
    found = Engines(installed)
    try:
        found.restore_topology()
        found.node.xpu("runtime", "configure", "docker", "--config", found.docker_config)
        found.node.xpu("runtime", "configure", "containerd", "--config", found.containerd_config)
        found.containerd.start()
        yield found
    finally:
        left = found.close()
    assert left == []
    assert (os.listdir("/dev/char") if os.path.isdir("/dev/char") else None) == links


@pytest.fixture
def node(engines: Engines) -> Iterator[Node]:
    """The engines' node, with a simulated T4 and no configuration file when the test begins.

    At its end, when the engines' fixtures have removed the test's containers, no grant may be left.
    """
    engines.node.config.unlink(missing_ok=True)
    yield engines.node
    assert engines.node.json("ps") == []
    engines.restore_topology()


@pytest.fixture(params=["hook", "spec"])
def mode(request: pytest.FixtureRequest, node: Node) -> str:
    """Each of the two ways into a container, as the configuration says it."""
    node.configure(f"mode: {request.param}\n")
    return str(request.param)


@pytest.fixture
def topology(engines: Engines, node: Node) -> Callable[[str], None]:
    """Gives the node other devices until the test ends: `topology("2xT4")`."""
    return engines.change_topology


#: The limit held by the driver, and by the interposers.
BACKENDS = pytest.mark.parametrize("ask", ["XPU_MEM=4G", "XPU_MEM=4G XPU_ENFORCE=library"])


class Completed:
    """A command's output and exit status."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.status = done.returncode
        self.out = done.stdout
        self.error = done.stderr

    def __repr__(self) -> str:
        return f"status {self.status}\n{self.out}\n{self.error}"


def completed(words: Sequence[str | Path], **options: Any) -> Completed:
    """Runs a command to its end."""
    options.setdefault("timeout", PATIENCE)
    return Completed(subprocess.run(words, capture_output=True, text=True, **options))


class Docker:
    """The command line of the engine: `docker.run("XPU_MEM=4G", "nvidia-smi")`."""

    IMAGE = "xpu-test:1"

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self.command = ["docker", "--host", engines.docker_socket]

    def __call__(self, *words: str) -> Completed:
        return completed([*self.command, *words])

    def must(self, *words: str) -> str:
        """The output of a command that has to succeed."""
        done = self(*words)
        assert done.status == 0, f"docker {' '.join(words)}: {done}"
        return done.out.strip()

    def run_words(
        self, env: str, *words: str, options: Sequence[str], image: str = IMAGE, runtime: str = "xpu"
    ) -> list[str]:
        """The words of `docker run`; `env` has the container's variables, with spaces between them."""
        variables = [word for item in env.split() for word in ("-e", item)]
        runtimes = [f"--runtime={runtime}"] if runtime else []
        return ["run", *runtimes, "--network=none", *variables, *options, image, *words]

    def run(self, env: str, *words: str, options: Sequence[str] = (), **more: str) -> Completed:
        """A container from its start to its end."""
        return self(*self.run_words(env, *words, options=["--rm", *options], **more))

    def start(self, env: str, *words: str, options: Sequence[str] = (), **more: str) -> str:
        """A container in the background; its id."""
        return self.must(*self.run_words(env, *words, options=["--detach", *options], **more))

    def hold(self, env: str, mib: int, options: Sequence[str] = (), **more: str) -> str:
        """A container in the background that holds so many MiB of its device."""
        container = self.start(env, "cuda-probe", "alloc", str(mib), "--hold", options=options, **more)
        until(lambda: "MiB free" in self("logs", container).out, f"{container} holds {mib} MiB")
        return container

    def inspect(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.must("inspect", container))[0]
        return found

    def pid(self, container: str) -> int:
        return int(self.inspect(container)["State"]["Pid"])

    def is_running(self, container: str) -> bool:
        return bool(self.inspect(container)["State"]["Running"])

    def remove_all(self) -> None:
        if there := self.must("ps", "--all", "--quiet").split():
            self.must("rm", "--force", *there)

    def make_image(self, root: Path, name: str, *changes: str) -> str:
        """An image with the content of `root`; `changes` are Dockerfile lines as ENV A=b."""
        words = [word for change in changes for word in ("--change", change)]
        archive = subprocess.run(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE, check=True).stdout
        command = [*self.command, "import", *words, "-", name]
        subprocess.run(command, input=archive, check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)
        return name


@pytest.fixture(scope="package")
def dockerd(engines: Engines, image_root: Path) -> Daemon:
    """The running dockerd, with the image of the tests."""
    engines.dockerd.start()
    Docker(engines).make_image(image_root, Docker.IMAGE)
    return engines.dockerd


@pytest.fixture
def docker(engines: Engines, dockerd: Daemon, node: Node) -> Iterator[Docker]:
    """docker on the node; the test's containers are removed when it ends."""
    found = Docker(engines)
    engines.containerd.ensure()
    dockerd.ensure()
    # Where a test has started containerd anew dockerd dials it after a while, and till then starts nothing.
    parts = ("version", "--format", "{{json .Server.Components}}")
    until(lambda: '"containerd"' in found(*parts).out, "docker has found containerd")
    yield found
    engines.containerd.ensure()
    dockerd.ensure()
    found.remove_all()


@pytest.fixture
def private_docker(engines: Engines, node: Node, image_root: Path) -> Iterator[Callable[..., Docker]]:
    """docker on a dockerd of the test's own, which has a containerd of its own; called with more options of
    dockerd, once."""
    folder = engines.folder / "own"
    folder.mkdir(mode=0o711)
    docker = Docker(engines)
    docker.command = ["docker", "--host", f"unix://{folder}/docker.sock"]
    daemons: list[Daemon] = []

    def start(*options: str) -> Docker:
        command = [
            "dockerd", "--host", docker.command[-1], "--data-root", f"{folder}/root",
            "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid", f"--cgroup-parent=/{engines.name}",
            "--iptables=false", "--ip6tables=false", "--bridge=none", *options,
        ]  # fmt: skip
        daemons.append(Daemon(command, [*docker.command, "version"], folder / "log", node.environ))
        daemons[0].start()
        docker.make_image(image_root, Docker.IMAGE)
        return docker

    try:
        yield start
        docker.remove_all()
    finally:
        daemons[0].stop()
        for point in [each for each in engines.mounts() if each.startswith(f"{folder}/")][::-1]:
            subprocess.run(["umount", "--lazy", point], check=True)
        shutil.rmtree(folder)
