"""The results of a scenario: pure functions of logs. Shares are in percent of the card, times in seconds.

A container's share is its completed work in the time that passed, in units of the load's completed work alone
without a limit. No clock of the card and no report of NVML is used. The due share follows from the scenario
and from the containers that had work at each moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from share import logs, scenarios
from share.logs import Log
from share.scenarios import WARM_UP, Scenario

STEP = 0.01  # seconds between two points
#: A saturating load that completes less than this in a second waits for its host, not for the card.
HOST_LIMITED = 0.8
GIVEN_WINDOW, ENOUGH = 0.1, 0.8
PICTURE_STEP, PICTURE_POINTS = (
    0.25,
    150,
)  # the least seconds between two points of the picture, and their maximum number


@dataclass(frozen=True)
class Native:
    """A load alone, without a limit: seconds of work completed in each second in which it had work."""

    rate: float
    saturates: bool
    p99_ns: float

    @property
    def busy(self) -> bool:
        """Whether the card had no pause, so that `rate` is all of it."""
        return self.saturates and self.rate > HOST_LIMITED

    @property
    def demand(self) -> float:
        """The percent of the card that it uses."""
        return 100.0 if self.busy else min(100.0, 100.0 * self.rate)

    @property
    def scale(self) -> float:
        """The factor from seconds of work to percent of a card's second."""
        return 100.0 / self.rate if self.busy else 100.0


@dataclass(frozen=True)
class Outcome:
    """One container. `mean_error` and `worst` are of windows as long as `window`, in points."""

    asked: int | None
    expected: float
    got: float
    mean_error: float
    worst: float
    window: float
    throughput: float  # percent of its due work
    p99_ns: float
    given_back: float | None  # the longest time from when it had work again until it had its share
    picture: list[tuple[float, float, float]]  # seconds since the start, got, expected


@dataclass(frozen=True)
class Result:
    """A scenario. `idle`: percent of the card that was due to a container with work, and unused."""

    outcomes: list[Outcome]
    idle: float
    jain: float


def native(found: Sequence[Log], seconds: float, saturates: bool) -> Native:
    begin = found[0].begin
    first, last = begin + WARM_UP, _last(found, begin + WARM_UP + seconds, 0.2 * seconds)
    points = _points(first, last)
    busy = STEP * sum(_has_work(found, point) for point in points[:-1])
    done = sum(log.work_at(last) - log.work_at(first) for log in found)
    return Native(done / busy if busy else 0.0, saturates, logs.launch_quantile(list(found), 0.99))


def judge(
    scenario: Scenario,
    found: Sequence[Sequence[Log]],
    natives: Sequence[Native],
    changed: float = math.inf,
) -> Result:
    """`found`: each container's processes. All begin at one time. `changed`: the time of the change."""
    begin = found[0][0].begin
    first = begin + scenario.warm_up
    end = first + scenario.seconds
    points = _points(first, end)
    due = _due(scenario, found, natives, points, changed)
    got = [
        [one.scale * sum(log.work_at(point) for log in processes) for point in points]
        for processes, one in zip(found, natives, strict=True)
    ]
    outcomes = []
    for i, container in enumerate(scenario.containers):
        patience = 0.2 * container.window
        count = round((_last(found[i], end, patience) - first) / STEP)
        outcomes.append(
            _outcome(
                container,
                scenario.window,
                got[i][: count + 1],
                due[i][: count + 1],
                logs.launch_quantile(list(found[i]), 0.99),
            )
        )
    return Result(outcomes, _idle(got, due), _jain(outcomes))


def _points(first: float, last: float) -> list[float]:
    return [first + STEP * i for i in range(round((last - first) / STEP) + 1)]


def _last(found: Sequence[Log], end: float, patience: float) -> float:
    """The end of judging: the last completed work if no more than this much is missing, otherwise the end.

    A long kernel that is under way at the end would count as nothing. A starved container must not be judged
    by its earlier work.
    """
    latest = max((log.times[-1] for log in found if log.times), default=end)
    return latest if end - patience <= latest <= end else end


