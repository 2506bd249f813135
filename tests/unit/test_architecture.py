"""ARCHITECTURE.md: whoever looks for a module finds it there, and what it names is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from support import REPOSITORY

SOURCE = REPOSITORY / "src" / "xpu_runtime"
TEXT = (REPOSITORY / "ARCHITECTURE.md").read_text()


def named() -> Iterator[tuple[str, set[str]]]:
    """Each Python file that is named, with the paths that this can mean: a name without a folder is of any
    folder that its line names."""
    for line in TEXT.splitlines():
        names = re.findall(r"`(\w[\w*./]*)`", line)
        folders = {name.rpartition("/")[0] for name in names if "/" in name}
        for name in names:
            if name.endswith(".py"):
                yield name, {name} if "/" in name else {name, *(f"{folder}/{name}" for folder in folders)}


def modules() -> dict[str, Path]:
    return {str(each.relative_to(SOURCE)): each for each in SOURCE.rglob("*.py")}


def is_a_command(path: Path) -> bool:
    """`xpu NAME` in cli/NAME.py, as the page says of all of them: the docstring begins so."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return path.parent.name == "cli" and text.startswith("`xpu ")


def test_each_module_is_named() -> None:
    meant = {path for _, paths in named() for path in paths}
    missing = [
        name
        for name, path in modules().items()
        if path.name != "__init__.py"
        and not is_a_command(path)
        and not any(fnmatch(name, pattern) for pattern in meant)
    ]
    assert missing == []


def test_what_is_named_is_there() -> None:
    roots = (SOURCE, REPOSITORY, REPOSITORY / "sim/python")

    def is_there(path: str) -> bool:
        return any(any(root.glob(path.replace("NAME", "*"))) for root in roots)

    assert [name for name, paths in named() if not any(map(is_there, paths))] == []
