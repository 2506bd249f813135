"""How far the device's clock is from the host's, as the pacer takes it from probes."""

from __future__ import annotations

import ctypes
import random
import subprocess

import pytest

from support import REPOSITORY

SOURCE = REPOSITORY / "native/interposer/nvidia/cuda/pacing/clocks.c"
US, MS, S = 1000, 1_000_000, 1_000_000_000
#: From this time on timeline.c counts a wait.
WAITED = 30 * US


class Clocks(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_int64), ("at", ctypes.c_int64))


class Device:
    """Probes on a device whose clock began at 5 s of ours, and is `ppm` faster."""

    def __init__(self, library: ctypes.CDLL, ppm: float) -> None:
        self._library = library
        self._clocks = Clocks()
        self._ppm = ppm
        self.jumped = 0
        self._random = random.Random(1)

    def probe(self, at: int, delay: int) -> int:
        """A probe that takes `delay` ns, and its result."""
        delay += self._random.randrange(2 * US)
        completed = round((at + delay - 5 * S) * (1 + self._ppm / 1e6)) + self.jumped
        return int(
            self._library.xpu_clocks_compare(
                ctypes.byref(self._clocks), ctypes.c_int64(at), ctypes.c_int64(completed)
            )
        )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = tmp_path_factory.mktemp("clocks") / "clocks.so"
    subprocess.run(
        ["gcc", "-std=c11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", made, SOURCE],
        check=True,
        timeout=60,
    )
    found = ctypes.CDLL(str(made))
    found.xpu_clocks_compare.restype = ctypes.c_int64
    return found


@pytest.mark.parametrize("ppm", [-600, -50, 0, 50, 600])
def test_waiting_is_told_from_working_however_the_clocks_part(library: ctypes.CDLL, ppm: int) -> None:
    device = Device(library, ppm)
    wrong = 0
    for at in range(6 * S, 16 * S, MS):
        # Its turn is a millisecond of each ten.
        place = at // MS % 10
        delay = 0 if place == 0 else (10 - place) * MS
        wrong += (device.probe(at, delay) > WAITED) != (delay > 0)
    assert wrong <= 1


def test_after_a_second_of_anothers_turn_the_next_probe_tells_the_truth(library: ctypes.CDLL) -> None:
    device = Device(library, 100)
    for at in range(6 * S, 7 * S, MS):
        assert device.probe(at, 0) <= WAITED
    for at in range(7 * S, 8 * S, 10 * MS):
        assert device.probe(at, 8 * S - at) > WAITED
    assert device.probe(8 * S, 0) <= WAITED
    assert device.probe(8 * S + MS, MS) > WAITED


def test_a_clock_that_jumps_is_followed_within_a_second(library: ctypes.CDLL) -> None:
    """Until then all probes seem to have waited, and their use is not charged."""
    device = Device(library, 0)
    for at in range(6 * S, 7 * S, MS):
        device.probe(at, 0)
    for begin, jump in ((7 * S, -800 * US), (8 * S, 800 * US)):
        device.jumped += jump
        found = [device.probe(at, 0) > WAITED for at in range(begin, begin + S, MS)]
        assert not any(found[800:])
