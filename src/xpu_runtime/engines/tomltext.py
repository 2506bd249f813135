"""TOML as lines of text with known meaning, so that a file can be changed at one place and nowhere else.

The standard library reads TOML and says where it is malformed; this module adds where in the text
each table and key is. It may assume that the text was parsed before; what is made with it is parsed
again by its users, who compare the data with what they meant.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from xpu_runtime.engines.textfile import malformed
from xpu_runtime.value import Value

Path = tuple[str, ...]

#: Strings of all four kinds, comments, line ends, brackets, and runs of anything else.
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*|\n|[\[\]{}=]|[^\"'#\n\[\]{}=]+",
    re.DOTALL,
)
_PLACE = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Statement(Value):
    """A table's header, or a key with its value.

    `start` and `end` enclose its whole lines; `value_start` and `value_end` its value. `section` is the
    index of the header that it stands under (its own, for a header), -1 before the first.
    """

    path: Path
    is_header: bool
    section: int
    start: int
    end: int
    value_start: int = 0
    value_end: int = 0


def parse(path: str, text: str) -> dict[str, Any]:
    """The data of `text`; ConfigError with line and column if it is not TOML."""
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, and int()'s for a number that is too long
        place = _PLACE.fullmatch(str(error))
        what = place.group(1) if place else str(error)
        if place and place.group(2):
            line, column = int(place.group(2)), int(place.group(3))
        else:
            line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
        raise malformed(path, line, column, f"not TOML: {what}") from None
    except RecursionError:
        raise malformed(path, 1, 1, "nested too deeply") from None


def statements(text: str) -> list[Statement]:
    """All tables and keys, in the order of the file."""
    found: list[Statement] = []
    table: Path = ()
    section = -1
    start = 0
    while start < len(text):
        end = _line_end(text, start)
        body = _body(text, start)
        if body == len(text) or text[body] in "#\r\n":
            start = end
            continue
        if text[body] == "[":
            table = _only_path(tomllib.loads(text[body:end]))
            section = len(found)
            found.append(Statement(table, True, section, start, end))
        else:
            equals = next(m.start() for m in _TOKEN.finditer(text, body) if m.group() == "=")
            key = _only_path(tomllib.loads(text[body:equals] + "= 0"))
            value_start, value_end = _value(text, equals + 1)
            end = _line_end(text, value_end)
            found.append(Statement(table + key, False, section, start, end, value_start, value_end))
        start = end
    return found


def key_text(path: Path) -> str:
    """A path as TOML writes it: plugins."io.containerd.grpc.v1.cri".containerd."""
    return ".".join(part if _BARE_KEY.fullmatch(part) else _string(part) for part in path)


def value_text(value: Any) -> str:
    """A value in one line of TOML; TypeError for what it does not know (dates)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(value_text(item) for item in value) + "]"
    if isinstance(value, dict):
        inner = ", ".join(f"{key_text((key,))} = {value_text(item)}" for key, item in value.items())
        return "{ " + inner + " }" if inner else "{}"
    raise TypeError(f"{type(value).__name__} is not written")


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _body(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return at


def _line_end(text: str, at: int) -> int:
    newline = text.find("\n", at)
    return len(text) if newline < 0 else newline + 1


def _only_path(data: Any) -> Path:
    """The path of nested tables that hold one key each: what a header or a key alone parses to."""
    path: list[str] = []
    while data:
        data = data[0] if isinstance(data, list) else data
        if not data:
            break
        ((key, data),) = data.items()
        path.append(key)
    return tuple(path)


def _value(text: str, at: int) -> tuple[int, int]:
    """Start and end of the value after a `=`, white space and comment not included."""
    start = _body(text, at)
    depth, end = 0, start
    for token in _TOKEN.finditer(text, start):
        piece = token.group()
        if depth == 0 and (piece == "\n" or piece.startswith("#")):
            break
        depth += (piece in "[{") - (piece in "]}")
        if piece.strip():
            end = token.start() + len(piece.rstrip())
    return start, end
