"""A container's work while another container on the same card fails.

The page is docs/concepts/isolation.md.

One container computes and checks its results all the time. In another one a program makes an illegal access,
is killed during its kernels, runs a kernel that never ends, or takes all available memory. A fault of ours,
or a card that isolates less than documented: the first container's work ends or is wrong, a container cannot
be used again afterwards, or the card's memory does not come back.

isolation.py ROLE is the program in a container.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import card
import kernels
import places
from nvml import Nvml
from record import Record, add_options

MIB, READY = 1 << 20, "ready"
#: The cores of the first container, and of the other.
CORES = (50, 20)
#: Seconds until a program is ready, until it has ended, and until a driver has taken its memory back.
START_S, END_S, BACK_S = 30.0, 20.0, 10.0
#: MiB of the card that may be in use afterwards beyond those before.
LEFT = 16
#: Seconds of the first container's work that are watched during each failure.
LOOK_S = 2.0
#: The least work of the first container, in percent of its kernels alone: the other has its turns, too.
LEAST = 40.0


# ---- inside ----


def works() -> None:
    """Works until SIGTERM. About every tenth of a second it prints the number of all its kernels so far."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    load, cuda, units = _kernels(500)
    print(READY, flush=True)
    while not told:
        for _ in range(100):
            load.launch()
        cuda.must("cuCtxSynchronize")
        units += 100
        if not card.is_simulated() and not load.computes():
            card.fail(f"a wrong result after {units} kernels")
        print(f"units {time.monotonic():.3f} {units}", flush=True)
    print("ended well", flush=True)


def _kernels(microseconds: int, named: str = "") -> tuple[kernels.Kernels, card.Cuda, int]:
    cuda = card.Cuda()
    return kernels.Kernels(cuda, microseconds, named=named), cuda, 0


def illegal_access() -> None:
    """Uses an address that nothing has. Every later call then returns an error."""
    load, cuda, _ = _kernels(10, "fault_illegal_address")
    load.write_to(16)
    print(READY, flush=True)
    load.launch()
    first, second = cuda.call("cuCtxSynchronize"), cuda.call("cuCtxSynchronize")
    print(f"errors {cuda.name(first)} {cuda.name(second)}", flush=True)


def killed_amid_kernels() -> None:
    """Launches until it is killed."""
    load, cuda, _ = _kernels(500)
    if cuda.plain(512 * MIB) < 0:
        card.fail("512 MiB were refused")
    print(READY, flush=True)
    while True:
        load.launch()


def endless_kernel() -> None:
    load, cuda, _ = _kernels(10, "busy_100000000us")
    load.take(1 << 62)
    load.launch()
    print(READY, flush=True)
    cuda.call("cuCtxSynchronize")


def all_memory() -> None:
    """Takes blocks until one is refused, and holds them until it is killed."""
    cuda, blocks = card.Cuda(), 0
    while cuda.plain(64 * MIB) > 0:
        blocks += 1
    print(f"blocks {blocks}", flush=True)
    print(READY, flush=True)
    time.sleep(600)


#: The failures by name, and whether the program ends by itself.
WRONG: dict[str, tuple[Callable[[], None], bool]] = {
    "illegal access": (illegal_access, True),
    "killed amid kernels": (killed_amid_kernels, False),
    "endless kernel": (endless_kernel, False),
    "all memory": (all_memory, False),
}


# ---- outside ----


def program(place: places.Place, role: str) -> places.Child:
    simulated = {"XPU_GPU_SIMULATED": "1"} if place.machine.is_simulated else {}
    words = [place.machine.python, str(Path(__file__).resolve()), "role", role]
    return place.start(words, {"XPU_GPU_JSON": "", **simulated})


