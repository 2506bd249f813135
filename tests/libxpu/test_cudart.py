"""The runtime API over the wrappers, with the real libcudart of CUDA 11, 12 and 13, shared and static.

The programs are those of tests/cudart, which compare what they take with what the card tells: here the card
is a slice.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cudart.conftest import Runtime, native, program, runtime  # noqa: F401  (fixtures)
from cudart.test_runtime import CHECKS

from .conftest import GIB, MIB, Cell

Cells = Callable[..., Cell]
ALL = [check for check in CHECKS if check != "devices"]


def _ran_out(check: str) -> str:
    """What is on stderr after a check: that it was the limit, where it asks for more than there is."""
    if not check.endswith("too-much"):
        return ""
    limit = "xpu: out of memory by this container's limit, not the card's"
    return limit + r": \d+ MiB asked, 1024 MiB free of the 1024 MiB of its slice of GPU 0 \(.*\)\n"


def _is_right(done: subprocess.CompletedProcess[str], check: str) -> None:
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["ok"]), done.stdout + done.stderr
    assert re.fullmatch(_ran_out(check), done.stderr), done.stderr


@pytest.mark.parametrize("check", ALL)
def test_a_program_of_the_runtime_api_runs_in_a_slice(cell: Cells, program: Path, check: str) -> None:  # noqa: F811
    one = cell(GIB)
    _is_right(one.run([str(program), check]), check)
    assert one.usage() == []


def test_it_sees_a_card_of_the_slices_size(cell: Cells, program: Path) -> None:  # noqa: F811
    done = cell(900 * MIB).run([str(program), "devices"])
    assert done.stdout == f"Tesla T4 {900 * MIB}\nok\n", done.stderr


def test_each_of_two_cards_has_its_own(cell: Cells, program: Path) -> None:  # noqa: F811
    done = cell(GIB, 3 * GIB, topology="2xT4-R580").run([str(program), "devices"])
    assert done.stdout == f"Tesla T4 {GIB}\nTesla T4 {3 * GIB}\nok\n", done.stderr


@pytest.mark.parametrize("driver", ["R470", "R535"])
@pytest.mark.parametrize("check", ["devices", "linear", "too-much", "pools"])
def test_it_does_on_older_drivers_too(
    cell: Cells,
    runtime: Runtime,  # noqa: F811
    program: Path,  # noqa: F811
    driver: str,
    check: str,
) -> None:
    newest = {"R470": 11, "R535": 12}[driver]
    done = cell(GIB, topology=f"1xT4-{driver}").run([str(program), check])
    if runtime.major > newest:
        assert ": 35, not 0" in done.stdout  # cudaErrorInsufficientDriver
    else:
        _is_right(done, check)
