"""The driver's report of a container's process: its memory beside the account, its pid, its utilisation.

A fault of ours: a call's allocation is not in the container's account when the call returns, NVML in the
container shows another process or not this one, or the driver reports more than the slice. The rest is
reported and not judged: the delay of the driver's figure after a call, the pids that it gives inside and
outside of a PID namespace, and the number and delay of its samples of utilisation. Accounting mode is read,
never set.

reported.py watches on the host. `reported.py inside` is the process in the container, which prints what it
does and when.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import places
from nvml import NOT_FOUND, Nvml, Sample
from record import Record, add_options

STEP = 512 << 20
#: Blocks of 512 MiB, with time between them for the driver's figure to move.
STEPS, STEP_S = 5, 0.5
BUSY_S = 4.0
POLL_S, UTILISATION_S = 0.02, 0.1
MIB = 1 << 20


# ---- in the container ----


def inside(busy: float) -> None:
    import card
    import kernels
    import nvml

    cuda = card.Cuda()
    real = nvml.in_slice(cuda.uuid())
    ours = nvml.Nvml("libnvidia-ml.so.1", cuda.uuid())

    def used() -> int:
        free, total = cuda.memory()
        return total - free

    def step(name: str, change: int, call: Callable[[], object]) -> None:
        account, before = used(), time.monotonic()
        call()
        print("step", name, before, time.monotonic(), change, account, used())

    print("pid", os.getpid(), card.limit())
    for name, asked in (("real", real), ("ours", ours)):
        listed = asked.processes()
        words = [f"{pid}={used}" for pid, used in (listed or {}).items()]
        print("lists", name, *(words if listed is not None else [f"error={asked.status}"]))
    held: list[int] = []

    def take() -> None:
        held.append(cuda.plain(STEP))

    def give() -> None:
        cuda.free_plain(held.pop())

    for name, change, call in (("alloc", STEP, take), ("free", -STEP, give)):
        for _ in range(STEPS):
            time.sleep(STEP_S)
            step(name, change, call)
    time.sleep(STEP_S)
    load, until = kernels.Kernels(cuda, 500), time.monotonic() + busy
    print("busy", time.time())
    while time.monotonic() < until:
        for _ in range(20):
            load.launch()
        cuda.must("cuCtxSynchronize")
    print("idle", time.time())


# ---- on the host ----


@dataclass(frozen=True)
class Step:
    """A call: its begin and return, the bytes that it took, and the account before and after."""

    name: str
    before: float
    after: float
    change: int
    account_before: int
    account_after: int


class Watch:
    """A context manager: threads ask the driver, and keep its answers with their times."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml, self._over = nvml, threading.Event()
        #: The time of the driver's answer (CLOCK_MONOTONIC), and bytes by pid.
        self.memory: list[tuple[float, dict[int, int | None]]] = []
        #: The time of the question (us since 1970), and the samples that came.
        self.utilisation: list[tuple[float, list[Sample]]] = []
        self.errors: dict[str, int] = {}
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._processes, self._use)]

    def _processes(self) -> None:
        while not self._over.wait(POLL_S):
            found = self._nvml.processes()
            if found is None:
                self.errors["processes"] = self._nvml.status
            else:
                self.memory.append((time.monotonic(), found))

    def _use(self) -> None:
        since = int(time.time() * 1e6)
        while not self._over.wait(UTILISATION_S):
            found, now = self._nvml.utilisation(since), time.time() * 1e6
            if found is None and self._nvml.status != NOT_FOUND:
                self.errors["utilisation"] = self._nvml.status
            self.utilisation.append((now, found or []))
            since = max([since, *(each.at for each in found or [])])

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def of(self, pid: int) -> list[tuple[float, int]]:
        return [(at, used) for at, found in self.memory if (used := found.get(pid)) is not None]


def lags(steps: Sequence[Step], seen: Sequence[tuple[float, int]]) -> list[float | None]:
    """Seconds from each call's return until the driver's figure had moved by most of it; None: not before the
    next step. 0 if it moved during the call."""
    found: list[float | None] = []
    for step in steps:
        old = [used for at, used in seen if at < step.before]
        moved = [
            at
            for at, used in seen
            if step.before <= at < step.after + STEP_S
            and old
            and (used - old[-1]) * (1 if step.change > 0 else -1) > STEP * 3 // 4
        ]
        found.append(max(0.0, moved[0] - step.after) if moved else None)
    return found


