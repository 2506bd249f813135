"""Times cases side by side, so that the machine's other work affects all of them alike.

Each round runs every case once, in an order that changes from round to round. The results are the median of a
case and its ratio to the base case.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable


def interleave(cases: dict[str, Callable[[], None]], runs: int) -> dict[str, list[float]]:
    """Each case's wall-clock times in milliseconds, `runs` of them, after one round that does not count."""
    order = list(cases)
    shuffle = random.Random(0).shuffle
    times: dict[str, list[float]] = {name: [] for name in cases}
    for counted in (False, *[True] * runs):
        shuffle(order)
        for name in order:
            start = time.perf_counter()
            cases[name]()
            elapsed = (time.perf_counter() - start) * 1000
            if counted:
                times[name].append(elapsed)
    return times


def table(title: str, times: dict[str, list[float]], base: str) -> str:
    """Medians in milliseconds, the spread of the middle half, and ratios to the median of `base`."""
    width = max(len(title), *(len(name) for name in times))
    lines = [f"{title:{width}}  {'median':>9}  {'middle half':>19}  {'ratio':>6}"]
    reference = statistics.median(times[base])
    for name, values in times.items():
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        middle = f"{low:.2f} to {high:.2f}"
        lines.append(f"{name:{width}}  {median:6.2f} ms  {middle:>16} ms  {median / reference:5.2f}x")
    return "\n".join(lines)


def busy() -> str:
    """A line about the machine's other work, to judge the numbers by."""
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    return f"load average: {load:.1f} on {processors} processors" + (
        ": busy, be careful with the numbers" if load > processors else ""
    )
