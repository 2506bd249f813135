"""Writes the parts of the pages that the code knows: reference.py [--check]

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->` in a page; PARTS has who writes
it. With --check nothing is written, and a part that is not what it would be is an error (lint).
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator

import click

_REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_PAGES = ("ARCHITECTURE.md", "docs/reference/commands.md", "docs/reference/configuration.md")
_PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(is_check: bool) -> int:
    stale = []
    for name in _PAGES:
        path = os.path.join(_REPOSITORY, name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        made = _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]().strip()}\n\n{part[3]}", text)
        if made == text:
            continue
        stale.append(name)
        if not is_check:
            with open(path, "w", encoding="utf-8") as file:
                file.write(made)
    if stale and is_check:
        print(f"{', '.join(stale)}: not what the code says: run `make docs`", file=sys.stderr)
        return 1
    return 0


def _commands() -> str:
    """A table of all commands, then a section each."""
    from xpu_runtime.cli.main import xpu

    found = list(_below(click.Context(xpu, info_name="xpu")))
    rows = [
        f"| [`{context.command_path}`](#{context.command_path.replace(' ', '-')}) "
        f"| {context.command.get_short_help_str(200).rstrip('.')} |"
        for context in found
    ]
    return "\n".join(["| command | |", "|---|---|", *rows, "", *map(_command, found)])


def _below(parent: click.Context) -> Iterator[click.Context]:
    """The commands of a group and of its groups, by name; of groups those that do something alone."""
    group = parent.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if command is None or command.hidden:
            continue
        context = click.Context(command, info_name=name, parent=parent)
        if isinstance(command, click.Group):
            yield from _below(context)
        else:
            yield context


def _command(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    text = inspect.cleandoc(command.help or "").replace("\f", "")
    parts = [f"## {context.command_path}", f"    {usage}"]
    for paragraph in text.split("\n\n"):
        lines = paragraph.strip("\n").splitlines()
        if lines and lines[0].strip() == "\b":  # click's mark: the lines stay as they are
            parts.append("\n".join(["```text", *lines[1:], "```"]))
        else:
            parts.append("\n".join(_escaped(line) for line in lines))
    records = [each.get_help_record(context) for each in command.get_params(context)]
    options = [f"| `{_cell(each[0])}` | {_cell(_escaped(each[1]))} |" for each in records if each is not None]
    parts.append("\n".join(["| option | |", "|---|---|", *options]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _escaped(text: str) -> str:
    """Characters that Markdown would take for its own, where they are not in code."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([*<])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces)


def _configuration() -> str:
    with open(os.path.join(_REPOSITORY, "config/config.yaml"), encoding="utf-8") as file:
        return f"```yaml\n{file.read()}```"


def _layers() -> str:
    """The order that packaging/lint checks, as a picture."""
    with open(os.path.join(_REPOSITORY, "pyproject.toml"), "rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["xpu_runtime"])
    # Nothing but errors, paths and the like is below `linux`.
    shown = layers[: layers.index("linux") + 1]
    rows = [" > ".join(shown[at : at + 4]).replace(" | ", ", ") for at in range(0, len(shown), 4)]
    boxes = [f'    row{number}["{row}"]' for number, row in enumerate(rows)]
    chain = " --> ".join(f"row{number}" for number in range(len(rows)))
    return "\n".join(["```mermaid", "flowchart TD", *boxes, f"    {chain}", "```"])


PARTS: dict[str, Callable[[], str]] = {
    "commands": _commands,
    "configuration": _configuration,
    "layers": _layers,
}

if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
