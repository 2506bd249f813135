"""Whether `xpu agent` grows: its memory, descriptors and processes over an hour of starts and stops.

soak.py PREFIX [--minutes N]. Containers of a real runc with a slice of a simulated card are created, started
and deleted one after the other; every tenth is refused. Each start goes by the agent's start workers, and the
agent's metrics are read meanwhile. A line a minute gives the totals of the agent's processes and of the run
folder. Exit status 1 if the end is worse than the start: more than a tenth more memory than after the second
minute, or more descriptors, processes, slices' folders or files. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import math
import os
import socket
import sys
import time
from pathlib import Path

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "packaging"), os.path.join(HERE, "..", "src"), HERE]

from container_start import Bench  # noqa: E402

from xpu_runtime.value import Value  # noqa: E402

#: The start of the comparison: until then caches fill, and start workers are replaced for the first time.
SETTLED_MINUTES = 2
#: One of that many containers asks for more than the card has.
REFUSED = 10


class Sample(Value):
    """The totals of the agent's processes, and of the run folder."""

    pss: int
    """Memory in bytes, shared pages in parts (/proc/PID/smaps_rollup)."""
    descriptors: int
    processes: int
    files: int
    """In the run folder and below, with the slices' folders."""

    def __str__(self) -> str:
        return (
            f"{self.pss / 1e6:6.1f} MB, {self.processes} processes, {self.descriptors} descriptors, "
            f"{self.files} files"
        )

    def worse_than(self, other: Sample) -> bool:
        return (
            self.pss > other.pss * 1.1
            or self.descriptors > other.descriptors
            or self.processes > other.processes
            or self.files > other.files
        )


def processes_of(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def take(bench: Bench) -> Sample:
    assert bench.agent is not None
    pss = descriptors = alive = 0
    for pid in processes_of(bench.agent.pid):
        with contextlib.suppress(OSError):  # a worker's call may just end
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            pss += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
            alive += 1
    run = os.path.join(bench.folder, "run")
    files = sum(len(names) + len(folders) for _, folders, names in os.walk(run))
    return Sample(pss, descriptors, alive, files)


def lowest(bench: Bench, seconds: float) -> Sample:
    """The least of some samples: a reader of the metrics or a running call is no growth."""
    looks = []
    for _ in range(5):
        time.sleep(seconds / 5)
        looks.append(take(bench))
    return Sample(
        min(look.pss for look in looks),
        min(look.descriptors for look in looks),
        min(look.processes for look in looks),
        min(look.files for look in looks),
    )


def read_metrics(bench: Bench) -> int:
    """The bytes of a page of metrics, read on the agent's socket."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(os.path.join(bench.folder, "run", "metrics.sock"))
        connection.request("GET", "/metrics")
        return len(connection.getresponse().read())
    finally:
        connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks whether the agent grows over many starts.")
    parser.add_argument("prefix", metavar="PREFIX", help="where the product is installed")
    parser.add_argument("--minutes", type=float, default=60)
    options = parser.parse_args()
    bench = Bench(options.prefix, "1xT4")
    with contextlib.ExitStack() as stack:
        stack.callback(bench.end)
        bench.start_agent()
        granted = bench.cycle(bench.runtime, bench.bundle("granted", "XPU_MEM=1G", "XPU_CORES=30"))
        refused = bench.cycle(bench.runtime, bench.bundle("refused", "XPU_MEM=900G"))
        began, starts, minute = time.monotonic(), 0, 0
        first = last = lowest(bench, 1)
        print(f"before the first start: {last}", flush=True)
        while minute < options.minutes:
            minute += 1
            until = began + 60 * min(minute, options.minutes)
            while time.monotonic() < until:
                starts += 1
                if starts % REFUSED:
                    granted()
                    continue
                with contextlib.suppress(SystemExit):  # the bench reports a failed command so
                    refused()
                    raise AssertionError("a container that asks for more than there is was started")
                bench.call(bench.runtime, "delete", "--force", f"{os.path.basename(bench.folder)}-refused")
                read_metrics(bench)
            last = lowest(bench, 2)
            if minute == min(SETTLED_MINUTES, math.ceil(options.minutes)):
                first = last
            print(f"{minute:3} min, {starts:6} starts: {last}", flush=True)
    worse = last.worse_than(first)
    print("it has grown" if worse else "as at the start")
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
