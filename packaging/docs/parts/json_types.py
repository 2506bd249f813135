"""The output of `--json`: the product's TypedDicts; mypy checks the output against them.

They are read and not imported: the comments are the meanings of the fields, and some types exist for mypy
alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from .source import SOURCES, comment_above

#: The names of these TypedDicts end so.
ENDING = "Json"
#: The type that each command prints.
OUTPUTS = {
    "xpu cdi list": "list[CdiDeviceJson]",
    "xpu config show": "ConfigurationJson",
    "xpu devices": "list[DeviceJson]",
    "xpu doctor": "DoctorJson | ReportJson",
    "xpu events": "EventJson",
    "xpu explain": "ExplanationJson",
    "xpu gc": "list[GivenBackJson]",
    "xpu inspect": "InspectionJson",
    "xpu kubernetes status": "ClusterJson | KeysJson",
    "xpu ps": "list[SliceJson]",
    "xpu set": "list[SliceJson]",
    "xpu sim list": "SimulationsJson",
    "xpu top": "TopJson",
}


class Field(NamedTuple):
    name: str
    type: ast.expr
    meaning: str


class Object(NamedTuple):
    """A TypedDict."""

    meaning: str
    fields: list[Field]


def output(command: str) -> ast.expr:
    """The type that a command prints."""
    return ast.parse(OUTPUTS[command], mode="eval").body


@cache
def known() -> dict[str, Object]:
    """The TypedDicts by their names."""
    found: dict[str, Object] = {}
    waiting = list(_classes())
    while waiting:
        each, lines = waiting.pop(0)
        bases = [base.id for base in each.bases if isinstance(base, ast.Name) and base.id != "TypedDict"]
        if any(base not in found for base in bases):
            waiting.append((each, lines))  # its base classes come first
            continue
        inherited = [field for base in bases for field in found[base].fields]
        meaning = " ".join((ast.get_docstring(each) or "").split())
        found[each.name] = Object(meaning, [*inherited, *_fields(each, lines)])
    return found


def _classes() -> Iterator[tuple[ast.ClassDef, list[str]]]:
    """The TypedDicts, each with the lines of its file."""
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if f"{ENDING}(" in text:
            for each in ast.walk(ast.parse(text)):
                if isinstance(each, ast.ClassDef) and each.name.endswith(ENDING):
                    yield each, text.splitlines()


def _fields(each: ast.ClassDef, lines: list[str]) -> Iterator[Field]:
    for field in each.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            meaning = " ".join(comment_above(lines, field.lineno))
            yield Field(field.target.id, field.annotation, meaning)
