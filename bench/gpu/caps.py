"""How well caps on compute hold for real kernels: completed work in percent of the host's, in the same run.

A fault of ours: a mean error of more than 3 points, a window of 2 s that is more than 10 off, more than 2 %
of the host's throughput lost in a slice without a cap (5 % where the host holds the load up). A card may
change its clocks (under a cap it is cooler): so work is also taken at the host's clock, and the better of the
two counts.

Each load (load.py) is one process that lives through the run: on the host, in a container without a cap, and
in containers whose caps are changed while they run, by `xpu set`. One phase after another says who runs.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import places
from nvml import Clocks, Nvml
from record import SKIPPED, Record, add_options
from runner import LoadError, Runner

from share import measure, scenarios
from share.loads import Load
from share.logs import Log
from share.measure import Native
from share.scenarios import Container, Scenario

MEAN, WORST, LOST = 3.0, 10.0, 2.0
#: Percent by which loads that their host holds up differ from process to process, on the host too.
LOST_BY_HOST = 5.0
#: Seconds until all programs are ready: frameworks that start together read much.
START_S = 150.0
CAPS = (90, 70, 50, 30, 10)
#: Who runs beside each other: load and cap.
PAIRS = (
    (("matmul", 30), ("matmul", 70)),
    (("matmul", 70), ("matmul", 30)),
    (("matmul", 30), ("decode", 70)),
    (("decode", 30), ("train", 70)),
)
FOUR = 25
#: Seconds that a phase goes on after the time that is judged.
TAIL = 0.3
#: Loads that leave the card pauses: what a unit takes the device is measured apart.
WITH_PAUSES = ("decode", "eager", "short")
#: Of these, those that use so little of a card that higher caps say nothing.
LIGHT, LIGHT_CAPS = ("eager", "short"), (30, 10)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.add_argument("--loads", default="matmul,decode,eager,train", help="comma list of load.py's kinds")
    parser.add_argument("--caps", type=_numbers, default=CAPS, help="comma list (90,70,50,30,10)")
    parser.add_argument("--no-pairs", action="store_true", help="each load alone only")
    parser.add_argument("--turns", type=int, default=2, help="of each load on the host and without a cap (2)")
    parser.add_argument("--seconds", type=float, default=5.0, help="that are judged of each phase (5)")
    parser.add_argument("--mem", default="14G", help="memory of a slice for all loads (14G)")
    parser.add_argument("--tiny", action="store_true", help="tiny matrices, to try this on a simulated card")
    options = parser.parse_args()
    options.mem_of_one = min(options.mem, "4G", key=places.bytes_of)
    if options.small:
        options.loads, options.caps, options.no_pairs = "spin", (30,), True
        options.seconds, options.turns, options.mem = 3.0, 1, "1G"
    return options


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


# ---- what is known of each load on the host ----


@dataclass(frozen=True)
class Alone:
    """A load on the host: units in a second, what one takes the device (s), the card's clock (MHz, or 0)."""

    rate: float
    unit: float
    clock: float
    pauses: bool

    @property
    def seconds(self) -> float:
        """Of the card's time for one unit. What leaves the card no pause has all of it, by definition."""
        return self.unit if self.pauses else 1 / self.rate

    def native(self, clock: float) -> Native:
        """At that clock of the card; 0: as it was."""
        factor = clock / self.clock if clock and self.clock else 1.0
        return Native(self.rate * self.seconds * factor, not self.pauses, 0.0)


def log_of(done: Sequence[tuple[float, int]], begin: float, seconds: float) -> Log:
    """As share/measure.py takes it: work in seconds of the card's time."""
    times = [time for time, _ in done]
    work = [units * seconds for _, units in done]
    return Log(0, begin, "", (0,) * 320, times, work, [(begin, True)])


# ---- phases ----


class Group:
    """One container (or the host) with its loads; `cap`: what its cores are now, 0 for none."""

    def __init__(
        self, place: places.Place, kinds: Sequence[str], options: argparse.Namespace, cap: int
    ) -> None:
        self.place, self.cap = place, cap
        more = ["--tiny"] if options.tiny else []
        self.loads = {kind: Runner(place, kind, more) for kind in kinds}


@dataclass(frozen=True)
class Asked:
    """Who runs in a phase."""

    group: Group
    kind: str
    cap: int

    @property
    def runner(self) -> Runner:
        return self.group.loads[self.kind]


