"""The check of the model: what a limiter must not charge on a shared card, and what it may.

The time between two events of a program's own work also counts the slices in which others had the card. A
limiter that charges it gives each less than was asked for, and leaves the card idle. On a simulated device
where that came out right, nothing that is said of limits would mean anything. The limiter here is a part of
the load (shares.c).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.simulation import compile_program
from xpu_simulator.simulator import SimState

Up = Callable[..., SimState]
#: Asked for, and what comes out where elapsed time is charged, and own time; percent of the device's time.
CASES = [
    ((30, 70), "elapsed", ((12, 19), (46, 60))),
    ((30, 70), "own", ((25, 34), (60, 74))),
    ((25, 25, 25, 25), "elapsed", ((5, 10),) * 4),
    ((25, 25, 25, 25), "own", ((18, 30),) * 4),
]


@pytest.mark.alone  # shares of time are measured
@pytest.mark.parametrize(("shares", "charge", "ranges"), CASES)
def test_elapsed_time_is_not_a_programs_own(
    up: Up,
    tmp_path: Path,
    shares: tuple[int, ...],
    charge: str,
    ranges: tuple[tuple[int, int], ...],
) -> None:
    program = compile_program(up("1xT4"), Path(__file__).with_name("shares.c"), tmp_path)
    loads = [
        subprocess.Popen(
            [program, tmp_path / "common", str(who), str(len(shares)), str(share), charge, "1.8"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for who, share in enumerate(shares)
    ]
    got = [float(load.communicate(timeout=60)[0]) for load in loads]
    assert all(least <= one <= most for one, (least, most) in zip(got, ranges, strict=True)), got


def test_nothing_is_done_before_it_was_given_to_the_device(up: Up, tmp_path: Path) -> None:
    # A limiter that measures by events reads an early one as the device being late from then on.
    program = compile_program(up("1xT4"), Path(__file__).with_name("records.c"), tmp_path)
    done = subprocess.run([program, "3"], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) < 5  # us; a float of ms has less than one
