"""docs/reference/json.md: what `--json` prints, from the TypedDicts that mypy holds the output against.

They are read and not imported: their comments are the meaning of fields, and some are there for mypy alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click

from xpu_runtime.cli.main import xpu

from .commands import below
from .markdown import table

_SOURCES = Path(__file__).resolve().parents[3] / "src/xpu_runtime"
_ENDING = "Json"
_WORDS = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "None": "null"}
#: By command what it prints, in words and TypedDicts.
OUTPUTS = {
    "xpu events": "An object a line: an [event](events.md#event).",
}


class Field(NamedTuple):
    name: str
    type: ast.expr
    meaning: str


class Object(NamedTuple):
    """A TypedDict."""

    meaning: str
    fields: list[Field]


def outputs() -> str:
    """A section for each command, with the objects that no section before it has."""
    commands = [each.command_path for each in below(click.Context(xpu, info_name="xpu")) if _has_json(each)]
    if set(commands) != set(OUTPUTS):
        raise ValueError(f"OUTPUTS of {__file__} lacks or no longer needs {set(commands) ^ set(OUTPUTS)}")
    shown: dict[str, None] = {}
    return "\n\n".join(_section(name, OUTPUTS[name], shown) for name in commands)


def objects(*names: str) -> str:
    """The tables of these TypedDicts, and of all that are in them."""
    return "\n\n".join(_with_inner(names, {}))


def _has_json(context: click.Context) -> bool:
    return any(each.name == "as_json" for each in context.command.params)


def _section(command: str, told: str, shown: dict[str, None]) -> str:
    names = re.findall(r"{(\w+)}", told)
    told = told.format_map({name: _link(name) for name in names})
    return "\n\n".join([f"## {command} --json", told, *_with_inner(names, shown)])


def _with_inner(names: Iterator[str] | tuple[str, ...] | list[str], shown: dict[str, None]) -> Iterator[str]:
    for name in names:
        if name in shown:
            continue
        shown[name] = None
        rows = [(f"`{each.name}`", typed(each.type), each.meaning) for each in known()[name].fields]
        heads = ("field", "type", "meaning")
        yield f"### {_title(name)}\n\n{known()[name].meaning}\n\n{table(heads, rows)}"
        yield from _with_inner([each for field in known()[name].fields for each in _inner(field)], shown)


def _inner(field: Field) -> list[str]:
    """The TypedDicts in a field's type."""
    names = [each.id for each in ast.walk(field.type) if isinstance(each, ast.Name)]
    return [name for name in names if name in known()]


def _title(name: str) -> str:
    """`EventPartJson` is headed `Event part`."""
    return re.sub(r"(?<=[a-z])[A-Z]", lambda found: f" {found[0].lower()}", name.removesuffix(_ENDING))


def _link(name: str) -> str:
    return f"[{_title(name)}](#{_title(name).lower().replace(' ', '-')})"


def typed(annotation: ast.expr) -> str:
    """A type in words."""
    if isinstance(annotation, ast.BinOp):
        return f"{typed(annotation.left)} or {typed(annotation.right)}"
    if isinstance(annotation, ast.Subscript):
        assert isinstance(annotation.value, ast.Name)
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if annotation.value.id == "Literal":
            return " or ".join(f"`{each.value}`" for each in parts if isinstance(each, ast.Constant))
        if annotation.value.id == "dict":
            return f"object: by name {typed(parts[1])}"
        if annotation.value.id == "list":
            return f"list of {typed(parts[0])}"
    if isinstance(annotation, ast.Constant):
        return _WORDS[str(annotation.value)]
    if isinstance(annotation, ast.Name):
        return _link(annotation.id) if annotation.id in known() else _WORDS[annotation.id]
    raise ValueError(f"a type that has no words: {ast.unparse(annotation)}")


@cache
def known() -> dict[str, Object]:
    """All TypedDicts of the product whose names end in Json."""
    found: dict[str, Object] = {}
    waiting = list(_classes())
    while waiting:
        each, lines = waiting.pop(0)
        bases = [base.id for base in each.bases if isinstance(base, ast.Name)]
        if missing := [base for base in bases if base != "TypedDict" and base not in found]:
            if all(missing != [other.name] for other, _ in waiting):
                raise ValueError(f"{each.name}: no TypedDict is called {missing}")
            waiting.append((each, lines))
            continue
        inherited = [field for base in bases if base in found for field in found[base].fields]
        meaning = " ".join((ast.get_docstring(each) or "").split())
        found[each.name] = Object(meaning, [*inherited, *_fields(each, lines)])
    return found


def _classes() -> Iterator[tuple[ast.ClassDef, list[str]]]:
    """Each class of such a name, and the lines of its file."""
    for path in sorted(_SOURCES.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if f"{_ENDING}(" in text:
            for each in ast.walk(ast.parse(text)):
                if isinstance(each, ast.ClassDef) and each.name.endswith(_ENDING):
                    yield each, text.splitlines()


def _fields(each: ast.ClassDef, lines: list[str]) -> Iterator[Field]:
    for field in each.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            comment: list[str] = []
            at = field.lineno - 2
            while lines[at].strip().startswith("#: "):
                comment.insert(0, lines[at].strip().removeprefix("#: "))
                at -= 1
            yield Field(field.target.id, field.annotation, " ".join(comment))
