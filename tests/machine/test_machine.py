"""On a whole machine, with systemd as init and as manager of cgroups: one test for each of its checks."""

from __future__ import annotations

from typing import Any

import pytest

from . import checks

# The first one waits for the machine, and perhaps for its packages.
pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("check", [check.__name__ for check in checks.CHECKS])
def test_on_a_machine_with_systemd(told: dict[str, dict[str, Any]], check: str) -> None:
    if check not in told:
        pytest.fail(f"the machine was off before this check; the last that ran is {list(told)[-1]}")
    if not told[check]["ok"]:
        pytest.fail(told[check]["transcript"], pytrace=False)
