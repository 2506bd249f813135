"""What engines do with slices, as far as a test shows it (tests/support/engine_table.py)."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

from parts import markdown

_TESTS = Path(__file__).resolve().parents[3] / "tests"
#: A release that a test enters, by its name there; the tests without one run on CI's.
_RELEASES = {"bullseye": "11", "bookworm": "12", "trixie": "13", "forky": "next"}
_CI = "12"


def table() -> str:
    lines: dict[str, tuple[str, str]] = runpy.run_path(str(_TESTS / "support/engine_table.py"))["LINES"]
    releases: dict[str, set[str]] = {key: set() for key in lines}
    for path in _TESTS.rglob("test_*.py"):
        for key, found in _tried(path.read_text()):
            releases[key] |= found
    if missing := [key for key, found in releases.items() if not found]:
        raise SystemExit(f"no test has @tried for {missing} of the table of engines")
    order = list(_RELEASES.values())
    rows = [
        (way, what, ", ".join(sorted(releases[key], key=order.index))) for key, (way, what) in lines.items()
    ]
    return markdown.table(("way", "what happens", "Debian"), rows)


def _tried(text: str) -> Iterator[tuple[str, set[str]]]:
    """The keys of a file's tests, each with the releases in the test and in what it uses of its file."""
    defined: dict[str, ast.stmt] = {}
    for each in ast.parse(text).body if "@tried(" in text else []:
        targets = each.targets if isinstance(each, ast.Assign) else [each]
        defined |= {getattr(target, "id", getattr(target, "name", "")): each for target in targets}
    for each in defined.values():
        for mark in getattr(each, "decorator_list", ()):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "tried":
                found = _releases(each, defined) or {_CI}
                yield from ((ast.literal_eval(key), found) for key in mark.args)


def _releases(test: ast.stmt, defined: dict[str, ast.stmt]) -> set[str]:
    found: set[str] = set()
    waiting, seen = [test], set[ast.stmt]()
    while waiting:
        seen.add(each := waiting.pop())
        for node in ast.walk(each):
            if isinstance(node, ast.Constant) and node.value in _RELEASES:
                found.add(_RELEASES[node.value])
            used = defined.get(getattr(node, "id", getattr(node, "arg", None)) or "")
            if used is not None and used not in seen:
                waiting.append(used)
    return found
