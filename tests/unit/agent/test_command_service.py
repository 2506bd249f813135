"""The bounds of a command that the agent runs for a member of the group `xpu`."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from xpu_runtime.agent import command_service


def _running(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def test_the_output_of_a_command_and_its_status_are_returned() -> None:
    with _running(
        "import sys; print('x' * 200_000); print('wrong', file=sys.stderr); sys.exit(3)"
    ) as command:
        assert command_service._to_its_end(command) == (3, b"x" * 200_000 + b"\n", b"wrong\n")


def test_one_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_service, "_COMMAND_S", 0.5)
    began = time.monotonic()
    with _running("import time; print(1, flush=True); time.sleep(1000)") as command:
        with pytest.raises(command_service._TooMuchError, match="took more than"):
            command_service._to_its_end(command)
        command.kill()
    assert time.monotonic() - began < 20


def test_one_that_never_ends_printing_is_given_up() -> None:
    with _running("while True: print('x' * 60_000)") as command:
        with pytest.raises(command_service._TooMuchError, match="tells more than 16 MiB"):
            command_service._to_its_end(command)
        command.kill()
