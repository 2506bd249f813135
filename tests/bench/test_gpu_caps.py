"""How bench/gpu/caps.py judges the work of loads, on made-up logs."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import caps
import card
import load
import pytest
import shares
from nvml import Sample, Use
from phases import Asked
from runner import Runner
from shares import Alone

from .scripts import RECORD, failures

#: A unit takes 1.6 ms at 1500 MHz, at the power limit, and 1.4 ms at 2000 MHz: not in proportion.
SLOW, FAST = (1500.0, 0.0016), (2000.0, 0.0014)
LIMITED = Alone(625.0, 1500.0, (SLOW, (1800.0, 0.0015), FAST))


def paced(unit: float, cap: float, seconds: float = 8.0) -> list[tuple[float, int]]:
    """One unit at a time, with a pause after each, so that the device is busy for `cap` % of the time."""
    each = 100 * unit / cap
    return [(each * i + unit, i + 1) for i in range(int(seconds / each))]


class Loaded:
    """A load that completes units at these rates, one after another for two seconds."""

    pid = 1

    def __init__(self, *rates: float) -> None:
        self._rates = rates

    def run(self) -> None:
        pass

    pause = run

    def done(self, since: float) -> list[tuple[float, int]]:
        times, units = [since], [0.0]
        for rate in self._rates:
            for _ in range(200):
                times.append(times[-1] + 0.01)
                units.append(units[-1] + rate * 0.01)
        return [(time, round(each)) for time, each in zip(times, units, strict=True)]


def judged(
    monkeypatch: pytest.MonkeyPatch,
    clock: float,
    *rates: Sequence[float],
    wanted: Sequence[int] = (50,),
    alone: Alone = LIMITED,
    native: Sequence[float] = (),
) -> caps.Session:
    """One phase of loads with these caps and rates, at this clock."""
    monkeypatch.setattr("caps.time.sleep", lambda seconds: None)
    monkeypatch.setattr(card, "_failed", [])
    options: Any = SimpleNamespace(loads="spin", seconds=4.0, tiny=False)
    clocks: Any = SimpleNamespace(mean=lambda since: clock)
    use: Any = SimpleNamespace(mean=lambda since, until, pid=None: 49.5 if pid is None else 51.0)
    session = caps.Session(RECORD, options, clocks, use)
    session.alone["spin"] = alone
    if native:
        session.natives[("spin",) * len(native)] = list(native), sum(native)
    asked = []
    for cap, each in zip(wanted, rates, strict=True):
        group: Any = SimpleNamespace(place=None, cap=cap, loads={"spin": Loaded(*each)})
        asked.append(Asked(group, "spin", cap))
    session.judge("phase", asked)
    return session


# ---- one alone ----


def test_a_share_is_of_the_devices_time_though_work_does_not_follow_the_clock() -> None:
    """Busy for half of the time at full clock: 57 % of the host's work, and 43 % scaled by the clock."""
    done = paced(0.0014, 50)
    found = shares.outcome(done, 2.0, 4.0, LIMITED.unit(2000), (50, 50))
    assert found.got == pytest.approx(50, abs=0.1) and found.worst < 0.1
    work = shares.share(done, 2.0, 6.0, 1 / LIMITED.rate)
    assert work == pytest.approx(57.1, abs=0.1) and work * 1500 / 2000 == pytest.approx(42.9, abs=0.1)


@pytest.mark.parametrize(
    ("clock", "taken"), [(1800, 1.5), (1650, 1.55), (1900, 1.45), (1400, 1.6), (2100, 1.4)]
)
def test_a_unit_takes_the_time_measured_at_its_clock(clock: float, taken: float) -> None:
    assert LIMITED.unit(clock) == pytest.approx(taken / 1e3)


def test_measurements_at_one_clock_are_averaged() -> None:
    assert Alone(1, 1980, ((1980, 1.0), (1979.2, 2.0), (1470, 9.0))).unit(1985) == pytest.approx(1.5)
    assert Alone(1, 0, ((0, 1.0), (0, 2.0))).unit(0) == pytest.approx(1.5)


