"""Checks on a whole machine, with systemd as init and cgroup manager: one test for each check."""

from __future__ import annotations

import pytest

from . import checks
from .machine import Output

# The first test waits for the machine, which takes two processors, and perhaps for its packages.
pytestmark = [pytest.mark.timeout(1200), pytest.mark.alone]


@pytest.mark.parametrize("check", [check.__name__ for check in checks.ALL])
def test_on_a_machine_with_systemd(output: Output, check: str) -> None:
    if check not in output.results:
        pytest.fail(f"the machine went off before it; it said last:\n{output.console}", pytrace=False)
    if not output.results[check]["ok"]:
        pytest.fail(output.results[check]["transcript"], pytrace=False)
