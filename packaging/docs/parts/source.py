"""The product's sources, and the comments in them that are documentation."""

from __future__ import annotations

from pathlib import Path

SOURCES = Path(__file__).resolve().parents[3] / "src/xpu_runtime"


def comment_above(lines: list[str], number: int) -> list[str]:
    """The lines of the comment `#: ...` right above line `number`; the first line is 1."""
    found: list[str] = []
    for line in reversed(lines[: number - 1]):
        if not line.strip().startswith("#: "):
            break
        found.insert(0, line.strip().removeprefix("#: "))
    return found