class Report:
    def __init__(self, record: Record, lines: Sequence[str], host_pid: int) -> None:
        self._record, self._host_pid = record, host_pid
        words = [line.split() for line in lines]
        self._all = {word[0]: word[1:] for word in words if word}
        self._lists = {word[1]: word[2:] for word in words if word[:1] == ["lists"]}
        self._steps = [
            Step(word[1], float(word[2]), float(word[3]), *map(int, word[4:7]))
            for word in words
            if word[:1] == ["step"] and len(word) == 7
        ]

    def pids(self, outside: Sequence[int], where: str) -> None:
        own, record = self._all["pid"][0], self._record
        record.value(f"pids, {where}", f"{own} inside, {self._host_pid} on the host")
        for name, title in (("real", "the driver's NVML inside"), ("ours", "NVML as the container has it")):
            record.value(f"{title}, {where}", ", ".join(self._lists.get(name, [])) or "lists no process")
        record.value(f"the driver's NVML on the host, {where}", ", ".join(map(str, outside)) or "lists none")
        listed = [word.split("=")[0] for word in self._lists.get("ours", [])]
        record.check(
            listed == [own], f"NVML in the container lists its own process alone, by its pid, {where}"
        )

    def memory(self, watch: Watch, accounts: Sequence[tuple[float, int]]) -> None:
        record, seen = self._record, watch.of(self._host_pid)
        limit = int(self._all["pid"][1])
        account = [each.account_after - each.account_before - each.change for each in self._steps]
        record.check(
            len(self._steps) == 2 * STEPS and max(map(abs, account)) <= 2 * MIB,
            f"the account moves with each of {len(self._steps)} calls by the same amount",
        )
        if not seen:
            record.value("the driver's figure of this process", f"none on the host, errors {watch.errors}")
            return
        for name in ("alloc", "free"):
            steps = [step for step in self._steps if step.name == name]
            found = lags(steps, seen)
            late = [each * 1e3 for each in found if each is not None]
            text = f"{statistics.median(late):.0f} ms (at most {max(late):.0f})" if late else "none seen"
            record.value(
                f"the driver's figure after {name}", f"{text}, {found.count(None)} not seen", ms=late
            )
        calls = statistics.median(step.after - step.before for step in self._steps)
        record.value(
            "a call takes", f"{calls * 1e3:.3f} ms; the driver is asked every {_interval(seen):.0f} ms"
        )
        settled = [
            (step.account_after - before[-1]) / MIB
            for step in self._steps
            if (before := [used for at, used in seen if step.after + 0.3 < at < step.after + STEP_S])
        ]
        if settled:
            record.value(
                "account less the driver's figure, settled", f"{min(settled):+.1f} to {max(settled):+.1f} MiB"
            )
        beside = [
            (used - near[-1]) / MIB for at, used in accounts if (near := [u for t, u in seen if t < at])
        ]
        if beside:
            record.value(
                "xpu ps less the driver's figure", f"{min(beside):+.1f} to {max(beside):+.1f} MiB, moving"
            )
        most = max(used for _, used in seen)
        what = f"the driver reports {most / MIB:.0f} MiB at most, of a slice of {limit / MIB:.0f}"
        record.check(most <= limit + 2 * MIB, what)

    def utilisation(self, watch: Watch) -> None:
        begin, end = (float(self._all[word][0]) * 1e6 for word in ("busy", "idle"))
        asked = [(now, found) for now, found in watch.utilisation if begin + 1e6 < now < end]
        own = [(now, each) for now, found in asked for each in found if each.pid == self._host_pid]
        empty = sum(1 for _, found in asked if not found)
        self._record.value(
            "utilisation while busy",
            f"{len(own)} samples in {(end - begin) / 1e6 - 1:.1f} s, {empty} of {len(asked)} answers empty, "
            f"errors {watch.errors.get('utilisation', 'none')}",
        )
        if len(own) < 2:
            return
        stamps = sorted({each.at for _, each in own})
        gaps = [(later - one) / 1e3 for one, later in itertools.pairwise(stamps)]
        late = [(now - each.at) / 1e3 for now, each in own]
        sm = [each.sm for _, each in own]
        self._record.value(
            "samples",
            f"every {statistics.median(gaps):.0f} ms (at most {max(gaps):.0f}), "
            f"{statistics.median(late):.0f} ms old (at most {max(late):.0f}), "
            f"{min(sm)} to {max(sm)} % of the SMs, mean {statistics.mean(sm):.1f}",
            gaps=gaps,
            late=late,
        )


def _interval(seen: Sequence[tuple[float, int]]) -> float:
    times = [at for at, _ in seen]
    gaps = [later - one for one, later in itertools.pairwise(times)]
    return statistics.median(gaps) * 1e3 if gaps else 0.0


@dataclass
class Followed:
    """The process in the container: its lines, its pid on the host, its account by `xpu ps` (times and
    bytes), and the last figures of the driver's accounting."""

    lines: Sequence[str]
    pid: int
    accounts: list[tuple[float, int]]
    accounting: object = None


def follow(place: places.Place, nvml: Nvml, busy: float, timeout: float) -> Followed:
    words = [place.machine.python, str(places.HERE / "reported.py"), "inside", str(busy)]
    child, until = place.start(words), time.monotonic() + timeout
    found = Followed((), child.pid, [])
    while (status := child.poll()) is None and time.monotonic() < until:
        found.accounts.append((time.monotonic(), place.used_memory()))
        found.accounting = nvml.accounted(child.pid) or found.accounting
        time.sleep(POLL_S)
    if status:
        raise places.PlaceError(f"the process in the container ended with {status}: {child.output()[-300:]}")
    if status is None:
        raise places.PlaceError(f"the process in the container does not end: {child.output()[-300:]}")
    found.lines = child.output().splitlines()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.add_argument("--mem", default="4G", help="memory of the slice (4G)")
    parser.add_argument("--busy", type=float, default=BUSY_S, help="seconds of kernels (4)")
    options = parser.parse_args()
    options.busy = 2.0 if options.small else options.busy
    with Record(options) as record:
        machine = record.machine()
        nvml = Nvml(machine.driver.path_of("libnvidia-ml.so.1"), machine.query("uuid")[0])
        for host_pids, where in ((False, "pid namespace"), (True, "no pid namespace")):
            made = {"machine": machine, "memory": options.mem, "host_pids": host_pids}
            with places.opened("container", **made) as place, Watch(nvml) as watch:
                found = follow(place, nvml, 0 if host_pids else options.busy, 60 + options.busy)
            report = Report(record, found.lines, found.pid)
            report.pids(sorted({each for _, found in watch.memory for each in found}), where)
            if not host_pids:
                report.memory(watch, found.accounts)
                report.utilisation(watch)
                mode = nvml.accounting()
                said = f"error {nvml.status}" if mode is None else "off, and left so"
                record.value("accounting mode", f"on, {found.accounting}" if mode else said)


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        inside(float(sys.argv[2]))
    else:
        main()
