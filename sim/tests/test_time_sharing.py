"""The check of the model: the time that a limiter may charge on a shared card, and the time that it must not.

The time between two events of a program's own work also has the slices of others. A limiter that charges it
gives each program too little, and leaves the card idle. If this came out right on a simulated device, no
result about limits would mean anything. The limiter here is a part of the load (shares.c).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.simulation import Up, compile_program

#: The wanted share, and the results with elapsed time and with own time charged; percent of the device's
#: time.
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


def test_no_work_is_done_before_it_was_given_to_the_device(up: Up, tmp_path: Path) -> None:
    # A limiter that measures by events takes an early one as a device that is late from then on.
    program = compile_program(up("1xT4"), Path(__file__).with_name("records.c"), tmp_path)
    done = subprocess.run([program, "3"], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) < 5  # us; a float of ms has less than one