def test_a_cap_that_holds_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(monkeypatch, 2000, [0.5 / 0.0014] * 5).failed == 0
    text = capsys.readouterr().out
    assert not failures(text)
    assert re.search(r"got 50.0 of 50.0 % of the device's time, 57.\d % of the host's work; 2000 MHz", text)
    assert "NVML: busy 49.5 %, processes 51;" in text


def test_a_cap_that_does_not_hold_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the host's work is less than half of the time at a higher clock."""
    assert judged(monkeypatch, 2000, [0.54 / 0.0014] * 5).failed == 1
    (said,) = failures(capsys.readouterr().out)
    assert said.startswith("FAILED: phase: mean error 4.0") and "worst 2-s window 4.0" in said
    assert judged(monkeypatch, 2000, [0.5 * 625] * 5).failed == 1


def test_a_share_that_swings_is_found_though_its_mean_is_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = [312.5, 500, 125, 312.5]
    assert judged(monkeypatch, 1500, rates).failed == 1
    assert "worst 2-s window 30" in failures(capsys.readouterr().out)[0]


def test_time_that_a_load_does_not_use_on_the_host_is_not_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """600 units of half a millisecond use 30 % of a card."""
    light = Alone(600.0, 1500.0, ((1500.0, 0.0005),))
    assert judged(monkeypatch, 1500, [600] * 5, alone=light).failed == 0
    assert judged(monkeypatch, 1500, [500] * 5, alone=light).failed == 1


def test_a_clock_without_a_measurement_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(monkeypatch, 1485, [0.5 / 0.0016] * 5)
    assert "not measured" not in capsys.readouterr().out
    judged(monkeypatch, 1400, [0.5 / 0.0016] * 5)
    assert "not measured: phase: the time of a unit near 1400 MHz" in capsys.readouterr().out


# ---- beside each other ----


