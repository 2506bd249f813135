"""The findings of `xpu doctor`, compared with the faults that a test has made."""

from __future__ import annotations

import json
from typing import Any

from .conftest import Node

Finding = dict[str, Any]


def examine(node: Node) -> tuple[list[Finding], int]:
    """The findings, and the exit status."""
    done = node.xpu("doctor", "--json", check=False)
    assert done.stderr == ""
    return json.loads(done.stdout)["findings"], done.returncode


def found(node: Node, state: str, check: str, text: str) -> Finding:
    """The one finding of that kind whose text has `text` in it; the exit status must be of its kind."""
    findings, status = examine(node)
    fits = [
        each for each in findings if (each["state"], each["check"]) == (state, check) and text in each["text"]
    ]
    assert len(fits) == 1, findings
    if state == "problem":
        assert status == 1
    assert fits[0]["todo"]
    return fits[0]


def assert_fine(node: Node, check: str) -> None:
    findings, status = examine(node)
    assert [each for each in findings if each["check"] == check and each["state"] != "ok"] == []
    assert status == any(each["state"] == "problem" for each in findings)


def without_engines(findings: list[Finding]) -> list[Finding]:
    """Engines of tests that run at the same time come and go."""
    return [each for each in findings if each["check"] not in ("docker", "containerd")]
