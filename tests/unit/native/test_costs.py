"""Learnt costs of launches, by function and grid."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from support import REPOSITORY

NATIVE = REPOSITORY / "native"
NVIDIA = NATIVE / "interposer/nvidia"
UNKNOWN = 1_000_000


class Costs:
    """A table of its own."""

    def __init__(self, folder: Path) -> None:
        made = folder / "costs.so"
        includes = [f"-I{NATIVE}", f"-I{NVIDIA}"]
        flags = ["-std=c11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC"]
        source = NVIDIA / "cuda/pacing/costs.c"
        subprocess.run(["gcc", *flags, *includes, "-o", made, source], check=True, timeout=60)
        self._library = ctypes.CDLL(str(made))
        self._library.xpu_cost_of.restype = ctypes.c_uint16
        self._library.xpu_cost_ns.restype = ctypes.c_uint64
        self._library.xpu_cost_is_due.restype = ctypes.c_bool

    def ns(self, function: int, shape: int = 1) -> int:
        known = ctypes.c_bool()
        found = int(self._library.xpu_cost_ns(self._of(function, shape), ctypes.byref(known)))
        assert known.value == (found != UNKNOWN)
        return found

    def learn(self, function: int, ns: float, shape: int = 1, tick: int = 1) -> None:
        cost = self._of(function, shape)
        self._library.xpu_cost_marked(cost, ctypes.c_uint32(tick))
        self._library.xpu_cost_learn(cost, ctypes.c_double(ns), ctypes.c_bool(True))

    def is_due(self, function: int, tick: int) -> bool:
        return bool(self._library.xpu_cost_is_due(self._of(function, 1), ctypes.c_uint32(tick)))

    def _of(self, function: int, shape: int) -> ctypes.c_uint16:
        return ctypes.c_uint16(self._library.xpu_cost_of(ctypes.c_void_p(function), ctypes.c_uint32(shape)))


@pytest.fixture
def costs(tmp_path: Path) -> Costs:
    return Costs(tmp_path)


def test_each_function_and_grid_has_its_own(costs: Costs) -> None:
    assert costs.ns(0x1000) == UNKNOWN
    costs.learn(0x1000, 5_000)
    costs.learn(0x1000, 90_000, shape=2)
    costs.learn(0x2000, 70_000)
    assert (costs.ns(0x1000), costs.ns(0x1000, 2), costs.ns(0x2000)) == (5_000, 90_000, 70_000)


def test_a_thousand_kinds_are_known_at_once(costs: Costs) -> None:
    kinds = [(0x7F00_0000_0000 + 64 * (number % 250), number // 250 * 961) for number in range(1000)]
    for number, (function, shape) in enumerate(kinds):
        costs.learn(function, 1_000 + number, shape)
    assert sum(costs.ns(function, shape) == UNKNOWN for function, shape in kinds) == 0


def test_where_there_are_too_many_the_one_measured_longest_ago_is_forgotten(costs: Costs) -> None:
    for number in range(20_000):
        costs.learn(64 * number + 64, 2_000, tick=number)
        costs.learn(1 << 40, 3_000, tick=number)
    assert costs.ns(1 << 40) == 3_000


def test_it_is_to_be_measured_again_after_a_while(costs: Costs) -> None:
    costs.learn(0x1000, 5_000, tick=0xFFFFFFF0)
    assert not costs.is_due(0x1000, 0xFFFFFFFF)
    assert costs.is_due(0x1000, 0x10)
