"""A driver that does not answer one start does not stop the others for ever."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.errors import DeviceError
from xpu_runtime.vendors import discovery


def test_a_wait_for_anothers_question_to_the_driver_ends_and_names_the_process(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_ASKED_BY_ANOTHER_S", 0.2)
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); input()"
    command: list[str | Path] = [sys.executable, "-c", code, run_dir / "inventory.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        started = time.monotonic()
        try:
            with pytest.raises(DeviceError, match=f"process {process.pid} .* has been asking the driver"):
                discovery.load(DEFAULTS)
            assert time.monotonic() - started < 30
        finally:
            process.communicate(b"\n")
