"""`kill -9` at any instruction of what a process does with the account, and others find it exact at once."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from .account import Account, account, place
from .conftest import MACHINE, MIB

__all__ = ["account", "place"]

SCENARIOS = (
    "charge",
    "charge-first",
    "charge-too-much",
    "charge-anyway",
    "give-back",
    "move",
    "take",
    "clean",
    "clean-for-room",
    "clean-one-killed-in-a-charge",
    "clean-one-killed-cleaning",
    "give-back-exported",
    "give-back-imported",
    "give-back-imported-again",
)


@pytest.mark.skipif(MACHINE != "x86_64", reason="the breakpoints of account_step.c are x86-64's")
@pytest.mark.parametrize("way", ["kill", "overtaken", "stalled"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_at_every_instruction(account: Callable[..., Account], scenario: str, way: str) -> None:
    here = account(MIB, slots=8)
    program = here.place.build("account_step.c", "-static")
    ran = subprocess.run([program, scenario, way], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    instructions, met = map(int, ran.stdout.split())
    # Children differ from the traced one by the slot that they get, and so in a few rounds of a search.
    assert met > 0.6 * instructions > 60
