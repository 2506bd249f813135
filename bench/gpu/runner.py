"""One process of load.py in a place: its commands and its log."""

from __future__ import annotations

import bisect
import time
from collections.abc import Sequence

import places

#: Seconds until a load has stopped after the command: it waits for launched work, also under a cap of 5.
STOP_S = 20.0
UNIT_S = 30.0


class LoadError(Exception):
    """A load has ended, or does not obey. `status`: its exit status, or None."""

    def __init__(self, said: str, status: int | None, *, on_host: bool) -> None:
        super().__init__(said)
        self.status, self.on_host = status, on_host


class Runner:
    def __init__(self, place: places.Place, kind: str, more: Sequence[str] = ()) -> None:
        self.kind, self._place = kind, place
        name = f"{kind}-{time.monotonic_ns()}"
        self._control, self._log = (place.shared / f"{name}.{each}" for each in ("control", "log"))
        self._control.write_bytes(b"p\0")
        words = [place.machine.python, str(places.HERE / "load.py"), kind, name, str(place.shared), *more]
        self._child = place.start(words)
        self._read, self._times, self._units = 0, [0.0], [0]
        #: For each of these times: the device's time in all, and the number of units that it is for.
        self._known: list[tuple[float, int]] = [(0.0, 0)]
        self._off = self._ready = False
        self._unit: float | None = None

    def output(self) -> str:
        return self._child.output().strip()

    def wait_until_ready(self, until: float) -> None:
        self._wait(lambda: self._ready, until, "is not ready")

    def run(self) -> None:
        self._off = False
        self._tell(b"r")

    def bursts(self, busy: int) -> None:
        """Runs so that the device is busy for that many percent of the time."""
        self._off = False
        with self._control.open("r+b") as file:
            file.seek(1)
            file.write(bytes([busy]))
        self._tell(b"b")

    @property
    def pid(self) -> int:
        """Its pid on the host."""
        return self._child.pid

    def pause(self) -> None:
        """Waits until all of its launched work is completed."""
        self._tell(b"p")
        self._wait(lambda: self._off, time.monotonic() + STOP_S, "does not stop")

    def unit_seconds(self) -> float:
        """The device's time for a unit."""
        self._tell(b"c")
        self._wait(
            lambda: self._unit is not None, time.monotonic() + UNIT_S, "does not tell the time of a unit"
        )
        assert self._unit is not None
        return self._unit

    def done(self, since: float) -> list[tuple[float, int]]:
        """Times and the units completed by each, from that time on, with the one before it."""
        self._follow()
        first = max(0, bisect.bisect_right(self._times, since) - 1)
        return list(zip(self._times[first:], self._units[first:], strict=True))

    def unit_between(self, since: float, until: float) -> float | None:
        """The device's time for a unit between these times, of units that followed another; None without
        any."""
        self._follow()
        first, last = (max(0, bisect.bisect_right(self._times, each) - 1) for each in (since, until))
        (before, of_before), (after, of_after) = self._known[first], self._known[last]
        return (after - before) / (of_after - of_before) if of_after > of_before else None

    def _tell(self, what: bytes) -> None:
        with self._control.open("r+b") as file:
            file.write(what)

    def _wait(self, holds: object, until: float, what: str) -> None:
        assert callable(holds)
        while True:
            status = self._child.poll()
            self._follow()
            if holds():
                return
            if status is not None or time.monotonic() > until:
                ended = f"has ended ({status})" if status is not None else what
                said = (
                    f"{self.kind} in a place of the kind {self._place.kind} {ended}: {self.output()[-300:]}"
                )
                raise LoadError(" ".join(said.split()), status, on_host=self._place.kind == "native")
            time.sleep(0.005)

    def _follow(self) -> None:
        """Reads the lines that were written since."""
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._read += whole
        for line in data[:whole].decode().splitlines():
            word, *values = line.split()
            if word == "done":
                self._times.append(float(values[0]))
                self._units.append(int(values[1]))
                known = (float(values[2]), int(values[3])) if values[2:] else self._known[-1]
                self._known.append(known)
            elif word == "unit":
                self._unit = float(values[0])
            elif word == "on":
                # Nothing was completed in the pause before.
                self._times.append(float(values[0]))
                self._units.append(self._units[-1])
                self._known.append(self._known[-1])
            self._ready = self._ready or word == "ready"
            self._off = self._off or word == "off"
