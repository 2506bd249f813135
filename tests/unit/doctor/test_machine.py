"""Questions to the node, once for all areas."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from xpu_runtime.doctor import machine
from xpu_runtime.doctor.areas import driver
from xpu_runtime.finding import PROBLEM


def test_a_driver_that_hangs_is_a_problem(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_discover", lambda root, simulated: time.sleep(1000))
    monkeypatch.setattr(machine, "_DRIVER_S", 0.4)
    monkeypatch.setenv("XPU_CONFIG", str(run_dir / "none.yaml"))
    asked = machine.ask().replace(driver_root=str(run_dir))
    assert asked.grants == ()
    (finding,) = driver.look(asked)
    assert finding.state == PROBLEM
    assert "does not answer" in finding.text
    assert "nvidia-smi" in str(finding.todo)
