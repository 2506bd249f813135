"""Whether a slice used more of its device than its allowed share, by the driver's samples; and the hold that
follows.

A container can write its own page: it can claim to have used nothing, or set back the word that paces its
launches. So nothing of it counts here. The driver's samples of a process's utilization are whole percents of
up to a second each, late, and sometimes missing; kernels may be as long as they. Use beyond the allowed share
is therefore added up, less the samples' error. Only when the sum is more than long kernels and an unlucky
series of samples can explain, the slice is held: it is stopped while it has used more than its cap. A missing
sample is no evidence. Values in, values out; knows no driver.
"""

from __future__ import annotations

#: A sample may be wrong by so much of the device: whole percents, of windows that are not ours.
ERROR = 0.05
#: While a slice is held its cap counts; a small error remains, so that an honest slice is released.
_ERROR_HELD = 0.01
#: A process's sample is a whole percent, and may be so much more than it used: of dozens of processes in one
#: container that is more than ERROR.
_ROUNDED = 0.005
#: Seconds of the device's time beyond the allowed share at which a slice is held. Two kernels may run before
#: the first is measured (docs/concepts/compute.md), and where a driver tells of its last sample alone, 0.3 s
#: of each second can look like 0.6 for a while.
TOLERANCE_S = 5.0
#: A held slice that owes more is stopped. One that owes less has its cap, and its own pacing pays: a share in
#: between would make it pay twice, because its share counts its own debt.
_STOPPED_S = 0.5
#: More is not remembered: a container that has mended its ways must not wait for hours.
_MOST_S = 60.0
#: So long without debt, and a held slice is let go.
_PROBATION_S = 10.0
#: The allowed shares of the last checks count: samples are late.
_LATE_CHECKS = 4


class Debt:
    __slots__ = ("_allowed", "_clean_s", "held", "owed")

    def __init__(self) -> None:
        #: Seconds of the device's time used beyond the allowed share.
        self.owed = 0.0
        self.held = False
        self._allowed: list[float] = []
        self._clean_s = 0.0

    def check(self, seconds: float, utilization: float | None, allowed: float, cap: float) -> None:
        """Counts the slice's use of its device in the last `seconds`, by the driver.

        None: the driver answered, without a sample of this slice. Without any answer, do not call this: a
        hold then stays as it is. `allowed` and `cap` are shares, 0 to 1.
        """
        self._allowed = [*self._allowed[1 - _LATE_CHECKS :], allowed]
        if self.held:
            rate = (utilization or 0.0) - cap - _ERROR_HELD
        else:
            rate = (utilization or 0.0) - max(self._allowed) - ERROR
        self.owed = min(max(0.0, self.owed + rate * seconds), _MOST_S)
        if self.held:
            self._clean_s = 0.0 if self.owed else self._clean_s + seconds
            self.held = self._clean_s < _PROBATION_S
        elif self.owed > TOLERANCE_S:
            self.held, self._clean_s = True, 0.0

    def share(self, cap: int) -> int:
        """The present share of a held slice with this cap, in the unit of the cap."""
        return 0 if self.owed > _STOPPED_S else cap


def by_slice(samples: dict[int, float], owners: dict[int, int], slices: set[int]) -> dict[int, float] | None:
    """The driver's samples of one device (process: 0 to 1) as one for each of the `slices` on it.

    `owners`: the slice of each process. The least possible use of each counts. None if the samples are no
    evidence: if they add up to more than the device has, they do not show whose use it was.
    """
    found: dict[int, float] = {}
    for pid, busy in samples.items():
        owner = owners.get(pid, -pid)
        found[owner] = min(1.0, found.get(owner, 0.0) + max(0.0, busy - _ROUNDED))
    if sum(found.values()) > 1.0 + 2 * ERROR:
        return None
    return {owner: busy for owner, busy in found.items() if owner in slices}
