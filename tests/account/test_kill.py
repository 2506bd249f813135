"""`kill -9` at any instruction of an operation on the account: others find the account exact at once."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support import MIB

from .accounts import Account

X86_64 = platform.machine() == "x86_64"
pytestmark = pytest.mark.skipif(not X86_64, reason="the breakpoints of stepping.c are x86-64's")

HERE = Path(__file__).parent
STEPPING = str(HERE / "stepping.c")
#: The names in step.c's table.
SCENARIOS = re.findall(r'^    \{"([a-z-]+)", ', (HERE / "step.c").read_text(), re.MULTILINE)
assert len(SCENARIOS) == 17, SCENARIOS  # a name that the pattern misses would be left out silently


def answer(program: Path, *arguments: str) -> list[int]:
    """The numbers that the program prints as the first process of a PID namespace. It must find no error."""
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    ran = subprocess.run([*alone, program, *arguments], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return [int(word) for word in ran.stdout.split()]


@pytest.mark.parametrize("way", ["kill", "overtaken", "stalled"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_at_every_instruction(account: Callable[..., Account], scenario: str, way: str) -> None:
    here = account(MIB, slots=8)
    program = here.place.build("step.c", "-static", STEPPING, name="step")
    (met,) = answer(program, scenario, way)
    assert met > 100


@pytest.fixture
def vfork(account: Callable[..., Account]) -> Path:
    """vfork.c. Its threads wait 0.6 s for the holder of the lock, not half a minute."""
    here = account(MIB, slots=8)
    return here.place.build("vfork.c", "-static", STEPPING, "-DXPU_WAIT_MS=20", name="vfork")


def test_a_vforked_child_killed_in_a_charge_harms_its_parent_alone(vfork: Path) -> None:
    """Calls of the parent are refused at once, those of others succeed at once. Its end gives all back."""
    instructions, left_locked = answer(vfork, "killed")
    assert instructions > 100
    assert 0 < left_locked < instructions


def test_another_thread_of_a_vforked_childs_parent_is_refused_and_does_not_hang(vfork: Path) -> None:
    assert answer(vfork, "refused") == []


def test_a_thread_waits_for_a_slow_holder_of_the_lock(vfork: Path) -> None:
    assert answer(vfork, "slow") == []
