"""Each `xpu` command that a page shows exists, and so do its options: in blocks and in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from support import REPOSITORY
from xpu_runtime.cli.main import xpu

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
#: The tutorials and how-tos that a test follows.
FOLLOWED = [
    page for page in PAGES if page.parent.name in ("how-to", "tutorials") and "```console" in page.read_text()
]
#: After a prompt or another command, or in a code span; up to what is the shell's.
_COMMAND = re.compile(r"(?:^(?:    |\# |\$ )+|(?:&&|;) |`)xpu ([a-z-][^`|;&#\n\\]*)", re.MULTILINE)


def shown(page: Path) -> list[str]:
    return [found[1] for found in _COMMAND.finditer(page.read_text())]


def wrong(words: list[str]) -> Iterator[str]:
    command: click.Command = xpu
    context = click.Context(xpu, info_name="xpu")
    # `...` and ARGUMENTS stand for any.
    while isinstance(command, click.Group) and words and re.fullmatch("[a-z][a-z-]*", words[0]):
        name = words.pop(0)
        found = command.get_command(context, name)
        if found is None:
            yield f"xpu has no command {name}"
            return
        command = found
    known = {option for each in command.get_params(context) for option in each.opts + each.secondary_opts}
    for word in words:
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in known:
            yield f"xpu {command.name} has no option {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_that_a_page_shows_exists_with_its_options(page: Path) -> None:
    assert [each for line in shown(page) for each in wrong(line.split())] == []


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.stem)
def test_a_page_that_a_test_follows_has_all_its_commands_in_blocks_that_the_test_reads(page: Path) -> None:
    """support.pages reads blocks of the language `console`."""
    text = page.read_text()
    languages = re.findall(r"^```(\w+)$", text, re.MULTILINE)
    assert not {"bash", "sh", "shell"} & set(languages)
    without = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"\n\n {4}\S.*", without) == [], "an indented block"


def test_most_pages_show_some() -> None:
    assert sum(len(shown(page)) for page in PAGES) > 200
