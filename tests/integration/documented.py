"""Whether what a command prints as JSON is what docs/reference/json.md says of it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from typing import Any

from docs.parts.json_types import OUTPUTS, known, output

_TYPES = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}


def check(words: Sequence[object], printed: str) -> None:
    """AssertionError if `xpu WORDS` has printed something else."""
    line = " ".join(map(str, ["xpu", *words]))
    command = next(each for each in OUTPUTS if line.startswith(each))
    texts = printed.splitlines() if command == "xpu events" else [printed]
    found = [json.loads(text, object_hook=_without_example) for text in texts]
    problems = [wrong for each in found for wrong in _wrong(each, output(command), "")]
    assert problems == [], problems


def _without_example(found: dict[str, Any]) -> dict[str, Any]:
    """Without the detail of the tests' own backend (support/example_backend.py), which no page has."""
    return {key: value for key, value in found.items() if key != "example"}


def _wrong(value: Any, annotation: ast.expr, where: str) -> Iterator[str]:
    told = f"{where}: {value!r} is no {ast.unparse(annotation)}"
    if isinstance(annotation, ast.BinOp):
        if all([*_wrong(value, each, where)] for each in (annotation.left, annotation.right)):
            yield told
    elif isinstance(annotation, ast.Constant):
        if value is not annotation.value:
            yield told
    elif isinstance(annotation, ast.Subscript):
        yield from _wrong_members(value, annotation, where)
    elif isinstance(annotation, ast.Name) and annotation.id in known():
        fields = known()[annotation.id].fields
        if not isinstance(value, dict) or set(value) != {each.name for each in fields}:
            yield told
        else:
            for each in fields:
                yield from _wrong(value[each.name], each.type, f"{where}.{each.name}")
    else:
        name = ast.unparse(annotation)
        is_right = name == "Any" or isinstance(value, _TYPES[name])
        if not is_right or (isinstance(value, bool) and name in ("int", "float")):
            yield told


def _wrong_members(value: Any, annotation: ast.Subscript, where: str) -> Iterator[str]:
    name, inner = ast.unparse(annotation.value), annotation.slice
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if name == "Literal":
        is_right = value in [ast.literal_eval(each) for each in parts]
    else:
        is_right = isinstance(value, {"list": list, "dict": dict}[name])
    if not is_right:
        yield f"{where}: {value!r} is no {ast.unparse(annotation)}"
    elif name != "Literal":
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _wrong(each, parts[-1], f"{where}[{key!r}]")