def test_a_share_that_is_out_of_reach_without_caps_is_not_due(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = [[0.3 * 625] * 5, [0.62 * 625] * 5]
    how: dict[str, Any] = {"wanted": (30, 70)}
    assert judged(monkeypatch, 1500, *rates, native=(45, 45), **how).failed == 0
    text = capsys.readouterr().out
    assert (
        "got 30.0/62.0 of 27.0/63.0 to 30.0/70.0 % of" in text and "on the host 45.0/45.0 of the time" in text
    )
    assert "-2.2 % of its work lost" in text
    assert judged(monkeypatch, 1500, *rates, native=(49, 49), **how).failed == 1


def test_beside_another_load_none_has_more_than_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [[0.36 * 625] * 5, [0.6 * 625] * 5]
    assert judged(monkeypatch, 1500, *rates, wanted=(30, 70), native=(40, 40)).failed == 1


def test_a_load_that_waits_is_due_no_more_than_it_gets_without_a_cap() -> None:
    waits = Alone(700.0, 2000.0, ((2000.0, 0.0014),), waits=True)
    assert shares.due((30, 70), (LIMITED, waits), (55, 40)) == [
        pytest.approx((28.5, 30)),
        pytest.approx((40, 70)),
    ]
    assert shares.due((30, 70), (LIMITED, LIMITED), (55, 40))[1] == pytest.approx((66.5, 70))


def test_caps_that_leave_enough_for_all_loads_are_due_in_full() -> None:
    assert shares.due((25, 25), (LIMITED, LIMITED), (48, 48)) == [(25, 25), (25, 25)]


# ---- the logs of loads ----


class Device:
    """A load of units of 2 ms. The host takes `held` seconds to ask for each."""

    waits = False

    def __init__(self, held: float) -> None:
        self.now, self._free, self._held = 100.0, 0.0, held

    def unit(self) -> None:
        self.now += self._held
        self._free = max(self._free, self.now) + 0.002

    def event(self) -> Any:
        device = self

        class Event:
            at = 0.0

            def record(self) -> None:
                self.at = max(device.now, device._free)

            def query(self) -> bool:
                return self.at <= device.now

            def synchronize(self) -> None:
                device.now = max(device.now, self.at)

            def elapsed_time(self, later: Event) -> float:
                return (later.at - self.at) * 1000

        return Event()

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Journal:
    """Wants the same for that many lines."""

    def __init__(self, what: int, busy: int) -> None:
        self._what, self.busy, self.lines = what, busy, list[tuple[Any, ...]]()

    @property
    def wanted(self) -> int:
        return self._what if len(self.lines) < 400 else load.PAUSE

    def write(self, *words: Any) -> None:
        self.lines.append(words)


def written(monkeypatch: pytest.MonkeyPatch, what: int, held: float, busy: int = 0) -> list[tuple[Any, ...]]:
    device, journal = Device(held), Journal(what, busy)
    monkeypatch.setattr(load, "time", SimpleNamespace(monotonic=lambda: device.now, sleep=device.sleep))
    load.Ahead(device, journal).run(0)  # type: ignore[arg-type]
    return journal.lines


def test_queued_units_show_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, units, seconds, of = written(monkeypatch, load.RUN, held=0.0005)[-1]
    assert of > 0.9 * units and seconds / of == pytest.approx(0.002)


def test_held_back_units_do_not_show_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cap lets one unit go at a time, after a pause. The pause lies between two events, too."""
    (_, first, before, *_), *_, (_, last, units, seconds, of) = written(monkeypatch, load.RUN, held=0.004)
    assert of == seconds == 0
    assert (last - first) / (units - before) == pytest.approx(0.004)


@pytest.mark.parametrize("busy", [90, 50])
def test_bursts_keep_the_device_as_busy_as_they_should(monkeypatch: pytest.MonkeyPatch, busy: int) -> None:
    (_, first, before, *_), *_, (_, last, units, seconds, of) = written(
        monkeypatch, load.BURSTS, 0.0001, busy
    )
    assert 100 * 0.002 * (units - before) / (last - first) == pytest.approx(busy, abs=3)
    assert of == pytest.approx(0.75 * units, rel=0.02) and seconds / of == pytest.approx(0.002)


def test_the_time_of_a_unit_is_read_from_a_part_of_the_log(tmp_path: Path) -> None:
    place: Any = SimpleNamespace(shared=tmp_path, kind="native", machine=SimpleNamespace(python="python3"))
    place.start = lambda words: SimpleNamespace(pid=1)
    runner = Runner(place, "matmul")
    (control,) = tmp_path.glob("*.control")
    runner.bursts(70)
    assert control.read_bytes() == b"bF"
    control.with_suffix(".log").write_text(
        "ready\non 1.0\ndone 2.0 10 0.010 10\ndone 3.0 20 0.030 20\noff 3.1\non 4.0\ndone 5.0 30 0.030 20\n"
    )
    assert runner.unit_between(1.5, 2.5) == pytest.approx(0.001)
    assert runner.unit_between(2.5, 3.5) == pytest.approx(0.002)
    assert runner.unit_between(3.5, 5.5) is None
    assert runner.done(3.5) == [(3.0, 20), (4.0, 20), (5.0, 30)]


def test_the_drivers_samples_of_a_period_are_reported() -> None:
    now = int(time.time() * 1e6)
    asked: list[int] = []

    def busy(since: int) -> list[tuple[int, int]]:
        asked.append(since)
        return [(now + len(asked) * 1_000_000, 10 * len(asked))]

    nvml: Any = SimpleNamespace(
        busy=busy, utilisation=lambda since: None if asked[1:] else [Sample(7, now + 1_000_000, 30)]
    )
    use = Use(nvml)
    for _ in range(3):
        use._look()
    assert asked[1:] == [now + 1_000_000, now + 2_000_000]
    assert use.mean(now / 1e6 + 0.5, now / 1e6 + 2.5) == 15
    assert use.mean(now / 1e6, now / 1e6 + 9, 7) == 30 and use.mean(now / 1e6, now / 1e6 + 9, 8) is None
