"""The commands to the node's systemd for the agent; tests/machine shows that it runs then."""

from __future__ import annotations

import pytest

from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.node_setup import agent_unit

_UNIT = "/opt/xpu/lib/systemd/system/xpu-agent.service"


def told(monkeypatch: pytest.MonkeyPatch, *, is_new: bool, fails: str = "") -> list[tuple[str, ...]]:
    """What systemctl is told; it fails at one of its commands."""
    found: list[tuple[str, ...]] = []

    def run(program: str, *words: str) -> str:
        assert program == "systemctl"
        found.append(words)
        if words[0] == fails:
            raise ConfigError(f"{words[0]} failed")
        return ""

    monkeypatch.setattr(agent_unit, "has_systemd", lambda: True)
    monkeypatch.setattr(agent_unit, "run", run)
    agent_unit.start("/opt/xpu", is_new=is_new)
    return found


@pytest.mark.parametrize(("is_new", "verb"), [(True, "restart"), (False, "start")])
def test_a_new_tree_has_its_agent_started_anew_and_one_that_is_disabled_comes_back(
    monkeypatch: pytest.MonkeyPatch, is_new: bool, verb: str
) -> None:
    assert told(monkeypatch, is_new=is_new) == [("enable", _UNIT), (verb, "xpu-agent.service")]


def test_one_that_cannot_run_is_said_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told(monkeypatch, is_new=True, fails="enable")
    assert "xpu-agent.service of the node does not run: starts take longer" in capfd.readouterr().err


def test_a_node_without_systemd_is_told_what_to_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent_unit, "has_systemd", lambda: False)
    agent_unit.start("/opt/xpu", is_new=True)
    assert "while nothing runs `/opt/xpu/bin/xpu agent`, starts take longer" in capfd.readouterr().err
