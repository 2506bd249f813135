"""The runtime API over the interposers, with the real libcudart of CUDA 11, 12 and 13, shared and static.

The program is that of sim/tests/cudart. It compares the memory that it takes with what the card reports. Here
the card is a slice.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support import GIB, MIB
from support.cudart import CHECKS, Runtime

from ..sandboxes import Make

ALL = [check for check in CHECKS if check != "devices"]


@pytest.fixture(scope="session")
def native(native_with_cudart: Path) -> Path:
    """A simulator that answers the runtime's question whether its driver is NVIDIA's."""
    return native_with_cudart


def _ran_out(check: str) -> str:
    """The expected stderr of a check: the limit's line, if the check asks for more memory than there is."""
    if not check.endswith("too-much"):
        return ""
    limit = "xpu: out of memory by this container's limit, not the card's"
    return limit + r": \d+ MiB requested, 1024 MiB free of the 1024 MiB of its slice of GPU 0 \(.*\)\n"


def _is_right(done: subprocess.CompletedProcess[str], check: str) -> None:
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["ok"]), done.stdout + done.stderr
    assert re.fullmatch(_ran_out(check), done.stderr), done.stderr


@pytest.mark.parametrize("check", ALL)
def test_a_program_of_the_runtime_api_runs_in_a_slice(
    sandbox: Make, runtime_program: Path, check: str
) -> None:
    one = sandbox(GIB)
    _is_right(one.run([str(runtime_program), check]), check)
    assert one.usage() == []


def test_it_sees_a_card_of_the_slices_size(sandbox: Make, runtime_program: Path) -> None:
    done = sandbox(900 * MIB).run([str(runtime_program), "devices"])
    assert done.stdout == f"Tesla T4 {900 * MIB}\nok\n", done.stderr


def test_each_of_two_cards_has_its_own(sandbox: Make, runtime_program: Path) -> None:
    done = sandbox(GIB, 3 * GIB, topology="2xT4-R580").run([str(runtime_program), "devices"])
    assert done.stdout == f"Tesla T4 {GIB}\nTesla T4 {3 * GIB}\nok\n", done.stderr


@pytest.mark.parametrize("driver", ["R470", "R535"])
@pytest.mark.parametrize("check", ["devices", "linear", "too-much", "pools"])
def test_it_runs_on_older_drivers_too(
    sandbox: Make, runtime: Runtime, runtime_program: Path, driver: str, check: str
) -> None:
    newest = {"R470": 11, "R535": 12}[driver]
    done = sandbox(GIB, topology=f"1xT4-{driver}").run([str(runtime_program), check])
    if runtime.major > newest:
        assert ": 35, not 0" in done.stdout  # cudaErrorInsufficientDriver
    else:
        _is_right(done, check)