def wait_for(child: places.Child, word: str, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not _has_said(child, word):
        if child.poll() is not None or time.monotonic() > until:
            return _has_said(child, word)
        time.sleep(0.01)
    return True


def _has_said(child: places.Child, word: str) -> bool:
    """Whether one of its lines begins so."""
    return any(line.startswith(word) for line in child.output().splitlines())


def rate(child: places.Child) -> float:
    """Kernels a second, from now on."""
    begin = time.monotonic()
    time.sleep(LOOK_S)
    lines = [line.split() for line in child.output().splitlines() if line.startswith("units ")]
    seen = [(float(at), int(units)) for _, at, units in lines if float(at) >= begin]
    if len(seen) < 2:
        return 0.0
    return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])


def used(nvml: Nvml) -> int:
    """Used bytes of the card."""
    amount = nvml.used()
    if amount is None:
        card.fail(f"nvmlDeviceGetMemoryInfo outside the containers: error {nvml.status}")
    return amount


def tail(child: places.Child) -> str:
    return " ".join(child.output().split())[-200:]


class Trial:
    def __init__(
        self, record: Record, first: places.Place, other: places.Place, used: Callable[[], int]
    ) -> None:
        self.record, self.other, self.used = record, other, used
        self.worker = program(first, "works")
        self.alone = 0.0

    def begin(self) -> bool:
        if not self.record.check(wait_for(self.worker, READY, START_S), "the first container's work begins"):
            self.record.value("it said", tail(self.worker))
            return False
        self.alone = rate(self.worker)
        self.record.value("kernels a second alone", f"{self.alone:.0f}")
        return self.record.check(self.alone > 0, "its kernels run")

    def goes_wrong(self, name: str, ends: bool) -> None:
        before, child = self.used(), program(self.other, name)
        if not wait_for(child, READY, START_S):
            self.record.check(False, f"{name}: its program does not begin: {tail(child)}")
            child.kill()
            return
        beside = rate(self.worker)
        part = 100 * beside / self.alone
        self.record.check(
            part >= LEAST and self.worker.poll() is None,
            f"{name}: the first container goes on, with {part:.0f} % of its kernels alone",
        )
        if ends:
            wait_for(child, "errors", END_S)
        begin = time.monotonic()
        stays = child.kill()
        self.record.check(
            not stays, f"{name}: its program ends, {time.monotonic() - begin:.2f} s after it is killed"
        )
        said = [line for line in child.output().splitlines() if line.startswith(("errors ", "blocks "))]
        if said:
            self.record.value(f"{name}, its program", "; ".join(said))
        if ends:
            failed = bool(said) and "CUDA_SUCCESS" not in said[0]
            self.record.check(failed, f"{name}: each call of its own program fails")
        self._comes_back(name, before)

    def _comes_back(self, name: str, before: int) -> None:
        begin = time.monotonic()
        while (left := self.used() - before) > LEFT * MIB and time.monotonic() < begin + BACK_S:
            time.sleep(0.02)
        self.record.check(
            left <= LEFT * MIB,
            f"{name}: {left / MIB:+.0f} MiB of the card stay in use, {time.monotonic() - begin:.2f} s later",
        )

    def end(self) -> None:
        self.worker.signal(signal.SIGTERM)
        well = wait_for(self.worker, "ended well", END_S)
        self.record.check(
            well, f"the first container's work is right until its end: {'' if well else tail(self.worker)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.add_argument("--mem", default="4G", help="memory of each of the two slices (4G)")
    options = parser.parse_args()
    with Record(options) as record:
        machine = record.machine()
        nvml = Nvml(machine.driver.path_of("libnvidia-ml.so.1"), machine.query("uuid")[0])
        memory = "1G" if options.small else options.mem
        with (
            places.opened("container", machine=machine, memory=memory, cores=CORES[0]) as first,
            places.opened("container", machine=machine, memory=memory, cores=CORES[1], beside=first) as other,
        ):
            trial = Trial(record, first, other, lambda: used(nvml))
            if trial.begin():
                for name, (_, ends) in WRONG.items():
                    trial.goes_wrong(name, ends)
            trial.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["role"]:
        works() if sys.argv[2] == "works" else WRONG[sys.argv[2]][0]()
    else:
        main()
