"""The scenarios: the loads that share one card, for how long, and their due shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from share.loads import LOADS, Load

#: Percent of a card that a container of low priority keeps while a higher one could use all of it.
LOW_FLOOR = 1.0
WARM_UP = 2.0  # seconds that are not judged, at least
SHARED_MEMORY = "1G"
WINDOW = 2.0  # seconds over which a share must hold


@dataclass(frozen=True)
class Container:
    """One container: its load, its cap in percent (None: no XPU_CORES), and how it shares."""

    load: Load
    cores: int | None = None
    sched: str = "fixed"
    priority: str = "normal"
    memory: str | None = None  # None: XPU_CORES alone if it is alone, otherwise SHARED_MEMORY

    @property
    def name(self) -> str:
        words = [self.load.name]
        words += [f"{self.cores} %"] if self.cores is not None else ["no cap"]
        words += [word for word in (self.sched, self.priority) if word not in ("fixed", "normal")]
        words += [self.memory] if self.memory else []
        return " ".join(words)

    @property
    def window(self) -> float:
        """Seconds over which its share must hold: two, or ten of its kernels' time divided by its cap."""
        return max(WINDOW, 10 * self._paid_for)

    @property
    def _paid_for(self) -> float:
        """Seconds in which one of its kernels is paid for at its cap."""
        return self.load.kernel_ns / 1e9 / ((self.cores or 100) / 100)

    @property
    def warm_up(self) -> float:
        """Seconds that are not judged: two, or as long as two of its kernels take to pay for, if that is
        longer. Two are launched before their length is known."""
        return max(WARM_UP, 2 * self._paid_for)


@dataclass(frozen=True)
class Change:
    """`xpu set --cores` of a container, by its place, that many seconds after judging begins."""

    after: float
    place: int
    cores: int


@dataclass(frozen=True)
class Scenario:
    """Containers that begin together on one card, and run for `seconds` and a time that is not judged."""

    name: str
    containers: tuple[Container, ...]
    least: float = 8.0
    change: Change | None = None

    @property
    def changed(self) -> tuple[Container, ...]:
        """The containers after the change."""
        if self.change is None:
            return self.containers
        place, cores = self.change.place, self.change.cores
        new = replace(self.containers[place], cores=cores)
        return (*self.containers[:place], new, *self.containers[place + 1 :])

    @property
    def window(self) -> float:
        """Seconds over which each is judged: nothing takes the card back from a neighbour's long kernel."""
        return max(container.window for container in self.containers)

    @property
    def warm_up(self) -> float:
        return max(container.warm_up for container in self.containers)

    @property
    def seconds(self) -> float:
        return max(self.least, 1.5 * self.window)

    @property
    def light(self) -> bool:
        return all(container.load.light for container in self.containers)


def shares(containers: Sequence[Container], demands: Mapping[int, float]) -> dict[int, float]:
    """The due percent of the card for each container that has work now, by its place in `containers`.

    `demands`: the containers with work, and the percent that each would use alone.
    """
    most = {i: min(demand, _most(containers[i])) for i, demand in demands.items()}
    given = {i: min(most[i], _guaranteed(containers[i])) for i in demands}
    free = 100.0 - sum(given.values())
    for level in ("high", "normal", "low"):
        wanted = {i: most[i] for i in demands if containers[i].priority == level}
        free -= _fill(given, wanted, {i: _weight(containers[i]) for i in wanted}, free)
    return given


def _most(container: Container) -> float:
    return float(container.cores) if container.cores and container.sched == "fixed" else 100.0


def _guaranteed(container: Container) -> float:
    return LOW_FLOOR if container.priority == "low" else float(container.cores or 0)


def _weight(container: Container) -> float:
    """Its weight for the unused rest: burst shares it equally. The two must not be on one card."""
    return 1.0 if container.sched == "burst" else float(container.cores or 100)


def _fill(
    given: dict[int, float], upto: Mapping[int, float], weights: Mapping[int, float], free: float
) -> float:
    """Gives each up to `upto`, in proportion to their weights. Returns the sum."""
    start = free
    open_ = {i for i in upto if upto[i] > given[i] and weights[i] > 0}
    while open_ and free > 1e-9:
        each = free / sum(weights[i] for i in open_)
        step = min(each, *((upto[i] - given[i]) / weights[i] for i in open_))
        for i in open_:
            given[i] += step * weights[i]
        free -= step * sum(weights[i] for i in open_)
        open_ = {i for i in open_ if upto[i] - given[i] > 1e-9}
    return start - free


