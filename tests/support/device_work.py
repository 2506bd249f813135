"""Programs that keep devices busy in containers (device_work.c), and the work that they complete."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from . import REPOSITORY
from .sharing_time import until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from integration.conftest import Node

Bundles = Callable[..., Path]

PROGRAM = "/bin/device_work"
#: Seconds of one measurement of completed kernels.
WINDOW = 0.4


@pytest.fixture(scope="session")
def device_work(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, for any driver."""
    libcuda = installed / "lib/xpu-container-runtime/native/sim/libcuda-R535.so"
    source = Path(__file__).with_name("device_work.c")
    program = tmp_path_factory.mktemp("work") / "device_work"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{REPOSITORY / 'native'}", "-pthread"]

    subprocess.run(["cc", *flags, "-o", program, source, libcuda], check=True)
    return program


class Workers:
    """Makes containers that have the program."""

    def __init__(self, node: Node, bundles: Bundles, program: Path) -> None:
        self.node, self._bundles, self._program = node, bundles, program

    def bundle(self, *env: str, args: list[str]) -> Path:
        made = self._bundles(*env, args=args)
        shutil.copy(self._program, made / "rootfs" / PROGRAM[1:])
        return made

    def start(self, *env: str) -> str:
        """A container that only sleeps, for programs that a test executes in it; its id."""
        return self.node.start(self.bundle(*env, args=["sleep", "1000"]))

    def working(self, *env: str, devices: int = 1) -> Worker:
        """A container that keeps its first `devices` busy, and has begun to."""
        return Worker(
            self.node, self.bundle(*env, args=[PROGRAM, "work", str(devices), "/progress"]), devices
        )


@pytest.fixture
def workers(node: Node, bundles: Bundles, device_work: Path) -> Workers:
    return Workers(node, bundles, device_work)


class Worker:
    """A container whose program keeps devices busy."""

    def __init__(self, node: Node, bundle: Path, devices: int) -> None:
        self._node, self._bundle = node, bundle
        self.id = node.start(bundle)
        for device in range(devices):
            self.goes_on(device)

    @property
    def output(self) -> str:
        return (self._bundle / "output").read_text()

    def completed(self, device: int = 0) -> tuple[int, int]:
        """The number of completed kernels of a millisecond, and of memory blocks with the written content."""
        try:
            words = (self._bundle / "rootfs/progress").read_bytes()[16 * device : 16 * device + 16]
        except FileNotFoundError:
            return 0, 0
        kernels, right = struct.unpack("<2Q", words.ljust(16, b"\0"))
        return kernels, right

    def goes_on(self, device: int = 0) -> None:
        """Fails unless the program completes more kernels, and finds its memory unchanged."""
        before = self.completed(device)

        def more() -> bool:
            assert self.output == "", self.output
            return all(now > then for now, then in zip(self.completed(device), before))

        until(more, f"{self.id} completes kernels on device {device}", 20)

    def end(self) -> None:
        """Ends the program, which must report that its memory was always right."""
        assert self._node.oci("kill", self.id, "TERM").returncode == 0
        until(lambda: self.output == "done\n", f"the end of {self.id}: {self.output}")


def shares(workers: Sequence[Worker], seconds: float, devices: Sequence[int] = (0,)) -> list[float]:
    """The share of a device's time in percent that each worker's kernels take during the next `seconds`.

    The shares of the first of `devices` come first.
    """
    begun, before = time.monotonic(), [each.completed(device)[0] for device in devices for each in workers]
    time.sleep(seconds)
    passed = time.monotonic() - begun
    after = [each.completed(device)[0] for device in devices for each in workers]
    return [(now - then) / 10 / passed for now, then in zip(after, before)]


#: Lower and upper bound, in percent.
Bounds = tuple[float, float]


def get(workers: Sequence[Worker], bounds: Sequence[Bounds], devices: Sequence[int] = (0,)) -> None:
    """Fails unless all shares are within bounds in one window; it tries many, because the machine may be
    busy."""
    seen: list[list[float]] = []
    end = time.monotonic() + 30
    while not seen or not all(
        low <= share <= high for share, (low, high) in zip(seen[-1], bounds, strict=True)
    ):
        assert time.monotonic() < end, (bounds, seen)
        seen.append(shares(workers, WINDOW, devices))


class Program:
    """The program, executed in a running container; a context manager."""

    def __init__(self, node: Node, container: str, *words: object, env: Sequence[str] = ()) -> None:
        self._pid_file = node.folder / "program.pid"
        variables = [word for each in env for word in ("--env", each)]
        said = map(str, words)
        command = node.command("exec", "--pid-file", self._pid_file, *variables, container, PROGRAM, *said)
        self._pipes: subprocess.Popen[str] = subprocess.Popen(
            command, env=node.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        assert self._pipes.stdout
        return self._pipes.stdout.readline().rstrip("\n")

    def tell(self) -> None:
        assert self._pipes.stdin
        self._pipes.stdin.write("\n")
        self._pipes.stdin.flush()

    @property
    def pid(self) -> int:
        until(self._pid_file.exists, "the program runs")
        return int(self._pid_file.read_text())

    def ended(self) -> int:
        """Closes its stdin; returns its exit status."""
        self._pipes.communicate(timeout=30)
        return self._pipes.returncode

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: Any) -> None:
        self._pipes.kill()
        self._pipes.communicate()
