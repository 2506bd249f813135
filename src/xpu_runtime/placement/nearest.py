"""The nearest request to one that does not fit, among those that fit now, in plain numbers."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def nearest(
    free: Sequence[tuple[int, int]], memory: int, cores: int, count: int, unit: int, step: int
) -> tuple[int, int, int] | None:
    """(devices, bytes, percent): as many devices as can be of `count`, with as much of each as is left of
    `memory` bytes and `cores` percent (0: no cap is asked for); None: nothing fits.

    `free`: the bytes and percent that are free of each device that may serve it. Bytes are offered in whole
    `unit`s, and percent in whole `step`s.
    """
    for number in range(count, 0, -1):
        ways = [
            (kept(amount, memory) * kept(percent, cores), amount, percent)
            for amount, percent in _smaller(free, memory, cores, number, unit, step)
            if amount and (percent or not cores)
        ]
        if ways:
            return number, *max(ways)[1:]
    return None


def kept(part: int, of: int) -> float:
    """The share of the request that it keeps, 0 to 1."""
    return part / of if of else 1.0


def _smaller(
    free: Sequence[tuple[int, int]], memory: int, cores: int, count: int, unit: int, step: int
) -> list[tuple[int, int]]:
    """Smaller requests for so many devices: all cores and less memory, the reverse, or less of both."""

    def whole(amount: int, percent: int) -> tuple[int, int]:
        return min(amount, memory) // unit * unit, min(percent // step * step, cores)

    found = [whole(nth([amount for amount, percent in free if percent >= cores], count), 100)]
    if cores:
        most = memory // unit * unit
        found.append(whole(memory, nth([percent for amount, percent in free if amount >= most], count)))
        both = sorted((each for each in free if each[1] >= step), reverse=True)[:count]
        if len(both) == count:
            found.append(whole(both[-1][0], min(percent for _, percent in both)))
    return found


def nth(values: list[int], n: int) -> int:
    """The n-th largest, 0 if there are fewer."""
    return sorted(values, reverse=True)[n - 1] if len(values) >= n else 0
