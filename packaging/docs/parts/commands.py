"""docs/reference/commands.md: the commands as click knows them; and the exit statuses that their help has."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from xpu_runtime.cli.main import xpu

from .markdown import escaped, items


def commands() -> str:
    """A list of all commands, then a section for each."""
    found = list(below(click.Context(xpu, info_name="xpu")))
    listed = items(
        (
            f"[`{context.command_path}`](#{context.command_path.replace(' ', '-')})",
            context.command.get_short_help_str(200),
        )
        for context in found
    )
    return "\n".join([listed, "", *map(_command, found)])


def statuses() -> str:
    """A list of the commands that have statuses of their own."""
    found = []
    for context in below(click.Context(xpu, info_name="xpu")):
        text = " ".join((context.command.help or "").split())
        found += [(f"`{context.command_path}`", said) for said in re.findall(r"Exit status: ([^.]*)\.", text)]
    return items(found)


def below(parent: click.Context) -> Iterator[click.Context]:
    """The commands of a group and of its subgroups, by name; of the groups only those that are commands
    themselves."""
    group = parent.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if command is None or command.hidden:
            continue
        context = click.Context(command, info_name=name, parent=parent)
        if isinstance(command, click.Group):
            yield from below(context)
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
            parts.append("\n".join(escaped(line) for line in lines))
    records = [each.get_help_record(context) for each in command.get_params(context)]
    parts.append(items((f"`{each[0]}`", escaped(each[1])) for each in records if each is not None))
    return "\n\n".join(part for part in parts if part) + "\n"
