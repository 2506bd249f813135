"""--format of commands that print a table, as docker has it: `{{.Field}}`, `{{json .}}`, `table`, `json`.

A field is a column of the wide table. Any other part of Go templates is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from xpu_runtime.cli.terminal import table
from xpu_runtime.cli.terminal.screen import printable
from xpu_runtime.cli.terminal.table import Column

_FIELD = re.compile(r"\{\{\s*(json\s+)?\.(\w+)\s*\}\}")
_ALL = re.compile(r"\{\{\s*json\s+\.\s*\}\}")
#: The table as it is without --format; with more after it a template is one, with a head, and columns between
#: tabs.
TABLE = "table"
_ESCAPES = {"\\t": "\t", "\\n": "\n"}


def option(fields: Sequence[str]) -> Callable[[Any], Any]:
    """The option --format, for a table with these fields."""

    def check(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
        value = value if value is None else value.lstrip()
        if value is None or value.rstrip() == TABLE:
            return value and TABLE
        if value == "json" or _ALL.fullmatch(value.rstrip()):
            return "json"
        unknown = [name for _, name in _FIELD.findall(value) if name not in fields]
        if unknown or "{{" in _FIELD.sub("", value):
            known = "give {{.Field}}, {{json .Field}}, or {{json .}} alone"
            what = f"{unknown[0]!r} is not a field" if unknown else known
            raise click.BadParameter(f"{what}; fields are {', '.join(fields)}")
        if not _FIELD.search(value):
            raise click.BadParameter(
                f"{value[:60]!r} names no field; give json, or a text such as '{{{{.{fields[0]}}}}}'"
            )
        return value

    told = "A line for each: json, or a text with {{.Field}}; the word table before it adds a head. Fields: "
    return click.option(
        "--format", "template_", metavar="FORMAT", callback=check, help=f"{told}{', '.join(fields)}."
    )


def print_rows(
    template: str,
    heads: Mapping[str, str],
    rows: Sequence[Mapping[str, str]],
    entries: Sequence[object],
) -> None:
    """A line for each row: its object, or the template with its fields, \\t and \\n as in docker.
    `heads` has the heads of fields that are not headed as they are called."""
    if template == "json":
        for entry in entries:
            click.echo(json.dumps(entry))
        return
    for escape, letter in _ESCAPES.items():
        template = template.replace(escape, letter)
    rest = template.removeprefix(TABLE).lstrip()
    if not template.startswith(TABLE):
        for row in rows:
            click.echo(_filled(template, row))
        return
    names = {name: heads.get(name, name.upper()) for _, name in _FIELD.findall(rest)}
    texts = [_FIELD.sub(lambda found: names[found[2]], rest), *(_filled(rest, row) for row in rows)]
    columns = zip(*(text.split("\t") for text in texts))
    table.print_lines(table.lines([Column(head, cells) for head, *cells in columns], (), None))


def _filled(template: str, row: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        return json.dumps(row[found[2]]) if found[1] else printable(row[found[2]])

    return _FIELD.sub(value, template)
