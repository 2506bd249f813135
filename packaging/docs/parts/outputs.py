"""docs/reference/json.md: a section for each command that takes --json, with the objects that it prints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import click

from xpu_runtime.cli.main import xpu

from .commands import below
from .json_types import ENDING, OUTPUTS, known, output
from .markdown import items

_WORDS = {
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "true or false",
    "None": "null",
    "Any": "any",
}


def outputs() -> str:
    """The commands in the order of commands.md; each object appears where it is used first."""
    contexts = below(click.Context(xpu, info_name="xpu"))
    found = [each for each in contexts if any(option.name == "as_json" for option in each.command.params)]
    commands = [each.command_path for each in found]
    if set(commands) != set(OUTPUTS):
        raise ValueError(f"OUTPUTS (json_types.py): lacks or no longer needs {set(commands) ^ set(OUTPUTS)}")
    shown: dict[str, None] = {}
    return "\n\n".join(text for command in commands for text in _section(command, shown))


def _section(command: str, shown: dict[str, None]) -> Iterator[str]:
    yield f"## {command} --json"
    yield f"Prints: {_typed(output(command))}."
    yield from _objects(output(command), shown)


def _objects(annotation: ast.expr, shown: dict[str, None]) -> Iterator[str]:
    """The sections of the objects in a type, and of the objects in those; `shown` has the objects that have
    one."""
    for name in (each.id for each in ast.walk(annotation) if isinstance(each, ast.Name)):
        if name not in known() or name in shown:
            continue
        shown[name] = None
        of = known()[name]
        fields = items((f"**`{each.name}`** ({_typed(each.type)})", each.meaning) for each in of.fields)
        yield f"### {_title(name)}\n\n{of.meaning}\n\n{fields}"
        for field in of.fields:
            yield from _objects(field.type, shown)


def _title(name: str) -> str:
    """`EventPartJson` is headed `Event part`."""
    return re.sub(r"(?<=[a-z])[A-Z]", lambda found: f" {found[0].lower()}", name.removesuffix(ENDING))


def _typed(annotation: ast.expr) -> str:
    """A type in words."""
    if isinstance(annotation, ast.BinOp):
        return f"{_typed(annotation.left)} or {_typed(annotation.right)}"
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
        inner = annotation.slice
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if annotation.value.id == "Literal":
            return " or ".join(f"`{each.value}`" for each in parts if isinstance(each, ast.Constant))
        if annotation.value.id == "dict":
            return f"object, by name {_typed(parts[1])}"
        if annotation.value.id == "list":
            return f"list of {_typed(parts[0])}"
    if isinstance(annotation, ast.Name) and annotation.id in known():
        return f"[{_title(annotation.id)}](#{_title(annotation.id).lower().replace(' ', '-')})"
    return _WORDS[ast.unparse(annotation)]
