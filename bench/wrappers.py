"""What the wrapper libraries cost a program: calls, allocations, loading; with them and without.

wrappers.py PREFIX [RUNS]. Over a simulated card, and over a libcuda in which every call takes a few
nanoseconds (native/constant_cuda.c): the simulated driver's calls are round trips to a daemon, in whose
spread a microsecond is lost. Medians of interleaved runs; needs root. No test fails by the bounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

HERE = os.path.dirname(os.path.realpath(__file__))
REPOSITORY = os.path.dirname(HERE)
sys.path[:0] = [os.path.join(REPOSITORY, "packaging"), os.path.join(REPOSITORY, "src"), HERE]

import cell  # noqa: E402
import timing  # noqa: E402

BUILD = os.path.join(REPOSITORY, "build")
PROGRAM = os.path.join(BUILD, "bench", "time-calls")
GIB = 1 << 30
LIMIT = 12 * GIB  # of the cells: it is there, but never reached
CONSTANT_UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"

#: Calls of time-calls: what they are, and how much more they may take, in nanoseconds.
CALLS = {
    "init": ("cuInit, once more", 5),
    "total": ("cuDeviceTotalMem", 5),
    "device": ("cuCtxGetDevice (not wrapped)", 5),
    "wrapped-name": ("cuGetProcAddress of what is wrapped", None),
    "other-name": ("cuGetProcAddress of what is not", None),
    "pair": ("cuMemAlloc + cuMemFree", 1000),
    "info": ("cuMemGetInfo", None),
    "nvml-info": ("nvmlDeviceGetMemoryInfo", None),
}
MANY, PAIRS = 64, 50000
STARTING = 300
STEPS = ("dlopen", "cuInit", "the first context")
MS = 1e6


class Figure(NamedTuple):
    """A row of the table: medians in nanoseconds, and how much more the wrappers may take (None: unsaid)."""

    name: str
    without: float
    with_wrappers: float
    bound: float | None = None

    @property
    def added(self) -> float:
        return self.with_wrappers - self.without


def both(run: Callable[[bool], None], runs: int) -> None:
    """Runs it with and without the wrappers, alternating."""
    timing.interleave({str(wrapped): lambda w=wrapped: run(w) for wrapped in (False, True)}, runs)


class Samples:
    """Values by name, for each of with and without; what a first round leaves is not counted."""

    def __init__(self) -> None:
        self.values: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}

    def add(self, wrapped: bool, name: str, value: float) -> None:
        self.values[wrapped].setdefault(name, []).append(value)

    def figure(self, name: str, label: str, bound: float | None = None) -> Figure:
        without, with_wrappers = (statistics.median(self.values[w][name][1:]) for w in (False, True))
        return Figure(label, without, with_wrappers, bound)


def time_calls(wrapped: bool, *words: str) -> str:
    done = subprocess.run(
        [PROGRAM, *words], env=cell.environ(wrapped=wrapped), stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"time-calls {' '.join(words)} ended with {done.returncode}")
    return done.stdout


def together(wrapped: bool, count: int, *words: str) -> tuple[int, list[list[int]]]:
    """`count` processes that begin at one moment: that moment, and the numbers that each printed."""
    go_out, go_in = os.pipe()
    started = [
        subprocess.Popen(
            [PROGRAM, "--wait", *words],
            env=cell.environ(wrapped=wrapped),
            stdin=go_out,
            stdout=subprocess.PIPE,
        )
        for _ in range(count)
    ]
    for one in started:
        assert one.stdout
        if one.stdout.readline() != b"ready\n":
            raise SystemExit("time-calls did not start")
    begin = time.monotonic_ns()
    os.close(go_in)
    os.close(go_out)
    printed = [[int(word) for word in one.communicate()[0].split()] for one in started]
    if any(one.returncode for one in started):
        raise SystemExit(f"time-calls {' '.join(words)} failed in one of {count} processes")
    return begin, printed


# ---- what is measured in a cell ----


def of_calls(runs: int) -> list[Figure]:
    samples = Samples()

    def run(wrapped: bool) -> None:
        for line in time_calls(wrapped, "calls", *CALLS).splitlines():
            word, value = line.split()
            samples.add(wrapped, word, float(value))

    both(run, runs)
    return [samples.figure(word, name, bound) for word, (name, bound) in CALLS.items()]


def of_many(runs: int, pairs: int) -> list[Figure]:
    """What a pair takes each of many processes, without what they stand in line for a processor."""
    samples = Samples()

    def run(wrapped: bool) -> None:
        _, printed = together(wrapped, MANY, "pairs", str(pairs))
        took = [max(0, elapsed - in_line) / pairs for elapsed, in_line in printed]
        samples.add(wrapped, "mean", statistics.mean(took))

    both(run, runs)
    return [samples.figure("mean", f"the same in each of {MANY} processes at once", 1000)]


def of_start(runs: int) -> list[Figure]:
    samples = Samples()

    def run(wrapped: bool) -> None:
        *steps, _, _ = (int(word) for word in time_calls(wrapped, "start").split())
        for name, value in zip(STEPS, steps, strict=True):
            samples.add(wrapped, name, value)
        samples.add(wrapped, "all", sum(steps))

    both(run, runs)
    return [
        *(samples.figure(name, name) for name in STEPS),
        samples.figure("all", "a process's start, all three", 2 * MS),
    ]


def of_many_starts(runs: int) -> list[Figure]:
    """From the moment when all may go to the one when each has its context; and the part of it that they did
    not stand in line for a processor, which a machine with few or busy ones says less about."""
    samples = Samples()

    def run(wrapped: bool) -> None:
        begin, printed = together(wrapped, STARTING, "start")
        for name, values in {
            "all": [ended - begin for _, _, _, ended, _ in printed],
            "own": [max(0, sum(steps) - in_line) for *steps, _, in_line in printed],
        }.items():
            samples.add(wrapped, f"{name} median", statistics.median(values))
            samples.add(wrapped, f"{name} p99", sorted(values)[len(values) * 99 // 100])

    both(run, runs)
    return [
        samples.figure("all median", f"{STARTING} starts at once: median"),
        samples.figure("all p99", f"{STARTING} starts at once: p99", 50 * MS),
        samples.figure("own median", "  not in line for a processor: median"),
        samples.figure("own p99", "  not in line for a processor: p99", 50 * MS),
    ]


def inside(runs: int, pairs: int) -> None:
    """In a cell: prints its figures as JSON."""
    few = max(2, runs // 3)
    parts = [of_calls(runs), of_many(few, pairs), of_start(3 * runs), of_many_starts(few)]
    print(json.dumps([figure for part in parts for figure in part]))


# ---- cells ----


def measure(real: str, uuid: str, arguments: list[str], simulation: str = "") -> list[Figure]:
    """Figures over the real libraries in the folder `real`."""
    from xpu_runtime.quota import pages

    with tempfile.TemporaryDirectory(prefix="xpu-b-") as folder:
        pages.create(folder, "bench", (pages.Entry(uuid, LIMIT),))
        command = cell.command(
            [sys.executable, os.path.realpath(__file__), "--inside", *arguments],
            pages=folder,
            real=real,
            wrappers=cell.build(),
            simulation=simulation,
        )
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return [Figure(*figure) for figure in json.loads(done.stdout)]


def over_simulation(prefix: str, arguments: list[str]) -> list[Figure]:
    """Over a card that is brought up for it, on a driver without memory limits of its own."""
    xpu = os.path.join(prefix, "bin", "xpu")
    with tempfile.TemporaryDirectory(prefix="xpu-b-") as folder:
        environ = {**os.environ, "XPU_RUN_DIR": folder, "XPU_CONFIG": os.path.join(folder, "config.yaml")}

        def call(*words: str) -> str:
            done = subprocess.run([xpu, *words], env=environ, check=True, stdout=subprocess.PIPE, text=True)
            return done.stdout

        call("sim", "up", "--force", "--topology", "1xT4-R580")
        try:
            root = os.path.realpath(os.path.join(folder, "sim", "root"))
            (libraries,) = (entry.path for entry in os.scandir(f"{root}/usr/lib") if entry.is_dir())
            uuid = json.loads(call("devices", "--json"))[0]["uuid"]
            return measure(libraries, uuid, arguments, root)
        finally:
            call("sim", "down")


def in_words(nanoseconds: float) -> str:
    amount = abs(nanoseconds)
    if amount >= MS:
        return f"{nanoseconds / MS:.2f} ms"
    return f"{nanoseconds / 1000:.2f} us" if amount >= 1000 else f"{nanoseconds:.1f} ns"


def table(title: str, figures: list[Figure]) -> str:
    width = max(len(title), *(len(figure.name) for figure in figures))
    lines = [f"{title:{width}}  {'without':>10}  {'with':>10}  {'added':>10}  {'bound':>10}  {'ratio':>6}"]
    for figure in figures:
        bound, ratio = "", figure.with_wrappers / figure.without if figure.without else float("inf")
        verdict = ""
        if figure.bound is not None:
            bound = in_words(figure.bound)
            verdict = "  OVER" if figure.added > figure.bound else ""
        amounts = "  ".join(
            f"{in_words(v):>10}" for v in (figure.without, figure.with_wrappers, figure.added)
        )
        lines.append(f"{figure.name:{width}}  {amounts}  {bound:>10}  {ratio:5.2f}x{verdict}")
    return "\n".join(lines)


def main(prefix: str, runs: int) -> None:
    subprocess.run(["make", "-s", "-C", os.path.join(HERE, "native"), f"OUT={BUILD}/bench"], check=True)
    few, load = str(max(2, runs // 3)), timing.busy()
    constant = measure(f"{BUILD}/bench/constant", CONSTANT_UUID, [str(runs), str(PAIRS)])
    print(table("over a libcuda that costs nothing", constant), end="\n\n")
    # No bound is judged here: the daemon that stands for the driver has one thread, in whose queue all wait.
    simulated = [figure._replace(bound=None) for figure in over_simulation(prefix, [few, str(PAIRS // 100)])]
    print(table("over a simulated card", simulated), end="\n\n")
    print(load)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9)
