"""The finding about an interpreter that does not answer in time: on a busy node a sound one may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from xpu_runtime import paths
from xpu_runtime.doctor import interpreter
from xpu_runtime.doctor.areas import installation
from xpu_runtime.finding import PROBLEM, UNKNOWN, Finding


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter that never answers, which the hook starts."""
    program, hook = tmp_path / "python3", tmp_path / "hook"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    hook.write_text(f"#!{program}\n")
    monkeypatch.setattr(paths, "HOOK", str(hook))
    monkeypatch.setattr(interpreter, "_ANSWER_S", 0.1)
    monkeypatch.setattr(installation, "_IMPORT_S", 0.1)
    interpreter._answer.cache_clear()
    return program


def of_hook(found: list[Finding], program: Path) -> list[Finding]:
    return [each for each in found if str(program) in each.text]


def test_an_interpreter_that_takes_long_is_unknown_and_one_that_fails_is_broken(slow: Path) -> None:
    (told,) = of_hook(list(installation._parts()), slow)
    assert (told.state, "does not answer within" in told.text) == (UNKNOWN, True)
    interpreter._answer.cache_clear()
    slow.write_text("#!/bin/sh\necho no module named sqlite3 >&2; exit 1\n")
    (told,) = of_hook(list(installation._parts()), slow)
    assert told.state == PROBLEM


def test_modules_that_take_long_to_import_are_unknown_and_not_broken(
    slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "why_not", lambda python: "")
    (told,) = installation._modules()
    assert (told.state, "does not import" in told.text) == (UNKNOWN, True)
