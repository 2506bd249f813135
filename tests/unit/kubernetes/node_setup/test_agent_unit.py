"""The commands to the node's systemd for the agent; tests/machine shows that it runs then."""

from __future__ import annotations

import pytest

from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.node_setup import agent_unit

_UNIT = "/opt/xpu/lib/systemd/system/xpu-agent.service"


class Systemctl:
    """It fails at the commands in `fails`."""

    def __init__(self, *fails: str) -> None:
        self.told: list[tuple[str, ...]] = []
        self.fails = fails

    def run(self, program: str, *words: str) -> str:
        assert program == "systemctl"
        self.told.append(words)
        if words[0] in self.fails:
            raise ConfigError(f"{words[0]} failed")
        return ""


def told(monkeypatch: pytest.MonkeyPatch, *fails: str, is_new: bool) -> list[tuple[str, ...]]:
    systemctl = Systemctl(*fails)
    monkeypatch.setattr(agent_unit, "has_systemd", lambda: True)
    monkeypatch.setattr(agent_unit, "run", systemctl.run)
    agent_unit.start("/opt/xpu", is_new=is_new)
    return systemctl.told


def test_a_new_tree_has_its_agent_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [("enable", _UNIT), ("restart", "xpu-agent.service")]
    assert told(monkeypatch, is_new=True) == wanted


def test_one_that_runs_goes_on_and_one_that_somebody_has_disabled_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = [("enable", _UNIT), ("start", "xpu-agent.service")]
    assert told(monkeypatch, is_new=False) == wanted


def test_one_that_cannot_run_is_said_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told(monkeypatch, "enable", is_new=True)
    assert "xpu-agent.service of the node does not run: starts take longer" in capfd.readouterr().err


def test_a_node_without_systemd_is_told_what_to_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent_unit, "has_systemd", lambda: False)
    agent_unit.start("/opt/xpu", is_new=True)
    assert "while nothing runs `/opt/xpu/bin/xpu agent`, starts take longer" in capfd.readouterr().err
