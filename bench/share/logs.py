"""Reads share-load's logs (load/record.c), of one process and of a whole container."""

from __future__ import annotations

import bisect
import struct
from dataclasses import dataclass
from pathlib import Path

STARTING, READY, RUNNING, DONE, FAILED = range(5)
_HEADER, _KIND_SHIFT = 8192, 62
_HEAD = struct.Struct("<8sIIQQ256s")
_OCTAVES, _STEPS = 40, 8
_DONE, _ON, _OFF = range(3)


class NotALog(Exception):
    """The file is not a log of share-load."""


@dataclass(frozen=True)
class Log:
    """One process. Times are CLOCK_MONOTONIC's; work is completed time of the device. All are in seconds."""

    state: int
    begin: float
    failure: str
    launches: tuple[int, ...]
    times: list[float]
    work: list[float]
    phases: list[tuple[float, bool]]  # when it began to have work, and when it had no more

    def work_at(self, time: float) -> float:
        """The work by that time. Between two records it grows evenly."""
        after = bisect.bisect_right(self.times, time)
        if after == 0:
            return 0.0
        if after == len(self.times):
            return self.work[-1]
        start, end = self.times[after - 1], self.times[after]
        part = (time - start) / (end - start) if end > start else 1.0
        return self.work[after - 1] + part * (self.work[after] - self.work[after - 1])


def read(path: Path) -> Log:
    """NotALog, or OSError."""
    with path.open("rb") as file:
        head = file.read(_HEADER)
        if len(head) < _HEADER or head[:8] != b"XPULOAD1":
            raise NotALog(f"{path} is not a log of share-load")
        _, state, _, begin, count, failure = _HEAD.unpack_from(head)
        records = file.read(16 * count)  # the file is longer, and sparse
    launches = struct.unpack_from(f"<{_OCTAVES * _STEPS}Q", head, _HEAD.size)
    times, work, phases = [], [], []
    for time, word in struct.iter_unpack("<QQ", records):
        kind, done = word >> _KIND_SHIFT, word & ((1 << _KIND_SHIFT) - 1)
        times.append(time / 1e9)
        work.append(done / 1e9)
        if kind != _DONE:
            phases.append((time / 1e9, kind == _ON))
    text = failure.split(b"\0")[0].decode(errors="replace")
    return Log(state, begin / 1e9, text, launches, times, work, phases)


def state(path: Path) -> tuple[int, str]:
    """A load's state, and why it failed."""
    try:
        with path.open("rb") as file:
            data = file.read(_HEAD.size)
    except FileNotFoundError:
        return STARTING, ""
    if len(data) < _HEAD.size:
        return STARTING, ""
    _, found, _, _, _, failure = _HEAD.unpack(data)
    return found, failure.split(b"\0")[0].decode(errors="replace")


def launch_quantile(logs: list[Log], part: float) -> float:
    """The nanoseconds within which that part of all launch calls returned: the upper end of their step."""
    counts = [sum(log.launches[i] for log in logs) for i in range(_OCTAVES * _STEPS)]
    wanted, seen = part * sum(counts), 0
    for i, count in enumerate(counts):
        seen += count
        if count and seen >= wanted:
            octave, step = divmod(i, _STEPS)
            return float(2**octave) * (1 + (step + 1) / _STEPS)
    return 0.0
