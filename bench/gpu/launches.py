"""The cost of a launch, an allocation and a start: on the host, in a slice without a cap, capped at 100 and
50.

A fault of ours: without a cap a launch takes more than 1 us longer (the goal is 0.1), a pair of cuMemAlloc
and cuMemFree more than 1 us, a start more than 2 ms (and 5 %, by which starts vary on the host too). Under a
cap: more than 1 us for a launch that is not held back, or 6 us for a graph's, which has two markers.

launches.c runs in each place in turn, in an order that changes. The results are medians of processes. Under a
cap of 50 the mean and the last 1 % of launches also wait for their budget: that is the cap at work.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import shutil
import statistics
from collections.abc import Callable

import places
from record import Record, add_options

SETTINGS = ("native", "no cap", "cap 100", "cap 50")
US, MS = 1e3, 1e6
#: Nanoseconds that a call may take more, without and with a cap. None: it is printed and not judged.
BOUNDS: dict[str, tuple[float, float] | None] = {
    "launch": (US, US),
    "launch mean": (US, float("inf")),
    "graph launch": (US, 6 * US),
    "pair of 1 MiB": (US, US),
    "start": (2 * MS, 2 * MS),
}
#: Calls that vary by some percent from process to process, on the host too.
VARY, VARIES = ("start", "pair of 1 MiB"), 0.05
GOAL = 100.0
#: A line of launches.c with a figure. A driver or a loader may print other lines.
_FIGURE = re.compile(r"([A-Za-z][\w ]*) (\d+\.\d+)")
Runs = dict[str, dict[str, list[float]]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.add_argument("--rounds", type=int, default=5, help="processes in each place (5)")
    parser.add_argument("--launches", type=int, default=20000, help="launches in each process (20000)")
    parser.add_argument("--mem", default="4G", help="the slices' memory (4G)")
    parser.add_argument("--place", choices=("sandbox", "container"), default="container")
    options = parser.parse_args()
    if options.small:
        options.rounds, options.launches = 1, 2000
    return options


def opened(
    stack: contextlib.ExitStack, options: argparse.Namespace, machine: places.Machine
) -> dict[str, Callable[[], places.Place]]:
    """A function for each setting, which prepares it and returns its place."""
    native = stack.enter_context(places.opened("native", machine=machine))
    slice_ = {"machine": machine, "memory": options.mem}
    free = stack.enter_context(places.opened(options.place, **slice_))
    # XPU_CORES=100 would mean no cap. So this slice begins with a cap, and is set to 100 later.
    capped = stack.enter_context(places.opened(options.place, **slice_, cores=50, beside=free))

    def at(cores: int) -> places.Place:
        capped.set_cores(cores)
        return capped

    return {
        "native": lambda: native,
        "no cap": lambda: free,
        "cap 100": lambda: at(100),
        "cap 50": lambda: at(50),
    }


def run(record: Record, place: places.Place, program: str, options: argparse.Namespace) -> dict[str, float]:
    own = str(shutil.copy(program, place.shared))
    done = place.run([own, "1", str(options.launches)], timeout=60)
    found = [(line, _FIGURE.fullmatch(line)) for line in done.stdout.splitlines() if line.strip()]
    others = " / ".join(line.strip() for line, figure in found if not figure)[-300:]
    if done.returncode:
        record.check(False, f"launches in a place of the kind {place.kind}: {done.returncode}: {others}")
        return {}
    if others:
        record.value(f"launches in a place of the kind {place.kind} also says", others)
    return {figure[1]: float(figure[2]) for _, figure in found if figure}


def told_so_far(record: Record, runs: Runs, number: int, options: argparse.Namespace) -> None:
    """One line after each round, so that a killed run has these."""
    said = []
    for name in BOUNDS:
        ns = {each: statistics.median(runs[each][name]) for each in SETTINGS if name in runs[each]}
        said.append(f"{name} {', '.join(f'{each} {value:.0f}' for each, value in ns.items())}")
    record.value(f"ns after round {number} of {options.rounds}", "; ".join(said), runs=runs)


def told(record: Record, runs: Runs, *, simulated: bool) -> None:
    """A line for each call: its time on the host, and the additional time in other places."""
    record.check(bool(runs["native"]), "launches are measured on the host")
    for name in runs["native"]:
        ns = {each: statistics.median(runs[each][name]) for each in SETTINGS if name in runs[each]}
        more = {each: value - ns["native"] for each, value in ns.items() if each != "native"}
        text = ", ".join(f"{each} {value:+.0f}" for each, value in more.items())
        record.value(name, f"{ns['native']:.0f} ns native; {text}", ns=ns, spread=_spread(runs, name))
        bounds = BOUNDS.get(name)
        if simulated and name in VARY:
            record.value(f"{name}, bounds", "not checked: a simulated card's driver is another process")
            bounds = None
        for each, value in more.items() if bounds else ():
            assert bounds
            bound = max(bounds[each != "no cap"], VARIES * ns["native"] if name in VARY else 0)
            if bound < float("inf"):
                goal = f" (goal {GOAL:.0f})" if name == "launch" else ""
                record.check(value <= bound, f"{name}, {each}: {value:+.0f} ns, at most {bound:.0f}{goal}")


def _spread(runs: Runs, name: str) -> dict[str, list[float]]:
    return {each: [min(values[name]), max(values[name])] for each, values in runs.items() if name in values}


def main() -> None:
    options = arguments()
    runs: Runs = {each: {} for each in SETTINGS}
    order, shuffle = list(SETTINGS), random.Random(0).shuffle
    with Record(options) as record, contextlib.ExitStack() as stack:
        machine = record.machine()
        program = record.built("launches", places.HERE)
        ready = opened(stack, options, machine)
        try:
            for number in range(1, options.rounds + 1):
                shuffle(order)
                for each in order:
                    for name, value in run(record, ready[each](), program, options).items():
                        runs[each].setdefault(name, []).append(value)
                told_so_far(record, runs, number, options)
        finally:
            # This comes before the places are closed, which takes time that a stopped run may not have.
            done = len(runs["native"].get("launch", ()))
            record.value("launches in each place", done * options.launches)
            told(record, runs, simulated=machine.is_simulated)


if __name__ == "__main__":
    main()
