"""No union of types is evaluated at run time: Python 3.9 has none.

ruff and vermin (packaging/lint) find everything else that Python 3.9 lacks. They do not distinguish a union
that is evaluated, as in `Pair = tuple[str | None, str]`, from one in an annotation, which stays a string with
`from __future__ import annotations`.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

import pytest

from support import REPOSITORY

_TYPES = {name for name, value in vars(builtins).items() if isinstance(value, type)}
FILES = [
    *(REPOSITORY / "src").rglob("*.py"),
    *(REPOSITORY / "sim/python").rglob("*.py"),
    *(path for path in (REPOSITORY / "hooks").rglob("*") if path.is_file() and path.suffix != ".pyc"),
    REPOSITORY / "setup.py",
    *(REPOSITORY / "packaging").glob("*.py"),
]


def evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """The node and its descendants, without annotations and code for type checkers."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        if name == "body" and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from evaluated(child)


def is_type(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return is_type(node.value)
    if isinstance(node, ast.Name):
        return node.id in _TYPES
    return isinstance(node, ast.Constant) and node.value is None


def unions(source: str) -> list[int]:
    """The lines with a union of types that is evaluated."""
    return [
        node.lineno
        for node in evaluated(ast.parse(source))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
        if is_type(node.left) or is_type(node.right)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_no_union_of_types_is_evaluated(path: object) -> None:
    with open(str(path), encoding="utf-8") as file:
        source = file.read()
    assert not unions(source)
    assert "from __future__ import annotations" in source or "|" not in source


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Pair = tuple[str | None, str]", True),
        ("isinstance(x, int | list[str])", True),
        ("class A(Base, kind=int | None): pass", True),
        ("x: int | None = None", False),
        ("def f(x: int | None) -> str | None: ...", False),
        ("flags = os.O_RDONLY | os.O_CLOEXEC", False),
    ],
)
def test_a_union_is_told_from_an_annotation_and_from_numbers(line: str, found: bool) -> None:
    assert bool(unions(line)) == found
