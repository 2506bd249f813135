"""A process may fork before it uses the simulated driver, and while its threads do: no child hangs. The
libraries have threads of their own, and a child does not have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.simulation import assert_check
from xpu_simulator.simulator import SimState


@pytest.mark.parametrize("check", ["before-cuda", "before-nvml", "meanwhile", "threads"])
def test_a_forked_child_uses_the_card(up: Callable[..., SimState], tmp_path: Path, check: str) -> None:
    assert_check(up("1xT4"), Path(__file__).with_name("forks.c"), tmp_path, check)
