"""A context's use of a device's time, as the pacer counts it from markers and probes.

The device here is a few lines of Python: contexts have slices in turn, and some leave parts of theirs unused.
Tests on the simulated card show that the pacer reads a driver correctly.
"""

from __future__ import annotations

import ctypes
import random
import subprocess
from collections.abc import Iterator

import pytest

from support import REPOSITORY

SOURCE = REPOSITORY / "native/interposer/nvidia/cuda/pacing/measure.c"
US, MS, S = 1000, 1_000_000, 1_000_000_000
SLICE = 1024 * US


class State(ctypes.Structure):
    _fields_ = (
        ("at", ctypes.c_int64),
        ("active", ctypes.c_uint),
        ("away_until", ctypes.c_int64),
        ("unprobed", ctypes.c_uint64),
        ("used", ctypes.c_double),
        ("waited", ctypes.c_double),
        ("used_at_begin", ctypes.c_double),
        ("counted", ctypes.c_double),
        ("more", ctypes.c_double),
        ("scheduled", ctypes.c_double),
        ("used_each", ctypes.c_double),
        ("passed_each", ctypes.c_double),
    )


class Measure:
    """A measurement, from time 0 on."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.state = State()
        library.xpu_measure_used.restype = ctypes.c_double
        library.xpu_measure_reset(ctypes.byref(self.state), ctypes.c_int64(0))

    def begins(self, at: int) -> None:
        self._library.xpu_measure_begins(ctypes.byref(self.state), ctypes.c_int64(at))

    def ends(self, at: int, work: int = 0) -> None:
        self._library.xpu_measure_ends(ctypes.byref(self.state), ctypes.c_int64(at), ctypes.c_double(work))

    def probe(self, at: int, waited_until: int = 0) -> None:
        self._library.xpu_measure_probe(
            ctypes.byref(self.state), ctypes.c_int64(at), ctypes.c_int64(waited_until)
        )

    def reaches(self, at: int) -> None:
        self._library.xpu_measure_reaches(ctypes.byref(self.state), ctypes.c_int64(at))

    def used(self) -> float:
        return float(self._library.xpu_measure_used(ctypes.byref(self.state)))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = tmp_path_factory.mktemp("measure") / "measure.so"
    subprocess.run(
        ["gcc", "-std=c11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", made, SOURCE],
        check=True,
        timeout=60,
    )
    return ctypes.CDLL(str(made))


@pytest.fixture
def measure(library: ctypes.CDLL) -> Measure:
    return Measure(library)


def test_alone_all_the_time_with_work_is_its_own(measure: Measure) -> None:
    measure.begins(10 * MS)
    for at in range(11, 40):
        measure.probe(at * MS)
    measure.ends(40 * MS)
    measure.probe(90 * MS)
    assert measure.used() == 30 * MS


def test_work_of_several_streams_at_a_time_counts_once(measure: Measure) -> None:
    measure.begins(0)
    measure.begins(2 * MS)
    measure.ends(5 * MS)
    measure.begins(5 * MS)
    measure.ends(8 * MS)
    measure.ends(9 * MS)
    assert measure.used() == 9 * MS
    assert measure.state.used_each == 2 * MS + 3 * MS / 2 + 3 * MS / 2 + 1 * MS


def test_time_before_a_probe_that_waited_was_another_s(measure: Measure) -> None:
    measure.begins(0)
    measure.probe(1 * MS)
    measure.probe(3 * MS, 4 * MS)
    measure.probe(5 * MS)
    assert (measure.used(), measure.state.waited) == (3 * MS, 2 * MS)


def test_after_the_last_probe_it_is_known_how_long_that_waited(measure: Measure) -> None:
    measure.begins(0)
    measure.probe(2 * MS, 3 * MS)
    measure.ends(int(3.2 * MS))
    assert (measure.used(), measure.state.waited) == (0.2 * MS, 3 * MS)


def test_work_that_is_shorter_than_a_slice_is_its_own_without_a_probe(measure: Measure) -> None:
    for number in range(10):
        measure.begins(number * 10 * MS)
        measure.ends(number * 10 * MS + 300 * US)
    assert measure.used() == 3 * MS


def test_late_markers_count_as_of_now_and_take_nothing_back(measure: Measure) -> None:
    measure.begins(0)
    measure.probe(5 * MS)
    measure.ends(3 * MS)
    assert measure.used() == 5 * MS
    measure.ends(6 * MS)  # more ends than begins: the begin of a stream was missed
    assert (measure.used(), measure.state.active) == (5 * MS, 0)


def slices(others: int, until: int, part: float, noise: random.Random) -> Iterator[tuple[int, int, bool]]:
    """(from, to, own): the owner of the device over time, with `others` that each want a part of their
    slices."""
    at = 0
    while at < until:
        yield at, at + SLICE, True
        at += SLICE
        for _ in range(others):
            length = SLICE if noise.random() < part else int(SLICE * noise.random() * 0.3) + 1
            yield at, at + length, False
            at += length


@pytest.mark.parametrize("others", [0, 1, 3, 9])
@pytest.mark.parametrize("part", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("seed", range(3))
def test_with_neighbours_it_is_found_within_a_hundredth(
    measure: Measure, others: int, part: float, seed: int
) -> None:
    noise = random.Random(seed)
    whole = list(slices(others, 2 * S, part, noise))
    end = whole[-1][1]
    truth = sum(to - begin for begin, to, own in whole if own)
    measure.begins(0)
    at, number = 0, 0
    while at < end:
        while whole[number][1] <= at:
            number += 1
        turns = (begin for begin, _, own in whole[number:] if own)
        measure.probe(at, 0 if whole[number][2] else next(turns, end))
        at += int(600 * US * (0.5 + noise.random()))
    measure.reaches(end)
    assert measure.used() == pytest.approx(truth, abs=0.01 * end)


@pytest.mark.parametrize("apart", [0.6, 5, 30])
@pytest.mark.parametrize("seed", range(3))
def test_short_work_counts_as_it_is_though_probes_are_rare(measure: Measure, seed: int, apart: float) -> None:
    """Work of 0.2 ms waits for others' turns, and on a busy host few of these waits meet a probe."""
    noise, work, truth, at, before = random.Random(seed), int(0.2 * MS), 0, 0, 0.0
    probe = noise.expovariate(1) * apart * MS
    while truth < 2 * S:
        if truth < 1 * S:
            before = measure.used()
        turn = at + noise.randrange(int(1.2 * MS))
        end = turn + work
        measure.begins(at)
        while probe < end:
            if probe >= at:
                measure.probe(int(probe), 0 if probe >= turn else turn)
            probe += noise.expovariate(1) * apart * MS
        measure.ends(end, work)
        truth += work
        at = end + noise.randrange(1 * MS)
    assert measure.used() - before == pytest.approx(1 * S, rel=0.3)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_makes_it_more_than_the_time_that_passed(measure: Measure, seed: int) -> None:
    noise = random.Random(seed)
    at = 0
    for _ in range(500):
        at += noise.randrange(-2 * MS, 4 * MS)
        act = noise.choice((measure.begins, measure.ends, measure.reaches, measure.probe))
        if act == measure.probe:
            measure.probe(at, noise.choice((0, at + noise.randrange(3 * MS))))
        else:
            act(at)
        assert 0 <= measure.used() <= max(0, measure.state.at) + 1
