"""The product's sources, and the comments in them that are documentation."""

from __future__ import annotations

import ast
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


def commented(path: str, name: str) -> dict[str, list[str]]:
    """The words of the tuple `name` in a source, each with the lines of the comment above it."""
    text = (SOURCES / path).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            assert isinstance(node.value, ast.Tuple)
            found = {
                str(each.value): comment_above(text.splitlines(), each.lineno)
                for each in node.value.elts
                if isinstance(each, ast.Constant)
            }
            if missing := [word for word, comment in found.items() if not comment]:
                raise ValueError(f"{path}: {missing} of {name} have no comment")
            return found
    raise ValueError(f"{path} has no {name}")


def described(path: str, name: str) -> list[tuple[str, str]]:
    """The words of that tuple, each with its comment as one text."""
    return [(word, " ".join(comment)) for word, comment in commented(path, name).items()]