class Session:
    def __init__(self, record: Record, options: argparse.Namespace, clocks: Clocks) -> None:
        self.record, self.options, self.clocks = record, options, clocks
        self.kinds = options.loads.split(",")
        self.alone: dict[str, Alone] = {}
        self.judged = self.failed = 0
        self.set_took: list[float] = []

    def phase(self, loads: Sequence[Runner], warm_up: float) -> tuple[float, float, float]:
        """Runs these together; when that began, when it ended, and the card's clock meanwhile."""
        begin = time.monotonic()
        for one in loads:
            one.run()
        time.sleep(warm_up)
        since = time.monotonic()
        time.sleep(self.options.seconds + TAIL)
        clock = self.clocks.mean(since)
        end = time.monotonic()
        for one in loads:
            one.pause()
        return begin, end, clock

    def rate(self, load: Runner) -> tuple[float, float]:
        """Units in a second, and the clock."""
        _, end, clock = self.phase([load], scenarios.WARM_UP)
        since = end - self.options.seconds
        return load.units(since, end) / self.options.seconds, clock

    def measure_alone(self, host: Group, free: Group) -> None:
        """Each load on the host and without a cap, in turn: what a slice costs."""
        for kind in list(self.kinds):
            try:
                self._measure_alone(kind, {"host": host.loads[kind], "no cap": free.loads[kind]})
            except LoadError as error:
                self.record.check(False, str(error))
                self.kinds.remove(kind)

    def _measure_alone(self, kind: str, runners: dict[str, Runner]) -> None:
        unit = runners["host"].unit_seconds()
        rates: dict[str, list[float]] = {name: [] for name in runners}
        clocks: dict[str, list[float]] = {name: [] for name in runners}
        for _ in range(self.options.turns):
            for name, runner in runners.items():
                rate, clock = self.rate(runner)
                rates[name].append(rate)
                clocks[name].append(clock)
        mean = statistics.mean(rates["host"])
        if not mean:
            said = f"{kind} on the host completed nothing: {runners['host'].output()[-300:]}"
            raise LoadError(said, None, on_host=True)
        self.alone[kind] = Alone(mean, unit, statistics.mean(clocks["host"]), kind in WITH_PAUSES)
        self._tell_alone(kind, rates, statistics.mean(clocks["no cap"]))

    def _tell_alone(self, kind: str, rates: dict[str, list[float]], clock: float) -> None:
        alone = self.alone[kind]
        self.record.value(
            f"{kind} on the host",
            f"{alone.rate:.1f} units a second, {alone.unit * 1e3:.3f} ms each on the device, "
            f"{min(100.0, 100 * alone.rate * alone.unit):.0f} % of the card, {alone.clock:.0f} MHz",
            rates=rates["host"],
            unit=alone.unit,
            clock=alone.clock,
        )
        free = statistics.mean(rates["no cap"])
        lost = 100 * (1 - free / alone.rate)
        at_clock = 100 * (1 - free / alone.rate * alone.clock / clock) if clock and alone.clock else lost
        most = LOST_BY_HOST if alone.pauses or self.options.tiny else LOST
        self.record.check(
            min(lost, at_clock) <= most,
            f"{kind} without a cap: {lost:+.2f} % lost ({at_clock:+.2f} at the host's clock), at most {most}",
        )

    def judge(self, name: str, asked: Sequence[Asked]) -> None:
        """One phase with caps, which are set before. What fails is said, and the next phase goes on."""
        try:
            self._set([(each.group, each.cap) for each in asked])
            self._judge(name, asked)
        except (LoadError, places.PlaceError) as error:
            self.failed += 1
            self.record.check(False, f"{name}: {error}")

    def _set(self, wanted: Sequence[tuple[Group, int]]) -> None:
        """What shrinks first: what all have together must fit at any time."""
        for group, cap in sorted(wanted, key=lambda each: each[1] - each[0].cap):
            if cap != group.cap:
                before = time.monotonic()
                group.place.set_cores(cap)
                self.set_took.append(time.monotonic() - before)
                group.cap = cap

    def _judge(self, name: str, asked: Sequence[Asked]) -> None:
        containers = tuple(Container(Load(each.kind, (), 0), each.cap) for each in asked)
        scenario = Scenario(name, containers, least=self.options.seconds)
        begin, _, clock = self.phase([each.runner for each in asked], scenario.warm_up)
        alone = [self.alone[each.kind] for each in asked]
        found = [
            [log_of(each.runner.done(begin), begin, one.seconds)]
            for each, one in zip(asked, alone, strict=True)
        ]
        raw, at_clock = (
            measure.judge(scenario, found, [one.native(each) for one in alone]).outcomes
            for each in (0.0, clock)
        )
        best = min(raw, at_clock, key=lambda outcomes: max(each.mean_error for each in outcomes))
        mean, worst = (max(getattr(each, field) for each in best) for field in ("mean_error", "worst"))
        got, same, due = (
            "/".join(f"{getattr(each, field):.1f}" for each in outcomes)
            for outcomes, field in ((raw, "got"), (at_clock, "got"), (best, "expected"))
        )
        # Of a load with pauses it is the same: what it gets done depends on the host, too.
        said = "" if all(each.pauses for each in alone) else f"{same} at the host's clock, "
        self.record.value(
            name,
            f"got {got} of {due} %, {said}{clock:.0f} MHz, mean error {mean:.2f}, worst {worst:.2f}",
            clock=clock,
            outcomes=[(each.expected, each.got, each.mean_error, each.worst) for each in best],
        )
        if self.options.tiny:
            self.record.value("not checked", f"{name}: tiny matrices leave the card pauses of unknown length")
            return
        self.judged += 1
        if mean > MEAN or worst > WORST:
            self.failed += 1
            self.record.check(False, f"{name}: mean error {mean:.2f} (3), worst 2-s window {worst:.2f} (10)")


