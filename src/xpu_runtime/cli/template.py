"""--format of commands that print a table: what docker's `{{.Field}}` is in its simplest form, or `json`.

A field is a column of the wide table. Nothing else of Go templates is understood, and all else is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from xpu_runtime.cli.screen import printable

_FIELD = re.compile(r"\{\{\s*\.(\w+)\s*\}\}")
_ESCAPES = {"\\t": "\t", "\\n": "\n"}


def option(fields: Sequence[str]) -> Callable[[Any], Any]:
    """The option --format, for a table with these fields."""

    def check(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is None or value == "json":
            return value
        unknown = [name for name in _FIELD.findall(value) if name not in fields]
        if unknown or "{{" in _FIELD.sub("", value):
            what = f"{unknown[0]!r} is no field" if unknown else "only {{.Field}} is understood"
            raise click.BadParameter(f"{what}; fields are {', '.join(fields)}")
        if not _FIELD.search(value):
            raise click.BadParameter(
                f"{value[:60]!r} names no field; give json, or as '{{{{.{fields[0]}}}}}'"
            )
        return value

    told = f"A line for each: json, or a text with {{{{.Field}}}}: {', '.join(fields)}."
    return click.option("--format", "template_", metavar="FORMAT", callback=check, help=told)


def print_rows(template: str, rows: Sequence[dict[str, str]], entries: Sequence[dict[str, Any]]) -> None:
    """A line for each row: its object, or the template with its fields, \\t and \\n as docker has them."""
    if template == "json":
        for entry in entries:
            click.echo(json.dumps(entry))
        return
    for escape, letter in _ESCAPES.items():
        template = template.replace(escape, letter)
    for row in rows:
        click.echo(_FIELD.sub(lambda found, row=row: printable(row[found[1]]), template))  # type: ignore[misc]
