"""A node of the tests' own: the installed runtime, a run folder, a configuration, a simulated driver.

Tests go through the entry points: the real runc behind `xpu-container-runtime`, with real bundles. Only the
hardware is simulated. Everything is below one short folder (socket paths have 108 characters), and
its end checks that no grant, limit, mount or process is left.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import image
from support import REPOSITORY, created
from support.bundles import copy_root
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.store import Ledger
from xpu_simulator import simulator

from . import documented

CGROUPS = Path("/sys/fs/cgroup")
#: The program of containers that the test itself ends.
SLEEP = ["sleep", "1000"]


@contextmanager
def namespace(*command: str) -> Iterator[int]:
    """Runs `command`, which says `ready` when its namespaces are made, meanwhile; its number."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "ready\n"
            yield holder.pid
        finally:
            holder.kill()


#: `make("XPU_MEM=4G", args=["nvidia-smi"], change=edit)` is a bundle: the fixture `bundles`.
Bundles = Callable[..., Path]


class Node:
    """The runtime as installed, on a node with devices of its own."""

    def __init__(self, prefix: Path, folder: Path) -> None:
        self.use(prefix)
        self.folder = folder
        self.run_dir = folder / "run"
        self.config = folder / "config.yaml"
        self.state_root = folder / "state"
        self.state_root.mkdir()
        self.environ = {**os.environ, "XPU_RUN_DIR": str(self.run_dir), "XPU_CONFIG": str(self.config)}
        #: Words in front of every command, such as `nsenter` into another view of the machine.
        self.view: list[str] = []

    def use(self, prefix: Path) -> None:
        """Takes another installation from here on."""
        self.prefix = prefix
        self.runtime = prefix / "bin" / "xpu-container-runtime"
        self.hook = prefix / "bin" / "xpu-container-runtime-hook"

    def command(self, *words: str | Path) -> list[str | Path]:
        """The runtime's command line with a private `--root`."""
        return [*self.view, self.runtime, "--root", self.state_root, *words]

    def xpu(self, *words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs `xpu`; if it fails, the test fails, unless `check` is False."""
        done = subprocess.run(
            [*self.view, self.prefix / "bin" / "xpu", *words],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if check and done.returncode:
            raise AssertionError(f"xpu {' '.join(map(str, words))}: {done.stderr}")
        if "--json" in words and done.stdout:
            documented.check(words, done.stdout)
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self.xpu(*words, "--json").stdout)

    def events(self, *options: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.xpu("events", "--json", *options).stdout.splitlines()]

    def explained(self, *words: str | Path) -> tuple[int, dict[str, Any]]:
        """The exit status of `xpu explain`, and its output."""
        done = self.xpu("explain", "--json", *words, check=False)
        return done.returncode, json.loads(done.stdout)

    def completed(self, *words: str) -> list[str]:
        """bash's suggestions for the last of these words after `xpu`."""
        variables = {"_XPU_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words))}
        done = subprocess.run(
            [self.prefix / "bin" / "xpu"],
            env={**self.environ, **variables, "COMP_WORDS": " ".join(["xpu", *words])},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stderr == ""
        return [line.partition(",")[2] for line in done.stdout.splitlines() if line]

    @contextmanager
    def as_user(self) -> Iterator[None]:
        """The commands are those of a user without rights, who may enter the node's folder."""
        self.folder.chmod(0o755)
        before = self.view
        self.view = [*before, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
        try:
            yield
        finally:
            self.view = before

    def grants(self) -> list[Grant]:
        """All that the ledger has, those of the dead included; quicker than `xpu ps`."""
        with Ledger(str(self.run_dir / "ledger.db")) as ledger:
            return ledger.grants()

    def change_ledger(self, statement: str, *rows: tuple[object, ...]) -> None:
        """Runs SQL past the runtime, once for each row of values: as another version or a fault would."""
        with closing(sqlite3.connect(self.run_dir / "ledger.db")) as ledger, ledger:
            ledger.executemany(statement, rows or [()])

    def sim(self, topology: str | Path) -> None:
        """Does the work of `xpu sim up`.

        By its function, as for `close`: two commands for each test took 0.2 s of a processor.
        """
        if self.view:
            self.xpu("sim", "up", "--topology", topology)
            return
        native = self.prefix / "lib" / "xpu-container-runtime" / "native" / "sim"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XPU_RUN_DIR", str(self.run_dir))
            simulator.up(str(topology), native=str(native))

    @property
    def driver_pid(self) -> int:
        """The process of the simulated driver."""
        return int(json.loads((self.run_dir / "sim/state.json").read_text())["pid"])

    @contextmanager
    def hanging_driver(self) -> Iterator[None]:
        """The simulated driver answers nothing meanwhile."""
        os.kill(self.driver_pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.driver_pid, signal.SIGCONT)

    def configure(self, text: str) -> None:
        self.config.write_text(text)

    def oci(
        self, *words: str | Path, timeout: float = 60, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Runs the runtime with a private `--root`."""
        options.setdefault("env", self.environ)
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=timeout, **options
        )

    def run(self, bundle: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """`run` in the foreground: the container's output, and its exit status."""
        return self.oci("run", *options, "--bundle", bundle, bundle.name)

    def run_by_runc(self, bundle: Path) -> subprocess.CompletedProcess[str]:
        """`run` without our runtime in front of runc: hooks in the spec have the environment that it says."""
        command: list[str | Path] = [
            "runc",
            "--root",
            self.state_root,
            "run",
            "--bundle",
            bundle,
            bundle.name,
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def call_hook(self, *words: str, state: object) -> subprocess.CompletedProcess[str]:
        """Calls the hook as a runtime does: `state` on its input is a text, or `state_of` a bundle."""
        told = state if isinstance(state, str) else json.dumps(state)
        command: list[str | Path] = [*self.view, self.hook, *words]
        return subprocess.run(
            command, input=told, env=self.environ, capture_output=True, text=True, timeout=60
        )

    def start(self, bundle: Path, *options: str | Path) -> str:
        """Creates and starts a container in the background, with global `options`; its id."""
        with (bundle / "output").open("wb") as output:
            for words in (["create", "--bundle", bundle, bundle.name], ["start", bundle.name]):
                command = self.command(*options, *words)
                done = subprocess.run(command, env=self.environ, stdout=output, stderr=output, timeout=60)
                if done.returncode:
                    raise AssertionError((bundle / "output").read_text())
        return bundle.name

    def create_all(self, bundles: Iterable[Path]) -> list[subprocess.Popen[bytes]]:
        """Begins to create all these containers at once."""
        return [
            subprocess.Popen(
                self.command("create", "--bundle", bundle, bundle.name),
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for bundle in bundles
        ]

    def remove(self, container: str) -> None:
        done = self.oci("delete", "--force", container)
        assert done.returncode == 0, done.stderr

    @contextmanager
    def own_mounts(self, script: str = "") -> Iterator[None]:
        """The commands see the mounts of the lines of `script`, and the machine does not."""
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec"]
        with namespace(*words, f"{script}\necho ready; exec sleep infinity") as holder:
            self.view = ["nsenter", "--mount", "--target", str(holder), "--"]
            try:
                yield
            finally:
                # The machine must neither see nor unmount the mounts of the commands.
                self.close_containers()
                self.xpu("sim", "down", check=False)
                self.view = []

    def close_containers(self) -> None:
        for state in self.state_root.iterdir():
            self.remove(state.name)

    def close(self) -> None:
        self.close_containers()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XPU_RUN_DIR", str(self.run_dir))
            simulator.down()
        created.forget(self.folder)
        shutil.rmtree(self.folder)


def state_of(bundle: Path, *, pid: int = 0, status: str = "creating") -> dict[str, object]:
    """The state of a bundle's container, as a runtime tells it to hooks."""
    names = {"id": bundle.name, "bundle": str(bundle)}
    return {"ociVersion": "1.0.2", "pid": pid, "status": status, **names}


def processes_of(node: Node) -> list[str]:
    """The command lines of processes that have this node's folder in their environment or arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes()
            if os.fsencode(node.folder) in words + (entry / "environ").read_bytes():
                found.append(words.replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # no process, or one that has ended meanwhile
    return found


@pytest.fixture
def node(installed: Path) -> Iterator[Node]:
    """A node without devices; `node.sim(TOPOLOGY)` gives it some."""
    found = Node(installed, Path(tempfile.mkdtemp(prefix="xpu-t-", dir="/run")))
    yield found
    found.close()
    with open("/proc/self/mounts") as mounts:
        assert [line for line in mounts if str(found.folder) in line] == []
    assert list(CGROUPS.glob(f"*/{found.folder.name}-*")) == []
    assert processes_of(found) == []


@pytest.fixture
def copy(node: Node) -> Path:
    """An installation of the test's own, which the node uses."""
    prefix = node.folder / "prefix"
    shutil.copytree(node.prefix, prefix, symlinks=True)
    node.use(prefix)
    return prefix


@pytest.fixture(scope="session")
def image_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root folder of an image with a C library and cuda-probe, and without ldconfig."""
    probe = REPOSITORY / "build" / "probe" / "cuda-probe"
    folder = tmp_path_factory.mktemp("image")
    image.make(str(folder), [str(probe)])
    return folder


@pytest.fixture
def bundles(node: Node, image_root: Path, base_spec: dict[str, Any]) -> Bundles:
    """Makes a bundle of the image: `bundles("XPU_MEM=4G", args=["nvidia-smi"], change=edit)`."""
    number = 0

    def make(
        *env: str, args: list[str] | None = None, change: Callable[[dict[str, Any]], object] | None = None
    ) -> Path:
        nonlocal number
        number += 1
        folder = node.folder / f"{node.folder.name}-{number}"
        copy_root(image_root, folder / "rootfs")
        spec = json.loads(json.dumps(base_spec))
        spec["process"].update(args=args or ["true"], terminal=False, env=["PATH=/bin:/usr/bin", *env])
        spec["root"] = {"path": "rootfs", "readonly": False}
        spec["linux"]["cgroupsPath"] = f"/{folder.name}"
        if change is not None:
            change(spec)
        (folder / "config.json").write_text(json.dumps(spec))
        return folder

    return make


def edit_spec(bundle: Path, change: Callable[[dict[str, Any]], object], **form: Any) -> None:
    """Edits the spec of a bundle, and writes it in the `form` for json.dumps."""
    config = bundle / "config.json"
    spec = json.loads(config.read_text())
    change(spec)
    config.write_text(json.dumps(spec, **form))


@pytest.fixture(params=["hook", "spec"])
def any_mode(node: Node, request: pytest.FixtureRequest) -> str:
    """The mode of starts on the node; a test that uses it runs once in each, and brings up the devices."""
    chosen: str = request.param
    node.configure(f"mode: {chosen}")
    return chosen


@pytest.fixture
def mode(node: Node, any_mode: str) -> str:
    """The mode of starts on the node, which has a T4."""
    node.sim("1xT4")
    return any_mode


@pytest.fixture
def driver(node: Node, any_mode: str) -> Path:
    """The folder of the libraries of a driver that leaves limits to the interposers."""
    node.sim("1xT4-R580")
    (library,) = node.run_dir.rglob("libcuda.so.5*")
    return library.parent


#: A /dev of the commands' own, in which /dev/log is the test's.
_DEV = """mkdir {0}/dev; mount -t tmpfs none {0}/dev; cp -a /dev/null /dev/zero /dev/urandom /dev/tty {0}/dev
ln -s {0}/log {0}/dev/log; mount --move {0}/dev /dev"""


@pytest.fixture
def system_log(node: Node) -> Iterator[socket.socket]:
    """The socket of a syslog daemon, for the node's commands."""
    daemon = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    daemon.bind(str(node.folder / "log"))
    daemon.settimeout(30)
    with daemon, node.own_mounts(_DEV.format(node.folder)):
        yield daemon
