"""`xpu agent`: shares of a device's time between real containers' pages, whatever happens to it.

The containers are real, and what their programs would write into their pages is written by the test, so that
it can also lie; the driver's figures are those of a program that keeps a simulated card busy.
"""

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

from .conftest import Node

Bundles = Callable[..., Path]

#: struct xpu_usage_compute of the first device: its place, and those of `used` and `waits` in it.
COMPUTE, USED = 2048, 16
#: Seconds in which what the agent decides is to be seen, on a machine that does much else.
SOON = 10.0


class Container:
    """A container with a cap, and its pages as its programs would write them."""

    def __init__(
        self, node: Node, bundles: Bundles, cores: int, policy: str, args: list[str] | None = None
    ) -> None:
        sched, _, priority = policy.partition(" ")
        self.id = node.start(bundles("XPU_MEM=1G", f"XPU_CORES={cores}", args=args or ["sleep", "1000"]))
        (grant,) = [each for each in node.grants() if each.container_id == self.id]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XPU_RUN_DIR", str(node.run_dir))
            self.folder = folders.of(grant)
        with pages.OpenQuota(self.folder) as quota:
            quota.set_policy(0, sched, priority or "normal")
        self._pages = GrantPages(self.folder)
        self._usage = os.open(os.path.join(self.folder, pages.USAGE), os.O_RDWR)

    @property
    def round_and_share(self) -> tuple[int, float]:
        """As a program of the container reads it; the share in percent."""
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
    def waiting(self) -> Iterator[None]:
        """Its programs launch more than they may, all the time."""
        stop = threading.Event()

        def work() -> None:
            used, waits = struct.unpack("<2Q", os.pread(self._usage, 16, COMPUTE + USED))
            while not stop.wait(0.005):
                used, waits = used + 1_000_000, waits + 1
                self.write(used, waits)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    @contextmanager
    def lying(self) -> Iterator[None]:
        """Sets back all that it is paced by, and says that it has used nothing."""
        stop = threading.Event()

        def lie() -> None:
            while not stop.wait(0.001):
                os.pwrite(self._usage, bytes(128), COMPUTE)

        thread = threading.Thread(target=lie)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def close(self) -> None:
        os.close(self._usage)
        self._pages.close()


Make = Callable[..., Container]


@pytest.fixture
def make(node: Node, bundles: Bundles) -> Iterator[Make]:
    """Starts containers on the one card: `make(30, "burst low")`."""
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
                [node.prefix / "bin" / "xpu", "agent"],
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
        script = "from xpu_runtime.agent import status; import json; print(json.dumps(status.ask()))"
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
def serve(node: Node) -> Iterator[Callable[[], Service]]:
    """Starts the agent, each time it is called."""
    started: list[Service] = []

    def service() -> Service:
        started.append(Service(node))
        return started[-1]

    yield service
    for each in started:
        if each.process.poll() is None:
            each.end(signal.SIGKILL)


Serve = Callable[[], Service]


def until(holds: Callable[[], bool], what: str, seconds: float = SOON) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not after {seconds} s: {what}"
        time.sleep(0.005)


def test_idle_time_is_lent_and_given_back(make: Make, serve: Serve) -> None:
    owner, guest, bystander = make(50, "burst"), make(30, "burst"), make(20)
    service = serve()
    with guest.waiting():
        until(lambda: guest.share == 100, "the guest has the card")
        assert owner.share == 50  # its first launches find its own cap
        began = time.monotonic()
        with owner.waiting():
            until(lambda: guest.share == 37.5, "the owner has its own again")
            # Rounds are 20 ms apart; the rest is this machine's.
            assert time.monotonic() - began < 1
            until(lambda: owner.share == 62.5, "what nobody wants is for both")
            assert bystander.round_and_share == (0, 0)  # fixed: its cap, whatever others do
        until(lambda: guest.share == 100, "the owner wants nothing any more")
    assert service.end(signal.SIGTERM) == 0
    assert [each.round_and_share for each in (owner, guest, bystander)] == [(0, 0)] * 3


def test_weights_and_priorities(make: Make, serve: Serve, node: Node) -> None:
    one, two, low = make(20, "weight"), make(60, "weight"), make(20, "fixed low")
    serve()
    with one.waiting(), two.waiting():
        until(lambda: (one.share, two.share) == (25, 75), "shares in proportion")
        with low.waiting():
            until(lambda: low.share == 1, "low priority has the floor")
            until(lambda: one.share + two.share == 99, "which the others leave")
            with pages.OpenQuota(low.folder) as quota:
                quota.set_policy(0, "fixed", "high")
            until(lambda: low.share == 20, "a change is seen")
            until(lambda: (one.share, two.share) == (20, 60), "by the others as well")


