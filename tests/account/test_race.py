"""Many processes and one limit: it is never passed, what fits is never refused, and a charge costs little."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from support import MIB

from .accounts import Account

Make = Callable[..., Account]


def race(here: Account, mode: str, processes: int, size: int, milliseconds: int = 2000) -> dict[str, int]:
    program = here.place.build("race.c")
    ran = subprocess.run(
        [program, mode, str(processes), str(size), str(milliseconds)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    found: dict[str, int] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("processes", [2, 8, 32])
def test_one_that_fits_is_never_refused(account: Make, processes: int) -> None:
    seen = race(account(processes * MIB), "fits", processes, MIB)
    assert seen["refused"] == 0
    assert 0 < seen["most"] <= seen["limit"]
    assert seen["left"] == 0
    assert seen["rounds"] > 1000


@pytest.mark.parametrize("processes", [2, 16])
def test_the_last_byte_is_had_by_one(account: Make, processes: int) -> None:
    seen = race(account(MIB + 512), "tight", processes, MIB // 2)
    assert 0.9 * MIB < seen["most"] <= seen["limit"] == MIB + 512
    assert seen["left"] == 0
    assert seen["rounds"] > 100


@pytest.mark.parametrize("processes", [3, 12])
def test_what_fits_is_had_while_others_are_killed(account: Make, processes: int) -> None:
    """Also while a third process is at cleaning up after the dead one."""
    seen = race(account(processes * MIB), "kills", processes, MIB, 30_000)
    assert seen["kills"] == 100
    assert seen["refused"] == 0
    assert seen["most"] <= seen["limit"]
    assert seen["left"] == 0
