"""A load's share of a device's time, and its distance from the due share: caps.py's arithmetic.

A share is the units completed in a second times the device's time for one unit at the card's clock then. A
card at its power limit runs faster under a cap, and work does not follow its clock in proportion. So a unit's
time is measured at several clocks (`Alone.points`), and never calculated from one of them.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

#: Seconds over which a share must hold, and between the starts of two such windows.
WINDOW_S, STEP_S = 2.0, 0.05
#: Clocks that differ by less than this part count as one.
SAME_CLOCK = 0.01

Done = Sequence[tuple[float, int]]


@dataclass(frozen=True)
class Alone:
    """A load on the host: units a second, the card's clock meanwhile (MHz; 0: unknown), and the device's time
    for a unit (s) at several clocks."""

    rate: float
    clock: float
    points: tuple[tuple[float, float], ...]
    waits: bool = False

    def unit(self, clock: float) -> float:
        """The mean of the measurements at that clock, or between the nearest two, or at the nearest."""
        same = [taken for at, taken in self.points if abs(at - clock) <= SAME_CLOCK * clock]
        if same:
            return sum(same) / len(same)
        points = sorted(self.points)
        after = bisect.bisect([at for at, _ in points], clock)
        if after in (0, len(points)):
            return points[min(after, len(points) - 1)][1]
        (low, slow), (high, fast) = points[after - 1 : after + 1]
        return slow + (fast - slow) * (clock - low) / (high - low)

    def is_near(self, clock: float) -> bool:
        """Whether there is a measurement at this clock, or on both sides of it."""
        clocks = [at for at, _ in self.points]
        return min(clocks) * (1 - SAME_CLOCK) <= clock <= max(clocks) * (1 + SAME_CLOCK)

    @property
    def demand(self) -> float:
        """The percent of the device's time that it uses alone."""
        return min(100.0, 100 * self.rate * self.unit(self.clock))


@dataclass(frozen=True)
class Outcome:
    """A load in a phase, in percent of the device's time; `error` (mean) and `worst`: of windows."""

    low: float
    high: float
    got: float
    error: float
    worst: float


def units_at(done: Done, moment: float) -> float:
    """The units completed by then. Between two lines of a log they grow evenly."""
    if not done:
        return 0.0
    after = bisect.bisect_right(done, moment, key=lambda line: line[0])
    if after in (0, len(done)):
        return float(done[min(after, len(done) - 1)][1])
    (start, before), (end, then) = done[after - 1 : after + 1]
    return before + (then - before) * (moment - start) / (end - start)


def share(done: Done, since: float, until: float, unit: float) -> float:
    """The percent of the device's time between the two."""
    return 100 * unit * (units_at(done, until) - units_at(done, since)) / (until - since)


def outcome(done: Done, since: float, seconds: float, unit: float, due: tuple[float, float]) -> Outcome:
    """An error is the distance of a window's share below or above the due share."""
    low, high = due
    length = min(WINDOW_S, seconds)
    starts = [since + STEP_S * i for i in range(1 + round((seconds - length) / STEP_S))]
    found = [share(done, each, each + length, unit) for each in starts]
    errors = [max(0.0, low - each, each - high) for each in found]
    got = share(done, since, since + seconds, unit)
    return Outcome(low, high, got, sum(errors) / len(errors), max(errors))


def due(
    caps: Sequence[int], alone: Sequence[Alone], native: Sequence[float] | None
) -> list[tuple[float, float]]:
    """The least and the greatest due share of each. `native`: each one's share beside these without a cap.
    None: a load is alone, and is due its cap, or its use on the host if that is less."""
    if native is None:
        return [(min(cap, one.demand),) * 2 for cap, one in zip(caps, alone, strict=True)]
    # The loss when contexts take turns is nobody's fault: all lack the same part of it.
    part = min(1.0, sum(native) / sum(caps))
    return [
        (min(cap * part, uncapped) if one.waits else cap * part, float(cap))
        for cap, one, uncapped in zip(caps, alone, native, strict=True)
    ]
