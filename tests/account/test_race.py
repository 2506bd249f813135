"""Many processes and one limit: they never pass it, no allocation that fits is refused, a charge is cheap."""

from __future__ import annotations

import json
import subprocess

import pytest

from support import MIB

from .accounts import Account, Make


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
def test_an_allocation_that_fits_is_never_refused(account: Make, processes: int) -> None:
    seen = race(account(processes * MIB), "fits", processes, MIB)
    assert seen["refused"] == 0
    assert 0 < seen["most"] <= seen["limit"]
    assert seen["left"] == 0
    assert seen["rounds"] > 1000


@pytest.mark.parametrize("processes", [2, 16])
def test_only_one_process_gets_the_last_byte(account: Make, processes: int) -> None:
    seen = race(account(MIB + 512), "tight", processes, MIB // 2)
    assert 0.9 * MIB < seen["most"] <= seen["limit"] == MIB + 512
    assert seen["left"] == 0
    assert seen["rounds"] > 100


@pytest.mark.parametrize("processes", [3, 12])
def test_an_allocation_that_fits_succeeds_while_others_are_killed(account: Make, processes: int) -> None:
    """This holds too while a third process cleans up after the dead one."""
    seen = race(account(processes * MIB), "kills", processes, MIB, 30_000)
    assert seen["kills"] == 100
    assert seen["refused"] == 0
    assert seen["most"] <= seen["limit"]
    assert seen["left"] == 0
