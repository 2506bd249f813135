"""Markdown of texts from the code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

#: Columns of a page.
WIDTH = 120
#: A word with the code in it, so that no line ends within code.
_WORD = re.compile(r"(?:``.+?``|`[^`]+`|\S)+")


def items(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of names and their descriptions; a description may be empty. Both are Markdown."""
    return "\n".join(_item(f"{head}: {text}" if text else head) for head, text in pairs)


def _item(text: str) -> str:
    lines = ["-"]
    for word in _words(text):
        # At the beginning of a line such a word would be Markdown's own mark.
        is_mark = re.fullmatch(r"[-+*>|#]+|\d+[.)]", word) is not None
        if len(lines[-1]) + 1 + len(word) <= WIDTH or is_mark:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}")
    return "\n".join(lines)


def _words(text: str) -> Iterator[str]:
    for word in _WORD.findall(text):
        yield from [word] if len(word) < WIDTH - 2 else word.split()


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def code(words: Iterable[str]) -> str:
    """`a`, `b`"""
    return ", ".join(f"`{word}`" for word in words)


def cell(text: str) -> str:
    """The text as a cell of a table."""
    return text.replace("|", "\\|")


def escaped(text: str) -> str:
    """Escapes characters that are special in Markdown, except in code."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([*<])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces)
