"""docs/reference/variables.md: the variables of a container, from the names that a request knows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from xpu_runtime.request.parse import enforcements
from xpu_runtime.request.request import CAPABILITIES, POLICIES, PRIORITIES, SCHEDS

from .markdown import code, items
from .source import SOURCES, commented, described

_FILE = "request/request.py"
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


def words_of(name: str) -> str:
    """A list of the words of SCHEDS or PRIORITIES."""
    return items((f"`{word}`", text) for word, text in described(_FILE, name))


def _variables() -> Iterator[tuple[str, str]]:
    for table in _TABLES:
        for name, (*meaning, default) in commented(_FILE, table).items():
            if not meaning or not default.startswith(_DEFAULT):
                raise ValueError(f"{_FILE}: {name} has no meaning, or no default")
            words = code(_WORDS.get(name, ()))
            values = f" *Values:* {words}." if words else ""
            unset = default.removeprefix(_DEFAULT)
            yield f"**{_linked(name)}**", f"{' '.join(meaning)}{values} *Default:* {unset}."


def _linked(name: str) -> str:
    """The name, with a link to its section of the page if it has one."""
    sections = re.findall(r"^## (.*)$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for section in sections:
        if name in section.split(", "):
            return f"[`{name}`](#{section.lower().replace(', ', '-')})"
    return f"`{name}`"
