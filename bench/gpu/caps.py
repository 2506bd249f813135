"""How well caps on compute hold for real kernels: the share of the device's time that each load has.

A share is the completed units times the device's time for a unit at the clock of that phase. A card at its
power limit runs faster under a cap, so a unit's time is measured on the host at several clocks: with the load
running all the time, and in bursts that keep the device as busy as a cap would. The driver's own samples are
printed beside it.

A fault of ours: a mean error of more than 3 points, a window of 2 s that is more than 10 off, more than 2 %
of the host's throughput lost in a slice without a cap (5 % for loads that the host slows down).

Contexts that take turns lose throughput without any cap, too. So each pair also runs on the host, where the
two have N % of the device's time together. In containers each must have at most its cap, and at least N % of
it if the caps are 100 together. A load that waits for each unit leaves turns to others: its share on the host
is enough.

Each load (load.py) is one process that lives through the run: on the host, in a container without a cap, and
in containers whose caps `xpu set` changes while they run. Each phase runs some of them.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Sequence

import places
import shares
from nvml import Clocks, Nvml, Use
from phases import Asked, Group, Phase, joined
from record import SKIPPED, Record, add_options
from runner import LoadError, Runner
from shares import Alone, Outcome

MEAN, WORST, LOST = 3.0, 10.0, 2.0
#: Percent by which loads that the host slows down differ from process to process, on the host too.
LOST_BY_HOST = 5.0
#: Seconds until all programs are ready: frameworks that start together read many files.
START_S = 150.0
CAPS = (90, 70, 50, 30, 10)
#: Some loads have fewer caps: `eager` and `short` use so little of a card that higher caps say nothing.
FEWER = {"eager": (30, 10), "short": (30, 10), "train": (90, 50, 30, 10)}
#: The loads that run beside each other, with their caps.
PAIRS = (
    (("matmul", 30), ("matmul", 70)),
    (("matmul", 70), ("matmul", 30)),
    (("matmul", 30), ("decode", 70)),
    (("decode", 30), ("train", 70)),
    (("decode", 30), ("train", 60)),
)
FOUR = 25
#: Seconds that are not judged, and seconds that a phase goes on after the judged time.
WARM_UP, TAIL = 2.0, 0.3
#: The warm-up on a simulated card, whose clock never changes.
WARM_UP_SIMULATED = 0.5
#: Percent for which the device is busy in bursts, and the seconds of bursts before and in a measurement.
BUSY, BURSTS_WARM_UP, BURSTS_S = (90, 70, 50), 1.0, 1.0
#: Loads that leave the card pauses: a unit's device time is measured apart. Loads that wait for each unit.
WITH_PAUSES, WAITS = ("decode", "eager", "short"), ("decode",)
#: Loads whose kernels take longer alone than one behind the other: the driver's samples give their time.
BY_DRIVER = ("eager", "short")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.add_argument("--loads", default="matmul,decode,eager,train", help="comma list of load.py's kinds")
    parser.add_argument("--caps", type=_numbers, help="comma list: caps of each load alone (90,70,50,30,10)")
    parser.add_argument("--no-pairs", action="store_true", help="each load alone only")
    parser.add_argument(
        "--only-pairs",
        action="store_true",
        help="pairs, with one turn on the host; each load alone only with --caps",
    )
    parser.add_argument(
        "--turns", type=int, default=2, help="turns of each load on the host and without a cap (2)"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="judged seconds of each phase (4)")
    parser.add_argument("--mem", default="14G", help="memory of a slice for all loads (14G)")
    parser.add_argument("--tiny", action="store_true", help="tiny matrices, to try this on a simulated card")
    options = parser.parse_args()
    options.mem_of_one = min(options.mem, "4G", key=places.bytes_of)
    if options.small:
        options.loads, options.caps, options.seconds, options.turns = "spin", (30,), 2.0, 1
        options.no_pairs, options.mem = not options.only_pairs, "1G"
    if options.only_pairs:
        options.turns = 1
    return options


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


def fit(options: argparse.Namespace, memory: int, record: Record) -> None:
    """Without enough memory for the slices, chooses loads that need no framework and little memory."""
    more = 0 if options.no_pairs else 2 * places.bytes_of(options.mem_of_one)
    need = 3 * places.bytes_of(options.mem) + more
    if need > memory:
        said = f"1 GiB, with spin and short: {options.loads} would need {need >> 30} GiB"
        record.value("slice", said)
        options.loads, options.mem, options.mem_of_one = "spin,short", "1G", "1G"


def caps_of(kind: str, options: argparse.Namespace) -> Sequence[int]:
    """The caps for a load alone."""
    if options.caps is not None:
        return tuple(options.caps)
    return () if options.only_pairs else FEWER.get(kind, CAPS)


# ---- phases ----


class Session:
    def __init__(
        self, record: Record, options: argparse.Namespace, clocks: Clocks, use: Use, simulated: bool = False
    ) -> None:
        self.record, self.options, self.clocks, self.use = record, options, clocks, use
        self.warm_up = WARM_UP_SIMULATED if simulated else WARM_UP
        self.kinds = options.loads.split(",")
        self.alone: dict[str, Alone] = {}
        #: The results of loads side by side on the host: each one's share, and their completed work together.
        self.natives: dict[tuple[str, ...], tuple[list[float], float]] = {}
        self.judged = self.failed = 0
        self.set_took: list[float] = []

    def phase(self, loads: Sequence[Runner], busy: int = 100) -> Phase:
        """Runs these together, or one in bursts."""
        warm_up, seconds = (self.warm_up, self.options.seconds) if busy == 100 else (BURSTS_WARM_UP, BURSTS_S)
        since, moment = time.monotonic() + warm_up, time.time() + warm_up
        for one in loads:
            if busy == 100:
                one.run()
            else:
                one.bursts(busy)
        time.sleep(warm_up)
        time.sleep(seconds + TAIL)
        clock = self.clocks.mean(since)
        for one in loads:
            one.pause()
        used = [self.use.mean(moment, moment + seconds, pid) for pid in (None, *(one.pid for one in loads))]
        return Phase(since, seconds, clock, used[0], used[1:])

    def measure_alone(self, host: Group, free: Group) -> None:
        """Runs each load on the host and without a cap, in turn, for the cost of a slice."""
        for kind in list(self.kinds):
            runners = {"host": host.loads[kind]}
            if not self.options.only_pairs:
                runners["no cap"] = free.loads[kind]
            try:
                self._measure_alone(kind, runners)
            except LoadError as error:
                self.record.check(False, str(error))
                self.kinds.remove(kind)

    def _measure_alone(self, kind: str, runners: dict[str, Runner]) -> None:
        host, points = runners["host"], list[tuple[float, float]]()
        found: dict[str, list[tuple[float, Phase]]] = {name: [] for name in runners}
        unit = host.unit_seconds() if kind in WITH_PAUSES else None
        for _ in range(self.options.turns):
            for name, runner in runners.items():
                phase = self.phase([runner])
                rate = self._rate(runner, phase)
                found[name].append((rate, phase))
                if name == "host" and not rate:
                    said = f"{kind} on the host completed nothing: {host.output()[-300:]}"
                    raise LoadError(said, None, on_host=True)
                if name == "host":
                    # A load that leaves the card no pause, and never follows another unit, has all of the
                    # card.
                    taken = unit or host.unit_between(phase.since, phase.until) or 1 / rate
                    if kind in BY_DRIVER and phase.busy:
                        taken = phase.busy / 100 / rate
                    points.append((phase.clock, taken))
        for busy in BUSY if unit is None else ():
            phase = self.phase([host], busy)
            behind = host.unit_between(phase.since, phase.until)
            self.record.value(
                f"{kind} in bursts of {busy} %",
                f"{behind * 1e3:.3f} ms a unit, {phase.said}" if behind else "no unit follows another",
            )
            points += [(phase.clock, behind)] if behind else []
        rate = statistics.mean(each for each, _ in found["host"])
        clock = statistics.mean(each.clock for _, each in found["host"])
        self.alone[kind] = Alone(rate, clock, tuple(points), kind in WAITS)
        self._tell_alone(kind, found)

    def _rate(self, runner: Runner, phase: Phase) -> float:
        return shares.share(runner.done(phase.since), phase.since, phase.until, 0.01)

    def _tell_alone(self, kind: str, found: dict[str, list[tuple[float, Phase]]]) -> None:
        alone = self.alone[kind]
        self.record.value(
            f"{kind} on the host",
            f"{alone.rate:.1f} units a second, {alone.unit(alone.clock) * 1e3:.3f} ms each on the device, "
            f"{alone.demand:.0f} % of its time, {found['host'][-1][1].said}",
            rates=[rate for rate, _ in found["host"]],
            points=alone.points,
        )
        if "no cap" not in found:
            return
        free = statistics.mean(rate for rate, _ in found["no cap"])
        time_of_free = statistics.mean(rate * alone.unit(phase.clock) for rate, phase in found["no cap"])
        lost = 100 * (1 - free / alone.rate)
        of_time = 100 * (1 - time_of_free / (alone.rate * alone.unit(alone.clock)))
        most = LOST_BY_HOST if kind in WITH_PAUSES or self.options.tiny else LOST
        self.record.check(
            min(lost, of_time) <= most,
            f"{kind} without a cap: {lost:+.2f} % lost ({of_time:+.2f} of the device's time), at most {most}",
        )

    def native(self, groups: Sequence[Group], kinds: Sequence[str]) -> bool:
        """Runs the same loads side by side on the host, for the attainable shares. True if they are known."""
        try:
            # The first group has a load of each kind. The others have more of a kind that runs beside itself.
            of = [groups[kinds[:i].count(kind)].loads[kind] for i, kind in enumerate(kinds)]
            self._native(kinds, of)
        except LoadError as error:
            return self.record.check(False, f"{' beside '.join(kinds)} on the host: {error}")
        return True

    def _native(self, kinds: Sequence[str], runners: Sequence[Runner]) -> None:
        phase = self.phase(runners)
        rates = [self._rate(runner, phase) for runner in runners]
        got = [
            100 * rate * self.alone[kind].unit(phase.clock) for rate, kind in zip(rates, kinds, strict=True)
        ]
        work = [100 * rate / self.alone[kind].rate for rate, kind in zip(rates, kinds, strict=True)]
        self.natives[tuple(kinds)] = got, sum(work)
        self.record.value(
            f"{' beside '.join(kinds)} on the host",
            f"{joined(got)} % of the device's time, {sum(got):.1f} together; {joined(work)} % of the "
            f"work of each alone; {phase.said}",
            got=got,
            work=work,
        )

    def judge(self, name: str, asked: Sequence[Asked]) -> None:
        """Sets the caps and runs one phase. A failure is reported, and the next phase goes on."""
        try:
            self._set([(each.group, each.cap) for each in asked])
            self._judge(name, asked)
        except (LoadError, places.PlaceError) as error:
            self.failed += 1
            self.record.check(False, f"{name}: {error}")

    def _set(self, wanted: Sequence[tuple[Group, int]]) -> None:
        """Lowers caps before it raises others: their sum must fit at any time."""
        for group, cap in sorted(wanted, key=lambda each: each[1] - each[0].cap):
            if cap != group.cap:
                before = time.monotonic()
                group.place.set_cores(cap)
                self.set_took.append(time.monotonic() - before)
                group.cap = cap

    def _judge(self, name: str, asked: Sequence[Asked]) -> None:
        phase = self.phase([each.runner for each in asked])
        alone = [self.alone[each.kind] for each in asked]
        native, work_native = self.natives.get(tuple(each.kind for each in asked), (None, 0.0))
        due = shares.due([each.cap for each in asked], alone, native if len(asked) > 1 else None)
        found = [
            shares.outcome(
                each.runner.done(phase.since), phase.since, phase.seconds, one.unit(phase.clock), of
            )
            for each, one, of in zip(asked, alone, due, strict=True)
        ]
        work = [
            100 * self._rate(each.runner, phase) / one.rate for each, one in zip(asked, alone, strict=True)
        ]
        if not all(each.is_near(phase.clock) for each in alone):
            self.record.value("not measured", f"{name}: the time of a unit near {phase.clock:.0f} MHz")
        self._tell(name, phase, found, work, native if len(asked) > 1 else None, work_native)

    def _tell(
        self,
        name: str,
        phase: Phase,
        found: Sequence[Outcome],
        work: Sequence[float],
        native: Sequence[float] | None,
        work_native: float,
    ) -> None:
        mean, worst = max(each.error for each in found), max(each.worst for each in found)
        low, high = joined([each.low for each in found]), joined([each.high for each in found])
        said = f"got {joined([each.got for each in found])} of {low if low == high else f'{low} to {high}'} %"
        said += f" of the device's time, {joined(work)} % of the host's work"
        if native is not None:
            said += f"; on the host {joined(native)} of the time"
            # If the caps leave some of the card unused, less work is no loss.
            if sum(each.high for each in found) >= sum(native):
                said += f", {100 * (1 - sum(work) / work_native):+.1f} % of its work lost"
        self.record.value(
            name,
            f"{said}; {phase.said}; mean error {mean:.2f}, worst {worst:.2f}",
            clock=phase.clock,
            outcomes=[(each.low, each.high, each.got, each.error, each.worst) for each in found],
            work=work,
            busy=phase.busy,
            of=phase.of,
        )
        if self.options.tiny:
            self.record.value("not checked", f"{name}: tiny matrices leave the card pauses of unknown length")
            return
        self.judged += 1
        if mean > MEAN or worst > WORST:
            self.failed += 1
            self.record.check(
                False,
                f"{name}: mean error {mean:.2f} ({MEAN:.0f}), worst 2-s window {worst:.2f} ({WORST:.0f})",
            )


# ---- the run ----


def ready(session: Session, groups: Sequence[Group]) -> None:
    """Waits for all loads. A kind that fails is reported and left out."""
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


def pairs(session: Session, host: Sequence[Group], groups: Sequence[Group]) -> None:
    wanted = [pair for pair in PAIRS if all(kind in session.kinds for kind, _ in pair)]
    first = session.kinds[0]
    for pair in wanted or [((first, 30), (first, 70))]:
        kinds = tuple(kind for kind, _ in pair)
        if kinds not in session.natives and not session.native(host, kinds):
            continue
        asked = [Asked(group, kind, cap) for group, (kind, cap) in zip(groups, pair, strict=True)]
        session.judge(" beside ".join(f"{kind} at {cap}" for kind, cap in pair), asked)


def four(
    session: Session, host: Sequence[Group], groups: Sequence[Group], open_: Callable[[int], Group]
) -> None:
    """The same load four times. Two more containers fit when the first two have 25 each."""
    kind = session.kinds[0]
    if (kind, kind) in session.natives or session.native(host[:2], (kind, kind)):
        session.judge(f"two of {kind} at {FOUR}", [Asked(group, kind, FOUR) for group in groups])
    more = [open_(FOUR) for _ in range(2)]
    ready(session, more)
    if kind in session.kinds and session.native(host, (kind,) * 4):
        session.judge(f"four of {kind} at {FOUR}", [Asked(group, kind, FOUR) for group in (*groups, *more)])


def main() -> None:
    options = arguments()
    with Record(options) as record, contextlib.ExitStack() as stack:
        machine = record.machine()
        fit(options, machine.memory(), record)
        nvml = Nvml(machine.driver.path_of("libnvidia-ml.so.1"), machine.query("uuid")[0])
        clocks, use = stack.enter_context(Clocks(nvml)), stack.enter_context(Use(nvml))
        session = Session(record, options, clocks, use, machine.is_simulated)
        first: list[places.Place] = []

        def slice_(cap: int, kinds: Sequence[str] = (), memory: str = options.mem) -> Group:
            beside = first[0] if first else None
            place = places.opened(
                "container", machine=machine, memory=memory, cores=cap or None, beside=beside
            )
            first.append(stack.enter_context(place))
            return Group(first[-1], kinds or session.kinds, options, cap)

        native = stack.enter_context(places.opened("native", machine=machine))
        host = [Group(native, session.kinds, options)]
        free = host[0] if options.only_pairs else slice_(0)
        groups = [slice_(cap) for cap in (90, 10)]
        if not options.no_pairs:
            host += [Group(native, session.kinds[:1], options) for _ in range(3)]
        ready(session, [*host, free, *groups])
        session.measure_alone(host[0], free)
        for kind in session.kinds:
            for cap in caps_of(kind, options):
                session.judge(f"{kind} at {cap}", [Asked(groups[0], kind, cap)])
        if session.kinds and not options.no_pairs:
            pairs(session, host, groups)
            four(session, host, groups, lambda cap: slice_(cap, session.kinds[:1], options.mem_of_one))
        if session.set_took:
            record.value("xpu set took", f"{statistics.median(session.set_took) * 1e3:.0f} ms (median)")
        if session.judged and not session.failed:
            record.check(True, f"{session.judged} phases: no mean error above 3 points, no window above 10")


if __name__ == "__main__":
    main()
