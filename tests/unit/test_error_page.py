"""docs/reference/errors.md quotes the lines that the product prints: they must be in the sources."""

from __future__ import annotations

import ast
import re

from support import REPOSITORY

PAGE = (REPOSITORY / "docs/reference/errors.md").read_text()
#: Sections that quote us; engines' own lines are in the others.
OURS = ("A container is refused", "A container does not start", "xpu says", "The package says")


def quoted() -> list[str]:
    found = []
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        if section.startswith(OURS):
            for row in re.findall(r"^\| (`[^|]*) \|", section, flags=re.MULTILINE):
                found += re.findall(r"`([^`]+)`", row)[:1]
    return found


def texts() -> str:
    """All string constants of the Python sources, f-strings with their values left out, and the scripts."""
    strings = []
    for file in (REPOSITORY / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values]
                strings.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.append(node.value)
    strings += [file.read_text() for file in (REPOSITORY / "packaging" / "scripts").glob("*.sh")]
    return "\n".join(strings)


def test_the_page_quotes_lines_that_are_printed() -> None:
    lines, sources = quoted(), texts()
    assert len(lines) > 25
    stale = [
        (line, piece)
        for line in lines
        for piece in (each.strip() for each in line.split("..."))
        if piece and piece not in sources
    ]
    assert stale == []