def test_a_killed_agent_loses_nothing_and_the_next_goes_on(make: Make, serve: Serve) -> None:
    one, two = make(40, "burst"), make(60, "burst")
    service = serve()
    with one.waiting():
        until(lambda: one.share == 100, "it has the card")
        service.end(signal.SIGKILL)
        number = one.round
        assert one.share == 100 and number > 0
        with two.waiting():
            # The number stands still: the container takes its cap from here on, as the pacer's tests show.
            time.sleep(0.3)
            assert one.round == number
            assert pages.quota(one.folder).valid
            serve()
            until(lambda: one.round > number and one.share == 40, "the next agent goes on")


def test_a_second_agent_is_refused_and_changes_nothing(make: Make, serve: Serve, node: Node) -> None:
    one = make(40, "burst")
    service = serve()
    refused = node.xpu("agent", check=False)
    assert refused.returncode == 1
    assert "another agent runs already" in refused.stderr
    with one.waiting():
        until(lambda: one.share == 100, "the first goes on")
    assert service.status()["pid"] == service.process.pid
    service.end(signal.SIGKILL)
    # What the dead one has left is in nobody's way.
    assert serve().status()["who"] == "xpu agent"


def test_containers_come_and_go(make: Make, serve: Serve, node: Node) -> None:
    service = serve()
    assert service.status()["devices"] == []
    one = make(40, "burst")
    with one.waiting():
        until(lambda: one.share == 100, "a new one is seen")
        two = make(60, "burst")
        with two.waiting():
            until(lambda: two.share == 60 and one.share == 40, "and another")
        (device,) = service.status()["devices"]
        assert [each["container_id"] for each in device["slices"]] == [one.id, two.id]
    folder = one.folder
    for each in (one, two):
        node.remove(each.id)
    until(lambda: service.status()["devices"] == [], "both are gone")
    held = [os.readlink(link) for link in Path(f"/proc/{service.process.pid}/fd").iterdir()]
    assert not [path for path in held if folder in path]


def test_a_container_that_cuts_its_page_or_writes_nonsense_disturbs_nobody(make: Make, serve: Serve) -> None:
    vandal, other = make(50, "burst"), make(50, "burst")
    service = serve()
    with other.waiting():
        until(lambda: other.share == 100, "it has the card")
        vandal.write((1 << 64) - 1, (1 << 64) - 1)
        until(lambda: other.share == 50, "that was a sign of wanting")
        os.truncate(os.path.join(vandal.folder, pages.USAGE), 0)
        until(lambda: other.share == 100, "it launches nothing any more")
        assert vandal.share == 50
    assert service.process.poll() is None


@pytest.fixture(scope="session")
def share_load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that keeps a card busy (bench/share)."""
    folder = tmp_path_factory.mktemp("load")
    load = REPOSITORY / "bench/share/load"
    subprocess.run(["make", "-s", "-C", load, f"OUT={folder}"], check=True)
    return folder / "share-load"


def test_a_container_that_lies_in_its_page_is_held_more_strictly(
    make: Make, serve: Serve, node: Node, bundles: Bundles, share_load: Path
) -> None:
    def brought(spec: dict[str, Any]) -> None:
        mount = {
            "destination": "/load",
            "type": "bind",
            "source": str(share_load.parent),
            "options": ["bind"],
        }
        spec["mounts"].append(mount)

    def with_load(*env: str, args: list[str]) -> Path:
        return bundles(*env, args=args, change=brought)

    make(50)  # brings the card up
    command = ["/load/share-load", "async", "kernel=5ms", "seconds=600", "log=/log"]
    liar = Container(node, with_load, 30, "burst", args=command)
    service = serve()
    with liar.lying():
        until(lambda: "is held more strictly" in service.log, "it is found out", 30)
        until(lambda: liar.round > 0 and liar.share == 0, "it is stopped until it is at its cap")
        (device,) = service.status()["devices"]
        (told,) = [each for each in device["slices"] if each["container_id"] == liar.id]
        assert "more than its cap of 30%" in told["held_strictly"]
        assert told["share"] == 0
        number = liar.round
        until(lambda: liar.round > number, "what holds is renewed")
    liar.close()