# ---- the run ----


def ready(session: Session, groups: Sequence[Group]) -> None:
    """Waits for all loads. A kind that fails is said, and left out."""
    until = time.monotonic() + START_S
    for kind in list(session.kinds):
        try:
            for group in groups:
                if kind in group.loads:
                    group.loads[kind].wait_until_ready(until)
        except LoadError as error:
            if error.status == SKIPPED and error.on_host:
                session.record.skip(str(error))
            session.record.check(False, str(error))
            session.kinds.remove(kind)


def pairs(session: Session, one: Group, other: Group) -> None:
    wanted = [pair for pair in PAIRS if all(kind in session.kinds for kind, _ in pair)]
    first = session.kinds[0]
    for (kind, cap), (kind_beside, cap_beside) in wanted or [((first, 30), (first, 70))]:
        asked = (Asked(one, kind, cap), Asked(other, kind_beside, cap_beside))
        session.judge(f"{kind} at {cap} beside {kind_beside} at {cap_beside}", asked)


def four(session: Session, groups: Sequence[Group], open_: Callable[[int], Group]) -> None:
    """The same load four times. Two more containers fit when the first two have 25 each."""
    kind = session.kinds[0]
    session.judge(f"two of {kind} at {FOUR}", [Asked(group, kind, FOUR) for group in groups])
    more = [open_(FOUR) for _ in range(2)]
    ready(session, more)
    if kind in session.kinds:
        session.judge(f"four of {kind} at {FOUR}", [Asked(group, kind, FOUR) for group in (*groups, *more)])


def main() -> None:
    options = arguments()
    with Record(options) as record, contextlib.ExitStack() as stack:
        machine = record.machine()
        nvml = Nvml(machine.driver.path_of("libnvidia-ml.so.1"), machine.query("uuid")[0])
        session = Session(record, options, stack.enter_context(Clocks(nvml)))
        first: list[places.Place] = []

        def slice_(cap: int, kinds: Sequence[str] = (), memory: str = options.mem) -> Group:
            beside = first[0] if first else None
            place = places.opened(
                "container", machine=machine, memory=memory, cores=cap or None, beside=beside
            )
            first.append(stack.enter_context(place))
            return Group(first[-1], kinds or session.kinds, options, cap)

        host = stack.enter_context(places.opened("native", machine=machine))
        groups = [Group(host, session.kinds, options, 0), *(slice_(cap) for cap in (0, 90, 10))]
        ready(session, groups)
        session.measure_alone(*groups[:2])
        for kind in session.kinds:
            for cap in options.caps if kind not in LIGHT else LIGHT_CAPS:
                session.judge(f"{kind} at {cap}", [Asked(groups[2], kind, cap)])
        if session.kinds and not options.no_pairs:
            pairs(session, *groups[2:])
            four(session, groups[2:], lambda cap: slice_(cap, session.kinds[:1], options.mem_of_one))
        if session.set_took:
            record.value("xpu set took", f"{statistics.median(session.set_took) * 1e3:.0f} ms (median)")
        if session.judged and not session.failed:
            record.check(True, f"{session.judged} phases: no mean error above 3 points, no window above 10")


if __name__ == "__main__":
    main()
