"""A container's use of a device: read from its own page, and bounded by the passed time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xpu_runtime.cli.ps import ps
from xpu_runtime.limits import pages
from xpu_runtime.limits.pages import Compute
from xpu_runtime.limits.sharing import WINDOW_S, Got, share

UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
SECOND = 10**9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pages.create(str(tmp_path), "c1", (pages.Entry(UUID, None, cores=30), pages.Entry(UUID, None, cores=50)))
    return tmp_path


def write(folder: Path, device: int, **values: int) -> None:
    """Writes fields of struct xpu_usage_compute."""
    places = {"paid": 0, "paid_cap": 8, "used": 16, "waits": 24, "guesses": 32, "held": 40}
    with (folder / pages.USAGE).open("r+b") as page:
        for name, value in values.items():
            page.seek(2048 + 128 * device + places[name])
            page.write(value.to_bytes(8, "little"))


def test_each_devices_counters_are_read(folder: Path) -> None:
    write(folder, 0, paid=1, paid_cap=2, used=3, waits=4, guesses=5, held=6)
    write(folder, 1, used=7)
    assert pages.compute(str(folder), 2) == [Compute(3, 4, 5, 6, 1), Compute(7, 0, 0, 0)]


@pytest.mark.parametrize(("size", "count"), [(0, 0), (2048, 0), (2048 + 127, 0), (2048 + 128, 1)])
def test_a_page_that_is_cut_has_its_remaining_values(folder: Path, size: int, count: int) -> None:
    os.truncate(folder / pages.USAGE, size)
    assert len(pages.compute(str(folder), 2)) == count


def test_a_page_of_another_abi_is_not_read(folder: Path) -> None:
    with (folder / pages.QUOTA).open("r+b") as page:
        page.seek(8)
        page.write((1).to_bytes(4, "little"))
    with pytest.raises(OSError, match="another version of this runtime"):
        pages.compute(str(folder), 2)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (Compute(SECOND // 10 * 3, 0, 0), Got(30.0)),
        (Compute(0, 9, 0), Got(0.0)),
        # Values that only a lying container has.
        (Compute((1 << 64) - 1, 0, 0), Got(100.0)),
        (Compute(SECOND // 10 * 3, 0, 1), Got(None, unmeasured=True)),
    ],
)
def test_a_share_is_the_used_part_of_the_time_and_never_more(after: Compute, expected: Got) -> None:
    assert share(Compute(0, 0, 0), after, SECOND) == expected


def test_time_that_is_taken_back_is_no_share() -> None:
    assert share(Compute(500, 0, 0), Compute(400, 0, 0), SECOND) == Got(0.0)
    assert share(Compute(0, 0, 0), Compute(400, 0, 0), 0) == Got(None)


def test_people_are_told_of_which_time_xpu_ps_tells() -> None:
    assert f"in the {WINDOW_S} seconds of this command" in " ".join((ps.help or "").split())
