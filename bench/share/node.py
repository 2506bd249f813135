"""A node for the loads: a driver root, an image with share-load, and containers by the low-level entry point.

It has the simulated card, or with `real` this machine's own, in a run folder of its own. It uses the product
as an engine does: it tells the runtime to create, start and delete bundles.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import image
from share import runfolder

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "bench"
#: Seconds until an agent that was told to end is killed.
_END_S = 10.0


class NodeError(Exception):
    """A failure, and the failed program's output."""


class Stopped(Exception):
    """The run is to end."""


class Node:
    """A context manager. It begins by removing the leftovers of killed runs, and ends by removing its own.
    Waits on it end with Stopped once `stop` is set."""

    def __init__(
        self,
        prefix: Path,
        topology: str,
        *,
        real: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        self._prefix = prefix
        self._stop = stop or threading.Event()
        self.runtime = prefix / "bin" / "xpu-container-runtime"
        self.xpu = prefix / "bin" / "xpu"
        self.topology = topology
        #: Containers see the node's processes. The peer's law finds its own ones in NVML's report, and a real
        #: card reports the node's pids. A simulated one reports those of the container's namespace.
        self.host_pids = False
        self.real = real
        self.folder = runfolder.make()
        self.environ = runfolder.environment(self.folder)
        # A running simulation's root, to rehearse: bench/gpu/host.py takes the same variable.
        runfolder.prepare(self.folder, os.environ.get("XPU_GPU_ROOT", "") if real else "")
        self._agent: subprocess.Popen[bytes] | None = None
        self._containers: list[Started] = []
        self.calibration: tuple[str, ...] = ()

    def __enter__(self) -> Node:
        try:
            for folder in runfolder.dead():
                runfolder.remove(folder, self._prefix)
                print(f"removed the leftovers of a killed run: {folder}", file=sys.stderr, flush=True)
            image.make(str(self.folder / "image"), [_build()])
            subprocess.run(["runc", "spec"], cwd=self.folder, check=True)
            if not self.real:
                self.call(str(self.xpu), "sim", "up", "--force", "--topology", self.topology)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for container in list(self._containers):
            container.remove()
        if self._agent:
            self._agent.terminate()
            try:
                self._agent.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._agent.kill()
                self._agent.wait()
        runfolder.remove(self.folder, self._prefix)

    def pause(self, seconds: float) -> None:
        """Lets that time pass. Stopped if the run is to end."""
        if self._stop.wait(max(0.0, seconds)):
            raise Stopped

    def call(self, *words: str) -> str:
        """NodeError with the output, if it fails."""
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NodeError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def start_agent(self) -> bool:
        """Starts the agent for burst, weight and priorities. False if this installation has none."""
        if self._agent is None:
            if subprocess.run([self.xpu, "agent", "--help"], capture_output=True, check=False).returncode:
                return False
            with (self.folder / "agent.log").open("wb") as log:
                self._agent = subprocess.Popen(
                    [self.xpu, "agent"], env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        self.check_agent()
        return True

    def check_agent(self) -> None:
        """NodeError if the agent was started and has ended: the results would be those of caps alone."""
        if self._agent is not None and self._agent.poll() is not None:
            raise NodeError("xpu agent has ended: " + (self.folder / "agent.log").read_text().strip())

    def calibrate(self, card: int) -> None:
        """Measures the iterations of a real card's kernel. Nothing else may use the card."""
        with self.start(card, ["/usr/bin/share-load", "calibrate"], {}) as container:
            container.wait(60)
            words = container.output().split()
        if not all("=" in word for word in words) or len(words) != 2:
            raise NodeError(f"share-load calibrate: {container.output().strip()}")
        self.calibration = tuple(word for word in words if not word.endswith("=0"))

    def start(
        self, card: int, words: Sequence[str], environ: Mapping[str, str], shared: Path | None = None
    ) -> Started:
        """A container that sees the one card and, at /share, the folder `shared`."""
        self.pause(0)
        container = Started(self, f"{self.folder.name}-{time.monotonic_ns()}")
        self._containers.append(container)
        container.create({"XPU_VISIBLE_DEVICES": str(card), **environ}, words, shared)
        return container

    def forget(self, container: Started) -> None:
        self._containers.remove(container)


def _build() -> str:
    """share-load. On a machine without make it was put there, built elsewhere. NodeError: it is missing."""
    BUILD.mkdir(parents=True, exist_ok=True)
    program = BUILD / "share-load"
    if shutil.which("make"):
        # One run at a time: another one would copy a program that is half written.
        build = ["flock", str(BUILD / "share-load.lock"), "make", "-s", "-C", str(HERE / "load")]
        subprocess.run([*build, f"OUT={BUILD}"], check=True)
    elif not program.exists():
        raise NodeError(f"{program} is missing, and there is no make to build it: copy it there")
    return str(program)


class Started:
    """A running container, and a context manager that removes it."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._name = name
        self._bundle = node.folder / name
        self._words = [str(node.runtime), "--root", str(node.folder / "state")]

    def create(self, environ: Mapping[str, str], words: Sequence[str], shared: Path | None) -> None:
        self._bundle.mkdir()
        # A root of its own: containers that start together would share the mount points in it.
        shutil.copytree(self._node.folder / "image", self._bundle / "rootfs", symlinks=True)
        spec = json.loads((self._node.folder / "config.json").read_text())
        variables = [f"{name}={value}" for name, value in environ.items()]
        spec["process"].update(terminal=False, args=list(words), env=["PATH=/bin:/usr/bin", *variables])
        spec["root"] = {"path": "rootfs", "readonly": False}
        spec["linux"]["cgroupsPath"] = f"/{self._name}"
        if self._node.host_pids:
            namespaces = spec["linux"]["namespaces"]
            spec["linux"]["namespaces"] = [each for each in namespaces if each["type"] != "pid"]
        if shared:
            mount = {
                "destination": "/share",
                "type": "bind",
                "source": str(shared),
                "options": ["rbind", "rw"],
            }
            spec["mounts"].append(mount)
        (self._bundle / "config.json").write_text(json.dumps(spec))
        with (self._bundle / "output").open("wb") as output:
            done = subprocess.run(
                [*self._words, "create", "--bundle", str(self._bundle), self._name],
                env=self._node.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
        if done.returncode:
            said = self.output().strip()
            self.remove()
            raise NodeError(f"a container with {' '.join(variables)} was not created: {said}")
        self._node.call(*self._words, "start", self._name)

    def output(self) -> str:
        return (self._bundle / "output").read_text(errors="replace")

    def running(self) -> bool:
        state = json.loads(self._node.call(*self._words, "state", self._name))
        return bool(state["status"] == "running")

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.running():
            if time.monotonic() > end:
                raise NodeError(f"a container has not ended after {seconds} s: {self.output().strip()}")
            self._node.pause(0.1)

    def set_cores(self, cores: int) -> None:
        self._node.call(str(self._node.xpu), "set", self._name, "--cores", str(cores))

    def terminate(self) -> None:
        """Ends it as an engine's stop does."""
        self._node.call(*self._words, "kill", self._name, "TERM")

    def remove(self) -> None:
        words = [*self._words, "delete", "--force", self._name]
        runfolder.run_to_its_end(words, self._node.environ)
        shutil.rmtree(self._bundle, ignore_errors=True)
        self._node.forget(self)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
