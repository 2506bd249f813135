"""The cost of the interposers to a program: calls, allocations, loading; with them and without.

interposers.py PREFIX [RUNS]. It measures over a simulated card, and over a libcuda in which every call takes
a few nanoseconds (native/constant_cuda.c). The simulated driver's calls are round trips to a daemon, in whose
spread a microsecond is lost. It prints medians of interleaved runs. Needs root. No test fails by the bounds.
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

import timing  # noqa: E402

import sandbox  # noqa: E402

BUILD = os.path.join(REPOSITORY, "build")
PROGRAM = os.path.join(BUILD, "bench", "time-calls")
GIB = 1 << 30
LIMIT = 12 * GIB  # of the sandboxes: it is set and never reached
CONSTANT_UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"

#: Calls of time-calls: a name, and the nanoseconds that each may take more.
CALLS = {
    "init": ("cuInit, once more", 5),
    "total": ("cuDeviceTotalMem", 5),
    "device": ("cuCtxGetDevice (not interposed)", 5),
    "interposed-name": ("cuGetProcAddress, interposed", None),
    "other-name": ("cuGetProcAddress, not interposed", None),
    "pair": ("cuMemAlloc + cuMemFree", 1000),
    "info": ("cuMemGetInfo", None),
    "nvml-info": ("nvmlDeviceGetMemoryInfo", None),
}
MANY, PAIRS = 64, 50000
#: The number of launching threads in one process, and of launching processes.
THREADS, LAUNCHING, LAUNCHES = (1, 8, 64), 32, 400000
#: A cap, in percent of the device's time, that launches of no length do not reach.
CAP = 90
STARTING = 300
STEPS = ("dlopen", "cuInit", "the first context")
MS = 1e6


class Measurement(NamedTuple):
    """A row of the table: medians in nanoseconds, and the bound of the interposers' addition (None: no
    bound)."""

    name: str
    without: float
    with_interposers: float
    bound: float | None = None

    @property
    def added(self) -> float:
        return self.with_interposers - self.without


def both(run: Callable[[bool], None], runs: int) -> None:
    """Runs it with and without the interposers, alternating."""
    timing.interleave({str(interposed): lambda w=interposed: run(w) for interposed in (False, True)}, runs)


class Samples:
    """Values by name, with and without the interposers. A first round does not count."""

    def __init__(self) -> None:
        self.values: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}

    def add(self, interposed: bool, name: str, value: float) -> None:
        self.values[interposed].setdefault(name, []).append(value)

    def measurement(self, name: str, label: str, bound: float | None = None) -> Measurement:
        without, with_interposers = (statistics.median(self.values[w][name][1:]) for w in (False, True))
        return Measurement(label, without, with_interposers, bound)


def time_calls(interposed: bool, *words: str) -> str:
    done = subprocess.run(
        [PROGRAM, *words], env=sandbox.environ(interposed=interposed), stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"time-calls {' '.join(words)} ended with {done.returncode}")
    return done.stdout


def together(interposed: bool, count: int, *words: str) -> tuple[int, list[list[int]]]:
    """Starts `count` processes at one moment. Returns that moment, and the numbers that each printed."""
    go_out, go_in = os.pipe()
    started = [
        subprocess.Popen(
            [PROGRAM, "--wait", *words],
            env=sandbox.environ(interposed=interposed),
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


# ---- measurements in a sandbox ----


def of_calls(runs: int) -> list[Measurement]:
    samples = Samples()

    def run(interposed: bool) -> None:
        for line in time_calls(interposed, "calls", *CALLS).splitlines():
            word, value = line.split()
            samples.add(interposed, word, float(value))

    both(run, runs)
    return [samples.measurement(word, name, bound) for word, (name, bound) in CALLS.items()]


def of_many(runs: int, pairs: int) -> list[Measurement]:
    """The time of a pair in each of many processes, without the wait for a processor."""
    samples = Samples()

    def run(interposed: bool) -> None:
        _, printed = together(interposed, MANY, "pairs", str(pairs))
        took = [max(0, elapsed - in_line) / pairs for elapsed, in_line in printed]
        samples.add(interposed, "mean", statistics.mean(took))

    both(run, runs)
    return [samples.measurement("mean", f"the same in each of {MANY} processes at once", 1000)]


def of_launches(runs: int, kind: str) -> list[Measurement]:
    """The processor time of a launch that is not held back."""
    samples = Samples()

    def run(interposed: bool) -> None:
        for threads in THREADS:
            took, _ = time_calls(interposed, "launches", str(threads), str(LAUNCHES // threads)).split()
            samples.add(interposed, str(threads), int(took) / LAUNCHES)
        _, printed = together(interposed, LAUNCHING, "launches", "1", str(LAUNCHES // LAUNCHING))
        samples.add(interposed, "processes", sum(took for took, _ in printed) / LAUNCHES)

    both(run, runs)
    where = {str(threads): f"in each of {threads} threads" for threads in THREADS}
    where["processes"] = f"in each of {LAUNCHING} processes"
    return [samples.measurement(name, f"a launch, {kind}, {text}", 100) for name, text in where.items()]


def of_start(runs: int) -> list[Measurement]:
    samples = Samples()

    def run(interposed: bool) -> None:
        *steps, _, _ = (int(word) for word in time_calls(interposed, "start").split())
        for name, value in zip(STEPS, steps, strict=True):
            samples.add(interposed, name, value)
        samples.add(interposed, "all", sum(steps))

    both(run, runs)
    return [
        *(samples.measurement(name, name) for name in STEPS),
        samples.measurement("all", "a process's start, all three", 2 * MS),
    ]


def of_many_starts(runs: int) -> list[Measurement]:
    """The time from the common start until each process has its context, and the part of it without the wait
    for a processor. On a machine with few or busy processors the second says more."""
    samples = Samples()

    def run(interposed: bool) -> None:
        begin, printed = together(interposed, STARTING, "start")
        for name, values in {
            "all": [ended - begin for _, _, _, ended, _ in printed],
            "own": [max(0, sum(steps) - in_line) for *steps, _, in_line in printed],
        }.items():
            samples.add(interposed, f"{name} median", statistics.median(values))
            samples.add(interposed, f"{name} p99", sorted(values)[len(values) * 99 // 100])

    both(run, runs)
    return [
        samples.measurement("all median", f"{STARTING} starts at once: median"),
        samples.measurement("all p99", f"{STARTING} starts at once: p99", 50 * MS),
        samples.measurement("own median", "  not in line for a processor: median"),
        samples.measurement("own p99", "  not in line for a processor: p99", 50 * MS),
    ]


def inside(runs: int, pairs: int, launches: str) -> None:
    """Runs in a sandbox: prints its measurements as JSON. `launches`: only launches, of this kind."""
    few = max(2, runs // 3)
    if launches:
        print(json.dumps(of_launches(few, launches)))
        return
    groups = [of_calls(runs), of_many(few, pairs), of_start(3 * runs), of_many_starts(few)]
    print(json.dumps([measurement for group in groups for measurement in group]))


# ---- sandboxes ----


def measure(
    real: str, uuid: str, arguments: list[str], simulation: str = "", *, cores: int | None = None
) -> list[Measurement]:
    """Measurements over the real libraries in the folder `real`, with a cap on cores in percent."""
    from xpu_runtime.limits import pages

    with tempfile.TemporaryDirectory(prefix="xpu-b-") as folder:
        pages.create(folder, "bench", (pages.Entry(uuid, LIMIT, cores=cores),))
        command = sandbox.command(
            [sys.executable, os.path.realpath(__file__), "--inside", *arguments],
            pages=folder,
            real=real,
            interposers=sandbox.build(),
            simulation=simulation,
        )
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return [Measurement(*measurement) for measurement in json.loads(done.stdout)]


def over_simulation(prefix: str, arguments: list[str]) -> list[Measurement]:
    """Measures over a card that is started for this, with a driver without memory limits of its own."""
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


def table(title: str, measurements: list[Measurement]) -> str:
    width = max(len(title), *(len(measurement.name) for measurement in measurements))
    lines = [f"{title:{width}}  {'without':>10}  {'with':>10}  {'added':>10}  {'bound':>10}  {'ratio':>6}"]
    for measurement in measurements:
        bound, ratio = (
            "",
            measurement.with_interposers / measurement.without if measurement.without else float("inf"),
        )
        verdict = ""
        if measurement.bound is not None:
            bound = in_words(measurement.bound)
            verdict = "  OVER" if measurement.added > measurement.bound else ""
        amounts = "  ".join(
            f"{in_words(v):>10}"
            for v in (measurement.without, measurement.with_interposers, measurement.added)
        )
        lines.append(f"{measurement.name:{width}}  {amounts}  {bound:>10}  {ratio:5.2f}x{verdict}")
    return "\n".join(lines)


def main(prefix: str, runs: int) -> None:
    subprocess.run(["make", "-s", "-C", os.path.join(HERE, "native"), f"OUT={BUILD}/bench"], check=True)
    few, load = str(max(2, runs // 3)), timing.busy()
    real, counts = f"{BUILD}/bench/constant", [str(runs), str(PAIRS)]
    constant = measure(real, CONSTANT_UUID, [*counts, ""])
    constant += measure(real, CONSTANT_UUID, [*counts, "no cap"])
    constant += measure(real, CONSTANT_UUID, [*counts, f"a cap of {CAP} %"], cores=CAP)
    print(table("over a libcuda that costs nothing", constant), end="\n\n")
    # No bound is judged here: the daemon in the place of the driver has one thread, and all processes queue
    # for it.
    over = over_simulation(prefix, [few, str(PAIRS // 100), ""])
    simulated = [measurement._replace(bound=None) for measurement in over]
    print(table("over a simulated card", simulated), end="\n\n")
    print(load)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9)
