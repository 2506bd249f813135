"""Containers that share a card's time, with pages that the test writes; and the agent."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import REPOSITORY
from xpu_runtime.limits import folders, pages
from xpu_runtime.limits.compute import GrantPages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from integration.conftest import Node

Bundles = Callable[..., Path]

#: The offset of the first device's struct xpu_usage_compute, and of `used` in it; `waits` follows.
COMPUTE, USED = 2048, 16
#: Seconds until a decision of the agent must be visible, on a busy machine.
SOON = 10.0


class Container:
    """A container with a cap; the test writes its pages as its programs would."""

    def __init__(
        self, node: Node, bundles: Bundles, cores: int, policy: str, args: list[str] | None = None
    ) -> None:
        sched, _, priority = policy.partition(" ")
        self.id = node.start(
            bundles("XPU_MEM=1G", f"XPU_CORES={cores}", f"XPU_SCHED={sched}", args=args or ["sleep", "1000"])
        )
        (grant,) = [each for each in node.grants() if each.container_id == self.id]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XPU_RUN_DIR", str(node.run_dir))
            self.folder = folders.of(grant)
        if priority:  # not every container may ask for `high`
            with pages.OpenQuota(self.folder) as quota:
                quota.set_policy(0, sched, priority)
        self._pages = GrantPages(self.folder)
        self._usage = os.open(os.path.join(self.folder, pages.USAGE), os.O_RDWR)

    @property
    def round_and_share(self) -> tuple[int, float]:
        """The round and the share in percent, as a program of the container reads them."""
        number, share = self._pages.slices[0].adjusted
        return number, share / 100

    @property
    def share(self) -> float:
        return self.round_and_share[1]

    @property
    def round(self) -> int:
        return self.round_and_share[0]

    def write(self, used: int, waits: int) -> None:
        os.pwrite(self._usage, struct.pack("<2Q", used, waits), COMPUTE + USED)

    @contextmanager
    def waiting(self, used: int = 1_000_000) -> Iterator[None]:
        """Its programs try to launch more than they may: each 5 ms they use `used` ns of the device."""
        total, waits = struct.unpack("<2Q", os.pread(self._usage, 16, COMPUTE + USED))

        def launch() -> None:
            nonlocal total, waits
            total, waits = total + used, waits + 1
            self.write(total, waits)

        with _again_and_again(launch, 0.005):
            yield

    @contextmanager
    def lying(self) -> Iterator[None]:
        """It resets the values that pace it, and claims that it has used nothing."""
        with _again_and_again(lambda: os.pwrite(self._usage, bytes(128), COMPUTE), 0.001):
            yield

    def close(self) -> None:
        os.close(self._usage)
        self._pages.close()


@contextmanager
def _again_and_again(act: Callable[[], object], pause: float) -> Iterator[None]:
    """Calls `act` in a thread of its own, every `pause` seconds."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(pause):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


Make = Callable[..., Container]


@pytest.fixture
def capped(node: Node, bundles: Bundles) -> Iterator[Make]:
    """Starts containers on the one card: `capped(30, "burst low")`."""
    node.sim("1xT4-R580")
    made: list[Container] = []

    def container(cores: int, policy: str = "fixed", **how: Any) -> Container:
        made.append(Container(node, bundles, cores, policy, **how))
        return made[-1]

    yield container
    for each in made:
        each.close()


class Service:
    """`xpu agent`, as systemd runs it."""

    def __init__(self, node: Node) -> None:
        self._log = node.folder / "agent.log"
        self._node = node
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*node.view, node.prefix / "bin" / "xpu", "agent"],
                env=node.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(lambda: " runs\n" in self.log, "the agent runs")

    @property
    def log(self) -> str:
        return self._log.read_text()

    def status(self) -> Any:
        script = "from xpu_runtime.observe.agent_status import ask; import json; print(json.dumps(ask()))"
        lib = self._node.prefix / "lib/xpu-container-runtime/python"
        done = subprocess.run(
            ["python3", "-c", script],
            env={**self._node.environ, "PYTHONPATH": str(lib)},
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(SOON)


@pytest.fixture
def start_agent(node: Node) -> Iterator[Callable[[], Service]]:
    """Starts an agent at each call."""
    from integration.conftest import processes_of

    started: list[Service] = []

    def service() -> Service:
        started.append(Service(node))
        return started[-1]

    yield service
    for each in started:
        if each.process.poll() is None:
            each.end(signal.SIGKILL)
    # The process for metrics is killed with the agent; start workers end when they see that it is gone.
    until(
        lambda: not workers_of(node) and not any(each.endswith("/xpu agent ") for each in processes_of(node)),
        "all has ended",
    )


def workers_of(node: Node) -> list[int]:
    """The processes of the node's start workers; [0] is the one that was started first.

    They are sorted by their start: process numbers start again at the bottom.
    """
    program = os.fsencode(node.prefix / "lib/xpu-container-runtime/worker.py")
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                program in (entry / "cmdline").read_bytes().split(b"\0")
                and os.fsencode(node.run_dir) in (entry / "environ").read_bytes()
            ):
                started = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[19])
                found.append((started, int(entry.name)))
        except OSError:
            continue  # no process, or one that has ended meanwhile
    return [pid for _, pid in sorted(found)]


def children_of(agent: int) -> list[int]:
    """The child processes of an agent or of one of those, without the start workers (another program)."""
    there = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return [int(each) for each in there if b"worker.py" not in Path(f"/proc/{each}/cmdline").read_bytes()]


Serve = Callable[[], Service]


@pytest.fixture(scope="session")
def share_load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that keeps a card busy (bench/share)."""
    folder = tmp_path_factory.mktemp("load")
    load = REPOSITORY / "bench/share/load"
    subprocess.run(["make", "-s", "-C", load, f"OUT={folder}"], check=True)
    return folder / "share-load"


@pytest.fixture
def with_load(bundles: Bundles, share_load: Path) -> Bundles:
    """Like `bundles`; the containers have the program as /load/share-load."""
    mount = {"destination": "/load", "type": "bind", "source": str(share_load.parent), "options": ["bind"]}

    def make(*env: str, args: list[str]) -> Path:
        return bundles(*env, args=args, change=lambda spec: spec["mounts"].append(mount))

    return make


def until(holds: Callable[[], bool], what: str, seconds: float = SOON) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not after {seconds} s: {what}"
        time.sleep(0.005)
