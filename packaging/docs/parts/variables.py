"""docs/reference/variables.md: the variables of a container, from the names that a request knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from xpu_runtime.request.parse import enforcements
from xpu_runtime.request.request import CAPABILITIES, POLICIES, PRIORITIES, SCHEDS

from .markdown import code, items
from .source import SOURCES, comment_above

_FILE = SOURCES / "request/request.py"
_PAGE = SOURCES.parents[1] / "docs/reference/variables.md"
_TABLES = ("VARIABLES", "FOR_PROGRAMS")
_DEFAULT = "default: "
#: The variables whose value is one word, or a list of words.
_WORDS = {
    "XPU_SCHED": SCHEDS,
    "XPU_PRIORITY": PRIORITIES,
    "XPU_POLICY": POLICIES,
    "XPU_CAPABILITIES": (*CAPABILITIES, "all"),
    "XPU_ENFORCE": enforcements(),
    "XPU_LOG": ("off", "debug", "debug:PATH"),
}


def variables() -> str:
    """A list."""
    return items(_variables())


def _variables() -> Iterator[tuple[str, str]]:
    text = _FILE.read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            if ast.unparse(node.targets[0]) not in _TABLES:
                continue
            for name in node.value.elts:
                assert isinstance(name, ast.Constant)
                *meaning, default = comment_above(text.splitlines(), name.lineno)
                if not meaning or not default.startswith(_DEFAULT):
                    raise ValueError(f"{_FILE}: {name.value} has no meaning, or no default")
                words = code(_WORDS.get(name.value, ()))
                values = f" *Values:* {words}." if words else ""
                unset = default.removeprefix(_DEFAULT)
                said = f"{' '.join(meaning)}{values} *Default:* {unset}."
                yield f"**{_linked(name.value)}**", said


def _linked(name: str) -> str:
    """The name, with a link to its section of the page if it has one."""
    sections = re.findall(r"^## (.*)$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for section in sections:
        if name in section.split(", "):
            return f"[`{name}`](#{section.lower().replace(', ', '-')})"
    return f"`{name}`"