def _has_work(found: Sequence[Log], time: float) -> bool:
    return any(_is_on(log, time) for log in found)


def _is_on(log: Log, time: float) -> bool:
    on = False
    for when, state in log.phases:
        if when > time:
            break
        on = state
    return on


def _due(
    scenario: Scenario,
    found: Sequence[Sequence[Log]],
    natives: Sequence[Native],
    points: Sequence[float],
    changed: float,
) -> list[list[float]]:
    """The work that was due to each by each point, in percent-seconds."""
    due = [[0.0] for _ in found]
    memory: dict[tuple[bool, tuple[int, ...]], dict[int, float]] = {}
    for point in points[:-1]:
        active = tuple(i for i, processes in enumerate(found) if _has_work(processes, point + STEP / 2))
        known = point >= changed, active
        if known not in memory:
            demands = {i: natives[i].demand for i in active}
            containers = scenario.changed if point >= changed else scenario.containers
            memory[known] = scenarios.shares(containers, demands)
        for i, sums in enumerate(due):
            sums.append(sums[-1] + STEP * memory[known].get(i, 0.0))
    return due


def _outcome(
    container: scenarios.Container, window: float, got: Sequence[float], due: Sequence[float], p99_ns: float
) -> Outcome:
    length = STEP * (len(got) - 1)
    lag = [b - a for a, b in zip(got, due, strict=True)]  # the missing percent-seconds up to each point
    span = min(round(window / STEP), len(lag) - 1)
    errors = [abs(lag[i + span] - lag[i]) / (span * STEP) for i in range(0, len(lag) - span, 5)]
    expected = (due[-1] - due[0]) / length
    share = (got[-1] - got[0]) / length
    return Outcome(
        asked=container.cores,
        expected=expected,
        got=share,
        mean_error=sum(errors) / len(errors),
        worst=max(errors),
        window=span * STEP,
        throughput=100 * share / expected if expected else math.nan,
        p99_ns=p99_ns,
        given_back=_given_back(container.load.kernel_ns, got, due),
        picture=_picture(got, due),
    )


def _given_back(kernel_ns: int, got: Sequence[float], due: Sequence[float]) -> float | None:
    """The longest time from when it had work again until it had its share. None if it always had it.

    It has its share from when it completes ENOUGH of it in GIVEN_WINDOW (or two of its kernels' time).
    """
    span = round(max(GIVEN_WINDOW, 2 * kernel_ns / 1e9) / STEP)
    worst = None
    for i in range(1, len(due) - 1):
        if due[i] > due[i - 1] or due[i + 1] == due[i]:
            continue
        j = i
        while j + span < len(got) and got[j + span] - got[j] < ENOUGH * (due[j + span] - due[j]):
            j += 1
        worst = max(worst or 0.0, (j - i) * STEP)
    return worst


def _picture(got: Sequence[float], due: Sequence[float]) -> list[tuple[float, float, float]]:
    span = max(round(PICTURE_STEP / STEP), len(got) // PICTURE_POINTS)
    length = span * STEP
    return [
        (i * STEP, (got[i] - got[i - span]) / length, (due[i] - due[i - span]) / length)
        for i in range(span, len(got), span)
    ]


def _idle(got: Sequence[Sequence[float]], due: Sequence[Sequence[float]]) -> float:
    """The unused part of the due work, in windows of two seconds: a late kernel is no idle card."""
    span = round(scenarios.WINDOW / STEP)
    count = len(due[0])
    span = min(span, count - 1)
    lacking = []
    for i in range(0, count - span, span):
        wanted = sum(one[i + span] - one[i] for one in due)
        used = sum(one[i + span] - one[i] for one in got)
        lacking.append(max(0.0, wanted - used) / (span * STEP))
    return sum(lacking) / len(lacking)


def _jain(outcomes: Sequence[Outcome]) -> float:
    """Jain's index of got / expected: 1 if all have the same part. (R. Jain, DEC-TR-301, 1984)"""
    parts = [outcome.got / outcome.expected for outcome in outcomes if outcome.expected]
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else math.nan