# ---- the sets ----

QUICK = ("30/70", "4 x 25", "30/70, 10 us beside 100 ms")


def one(load: str, cores: int | None = None, **how: str) -> Container:
    return Container(LOADS[load], cores, **how)


def mix(name: str, *containers: Container) -> Scenario:
    return Scenario(name, containers, least=12.0)


def alone() -> list[Scenario]:
    return [Scenario(f"{name} at {cap} %", (one(name, cap),)) for name in LOADS for cap in LOADS[name].caps]


def beside() -> list[Scenario]:
    even = "async-1ms"
    return [
        mix("10/90", one(even, 10), one(even, 90)),
        mix("30/70", one(even, 30), one(even, 70)),
        mix("4 x 25", *[one(even, 25)] * 4),
        mix("30/70, synchronous", one("sync-1ms", 30), one("sync-1ms", 70)),
        mix("10/90, graphs beside synchronous", one("graphs", 10), one("sync-1ms", 90)),
        mix("30/70, few blocks beside many", one("few-blocks", 30), one(even, 70)),
        mix("30/70, graphs", one("graphs", 30), one("graphs", 70)),
        mix("30/70, decode beside training", one("decode", 30), one("training", 70)),
        mix("30/70, 10 us beside 100 ms", one("async-10us", 30), one("async-100ms", 70)),
        mix("70/30, 10 us beside 100 ms", one("async-10us", 70), one("async-100ms", 30)),
        mix("30/30/40, one with three processes", one("processes", 30), one(even, 30), one("streams", 40)),
        mix("50/50, one bursty", one(even, 50), one("bursty", 50)),
        mix("30/70, 1 s beside 1 ms", one("async-1s", 30), one(even, 70)),
        Scenario("60, then 20, beside 40", (one(even, 60), one(even, 40)), 12.0, Change(6.0, 0, 20)),
        mix("30 beside no cap", one(even, 30), one(even)),
        mix("two without a cap", one(even), one(even)),
    ]


def policies() -> list[Scenario]:
    even = "async-1ms"
    return [
        Scenario("burst, alone", (one(even, 30, sched="burst"),)),
        mix("burst, 30/70", one(even, 30, sched="burst"), one(even, 70, sched="burst")),
        mix("burst, 20/60", one(even, 20, sched="burst"), one(even, 60, sched="burst")),
        mix("burst, beside a bursty one", one(even, 30, sched="burst"), one("bursty", 70, sched="burst")),
        Scenario("weight, alone", (one(even, 25, sched="weight"),)),
        mix("weight, 25/75", one(even, 25, sched="weight"), one(even, 75, sched="weight")),
        mix("weight, 20/60", one(even, 20, sched="weight"), one(even, 60, sched="weight")),
        mix("weight, beside a bursty one", one(even, 25, sched="weight"), one("bursty", 75, sched="weight")),
        mix(
            "high beside low",
            one(even, 50, sched="burst", priority="high"),
            one(even, 50, sched="burst", priority="low"),
        ),
        mix(
            "high, bursty, beside low",
            one("bursty", 50, sched="weight", priority="high"),
            one(even, 50, sched="weight", priority="low"),
        ),
    ]


def full() -> list[Scenario]:
    return alone() + beside() + policies()


def quick() -> list[Scenario]:
    """A minute or so, with the commonest faults first."""
    return [
        replace(scenario, least=5.0)
        for scenario in (
            Scenario("async-1ms at 30 %", (one("async-1ms", 30),)),
            Scenario("graphs at 50 %", (one("graphs", 50),)),
            Scenario("decode at 50 %", (one("decode", 50),)),
            Scenario("sync-1ms at 100 %", (one("sync-1ms", 100),)),
            *(each for each in beside() if each.name in QUICK),
        )
    ]


def part(wanted: Sequence[Scenario], number: int, count: int) -> list[Scenario]:
    """The `number`-th (from 1) of `count` parts that take about as long each on one card.

    A part has neighbours in the list: they share loads, so fewer have to be measured alone.
    """
    whole, passed, found = sum(one.warm_up + one.seconds for one in wanted), 0.0, []
    for one in wanted:
        middle = passed + (one.warm_up + one.seconds) / 2
        passed += one.warm_up + one.seconds
        if int(middle / whole * count) == number - 1:
            found.append(one)
    return found


SETS = {"quick": quick, "alone": alone, "beside": beside, "policies": policies, "full": full}
