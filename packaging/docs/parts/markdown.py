"""Markdown of texts from the code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def code(words: Iterable[str]) -> str:
    """`a`, `b`"""
    return ", ".join(f"`{word}`" for word in words)


def cell(text: str) -> str:
    """As it stands in a table."""
    return text.replace("|", "\\|")


def escaped(text: str) -> str:
    """Characters that Markdown would take for its own, where they are not in code."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([*<])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces)
