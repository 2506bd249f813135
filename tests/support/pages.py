"""The pages that people follow, step by step.

A command stands after `# ` in a block of the language `console`; its output is below it. `...` stands for any
text, on a line of its own for any lines. Times, ids and numbers may differ. A block of another language that
begins with `# NAME` is the content of that file, in the folder of the commands or at an absolute path. A
block after the comment `<!-- run by FILE -->` belongs to another test, which that FILE has.

`followed_by` says which tests follow a page, `with_blocks_of` which have a block of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import REPOSITORY

#: The pages that need a cluster, or systemd. tests/distributions follows all others that have commands.
_ELSEWHERE = {
    "docs/tutorials/cluster.md": "tests/kubernetes",
    "docs/how-to/agent.md": "tests/machine",
    "docs/how-to/operate.md": "tests/machine",
}
_BLOCK = re.compile(r"(?:<!-- run by (\S+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"# (/?(?:[\w.-]+/)*(?:[\w-]+\.\w+|Dockerfile))\n")
#: Text that differs at each run: times, ids of containers and of the kernel, a program's memory.
_DIFFERS = re.compile(r"\b[0-9a-f]{12,}\b|\d+|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d: ]+")


@dataclass(frozen=True)
class File:
    """A file that the reader writes."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command that the reader types, maybe over several lines, and its expected output."""

    words: str
    prints: str


def followed_by(tests: str) -> list[Path]:
    """The pages that these tests follow."""
    return [
        page
        for page in _all()
        if any(isinstance(step, Command) for step in steps(page))
        and _ELSEWHERE.get(str(page.relative_to(REPOSITORY)), "tests/distributions") == tests
    ]


def with_blocks_of(tests: str) -> list[Path]:
    """The pages with blocks that belong to one of these tests."""
    return [page for page in _all() if f"<!-- run by {tests}/" in page.read_text()]


def _all() -> list[Path]:
    return [
        page
        for folder in ("docs", "docs/how-to", "docs/tutorials")
        for page in sorted((REPOSITORY / folder).glob("*.md"))
    ]


def steps(page: Path, test: str = "") -> Iterator[File | Command]:
    """The steps of a page, or those that belong to another test."""
    for runner, language, block in _BLOCK.findall(page.read_text()):
        if runner != test:
            continue
        if language != "console":
            name = _NAME.match(block)
            if name:
                yield File(name[1], block[name.end() :])
            continue
        for part in re.split(r"^# ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            end = next(at for at, line in enumerate(lines) if not line.endswith("\\"))
            yield Command("\n".join(lines[: end + 1]), "\n".join(lines[end + 1 :]).strip("\n"))


def matches(said: str, expected: str) -> bool:
    """Whether a command has printed the page's output."""

    def pattern(line: str) -> str:
        pieces = [re.escape(_DIFFERS.sub("0", piece)) for piece in line.strip().split("...")]
        return r"[^\n]*".join(re.sub(r"(\\ )+", r"\\s+", piece) for piece in pieces)

    text = "".join(_DIFFERS.sub("0", line.strip()) + "\n" for line in said.strip("\n").splitlines())
    lines = [
        r"(?:[^\n]*\n)*" if line.strip() == "..." else pattern(line) + r"\n" for line in expected.splitlines()
    ]
    return re.fullmatch("".join(lines), text) is not None
