"""The cost of `xpu agent`: its CPU time, user and system, in percent of one core.

agent.py PREFIX... [--seconds N] [--only TEXT]. Each case is measured for N seconds (10) with each
installation in turn. There are eight simulated cards. The containers are pages alone; one process here writes
them as working programs would. The time of the agent's process that asks the driver counts too. Needs root.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from mmap import mmap
from pathlib import Path

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "src"), HERE]

import timing  # noqa: E402

from xpu_runtime.limits import pages  # noqa: E402

CARDS, SLICES = 8, 64
#: The part of a card that each slice has, in percent.
CAP = 12
#: Seconds between two writes into the pages, as the pacer's threads make them.
STEP_S = 0.005
#: Seconds until an agent has seen the pages and has finished its first work.
SETTLE_S = 2.0


class Page:
    """The usage page of one container with one slice, written as its programs would write it."""

    def __init__(self, folder: Path, number: int, sched: str) -> None:
        folder.mkdir(parents=True)
        uuid = f"GPU-{number % CARDS:08x}-0000-0000-0000-000000000001"
        pages.create(str(folder), f"c{number}", (pages.Entry(uuid, None, cores=CAP, sched=sched),))
        with (folder / pages.USAGE).open("r+b") as file:
            self._map = mmap(file.fileno(), 4096)
        self._words = memoryview(self._map).cast("Q")
        self._at = (pages.COMPUTE_AT + pages.COMPUTE_WORDS[0]) // 8
        self.on, self.until = True, 0.0

    def use(self, ns: int, waits: int) -> None:
        self._words[self._at] += ns
        self._words[self._at + 1] += waits

    def close(self) -> None:
        self._words.release()
        self._map.close()


def idle(page: Page, now: float) -> None:
    """Launches nothing."""


def waiting(page: Page, now: float) -> None:
    """Launches ask for more time than the share."""
    page.use(int(STEP_S * 1e9 / SLICES * CARDS), 1)


def below_its_share(page: Page, now: float) -> None:
    """Half of the cap is used, and no launch waits."""
    page.use(int(STEP_S * 1e9 * CAP / 200), 0)


def bursty(page: Page, now: float) -> None:
    """The same as `waiting`, with pauses of some tenths of a second."""
    if now >= page.until:
        page.on, page.until = not page.on, now + random.uniform(0.1, 0.6)
    if page.on:
        waiting(page, now)


#: Name: the number of containers, their way to share, their load.
CASES: dict[str, tuple[int, str, Callable[[Page, float], None]]] = {
    "no container": (0, "burst", idle),
    "64 idle slices of burst": (SLICES, "burst", idle),
    "8 slices of burst, waiting": (CARDS, "burst", waiting),
    "64 slices of burst, waiting": (SLICES, "burst", waiting),
    "64 slices of weight, below their shares": (SLICES, "weight", below_its_share),
    "64 slices of burst, bursty": (SLICES, "burst", bursty),
}


class Node:
    """The simulated cards, and a run folder."""

    def __init__(self, prefix: str) -> None:
        self.xpu = os.path.join(prefix, "bin", "xpu")
        self.folder = Path(tempfile.mkdtemp(prefix="xpu-b-", dir="/run"))
        self.environ = {
            **os.environ,
            "XPU_RUN_DIR": str(self.folder / "run"),
            "XPU_CONFIG": str(self.folder / "config.yaml"),
        }
        try:
            self.call("sim", "up", "--force", "--topology", f"{CARDS}xA100-80GB")
        except BaseException:
            self.close()
            raise

    def call(self, *words: str) -> None:
        subprocess.run([self.xpu, *words], env=self.environ, check=True, stdout=subprocess.DEVNULL)

    def close(self) -> None:
        subprocess.run([self.xpu, "sim", "down"], env=self.environ, capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def percent_of_a_core(
    node: Node, count: int, sched: str, load: Callable[[Page, float], None], seconds: float
) -> float:
    """Measures while `count` containers have `load`."""
    top = node.folder / "run" / "slices"
    made = [Page(top / f"{number}-1", number, sched) for number in range(count)]
    agent = subprocess.Popen([node.xpu, "agent"], env=node.environ, stderr=subprocess.DEVNULL)
    try:
        drive(made, load, SETTLE_S)
        before, began = cpu_ns(agent.pid), time.monotonic()
        drive(made, load, seconds)
        return 100 * (cpu_ns(agent.pid) - before) / 1e9 / (time.monotonic() - began)
    finally:
        agent.terminate()
        agent.wait()
        for page in made:
            page.close()
        shutil.rmtree(top, ignore_errors=True)


def drive(made: list[Page], load: Callable[[Page, float], None], seconds: float) -> None:
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        for page in made:
            load(page, now)
        time.sleep(STEP_S if made else end - now)


def cpu_ns(pid: int) -> int:
    """The CPU time of the process and its children (Documentation/scheduler/sched-stats.rst:
    /proc/PID/schedstat)."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    each = [Path(f"/proc/{one}/schedstat").read_text().split()[0] for one in (pid, *children)]
    return sum(map(int, each))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the cost of the agent.")
    parser.add_argument("prefixes", metavar="PREFIX", nargs="+", help="where the product is installed")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases with TEXT in their names")
    options = parser.parse_args()
    print(timing.busy())
    nodes: dict[str, Node] = {}
    try:
        for prefix in options.prefixes:
            nodes[prefix] = Node(prefix)
        for name, case in CASES.items():
            if options.only in name:
                found = [percent_of_a_core(node, *case, options.seconds) for node in nodes.values()]
                print(f"{name:42}", *(f"{each:6.3f} %" for each in found), flush=True)
    finally:
        for node in nodes.values():
            node.close()


if __name__ == "__main__":
    main()
