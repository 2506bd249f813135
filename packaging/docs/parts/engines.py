"""What engines do with slices, as far as a test shows it (tests/support/engine_table.py)."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from parts import markdown

_TESTS = Path(__file__).resolve().parents[3] / "tests"
_TRIED = re.compile(r"^@tried\(([^)]+)\)", re.MULTILINE)
#: A release that a test enters, by its name in the test; the tests without one run on CI's.
_RELEASES = {"bullseye": "11", "bookworm": "12", "trixie": "13", "forky": "next"}
_CI = "12"


def table() -> str:
    lines: dict[str, tuple[str, str]] = runpy.run_path(str(_TESTS / "support/engine_table.py"))["LINES"]
    releases: dict[str, set[str]] = {key: set() for key in lines}
    for path in _TESTS.rglob("test_*.py"):
        text = path.read_text()
        there = {number for name, number in _RELEASES.items() if name in text} or {_CI}
        for keys in _TRIED.findall(text):
            for key in re.findall(r'"([^"]+)"', keys):
                releases[key] |= there
    if missing := [key for key, found in releases.items() if not found]:
        raise SystemExit(f"no test has @tried for {missing} of the table of engines")
    order = list(_RELEASES.values())
    rows = [
        (way, what, ", ".join(sorted(releases[key], key=order.index))) for key, (way, what) in lines.items()
    ]
    return markdown.table(("way", "what happens", "Debian"), rows)
