"""config.toml as text: changes within tables of the file's own.

The default runtime is a marked line in a table of the file's own. Another program's table of our name becomes
comments. tomlkit changes a table of ours that is not in a block (engines/_blocks.py). Every change is read
again and compared (`check`). The caller names the table: nothing here knows a version of containerd.
"""

from __future__ import annotations

import re
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from xpu_runtime.engines import RUNTIME_NAME, _blocks
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import newline_of

DEFAULT = "default_runtime_name"

_MARK = "# by `xpu runtime configure`"
#: Our line in a table of the file's own. The replaced line, if there was one, follows the mark.
_LINE = f'{DEFAULT} = "{RUNTIME_NAME}" {_MARK}'
_OUR_LINE = re.compile(
    rf'(\r?\n|\A)[^\r\n=]*{DEFAULT}["\']?[ \t]*=[ \t]*"{RUNTIME_NAME}" {_MARK}(?:, before: ([^\r\n]*))?'
)
_ANY_DEFAULT = re.compile(rf"""^([^\r\n=#]*{DEFAULT}["']?[ \t]*=[ \t]*)[^\r\n]*""", re.MULTILINE)
#: The beginning of a commented line of another program's table. Our table replaces that table.
_ASIDE = "# xpu: not ours, comes back: "


def with_default(text: str, containerd: _blocks.Path, default: Any) -> str | None:
    """`text` with our runtime as the default instead of `default`, or in a table without one.

    None if that table has no header of its own.
    """
    if default is not None:
        # A line in a string can look like the statement; changing it does not change the default.
        for line in _ANY_DEFAULT.finditer(text):
            ours = f'{line[1]}"{RUNTIME_NAME}" {_MARK}, before: {line[0]}'
            changed = text[: line.start()] + ours + text[line.end() :]
            if default_of(changed, containerd) == RUNTIME_NAME:
                return changed
        return text
    header: dict[str, Any] = {}
    for key in reversed(containerd):
        header = {key: header}
    for line in re.finditer(r"^[ \t]*\[[^\r\n]*", text, re.MULTILINE):
        changed = text[: line.end()] + newline_of(text) + _LINE + text[line.end() :]
        try:
            # A line in a string can look like the header.
            if _blocks.parse("", line[0]) == header and default_of(changed, containerd) == RUNTIME_NAME:
                return changed
        except ConfigError:
            continue
    return None


def without_default(path: str, text: str, containerd: _blocks.Path) -> str:
    """`text` with another default runtime than ours: the earlier one, or none."""
    if default_of(text, containerd) != RUNTIME_NAME:
        return text
    for line in _OUR_LINE.finditer(text):
        changed = text[: line.start()] + (line[1] + line[2] if line[2] else "") + text[line.end() :]
        if default_of(changed, containerd) != RUNTIME_NAME:
            return changed
    return changed_at(path, text, (*containerd, DEFAULT), None)


def is_default_ours(text: str) -> bool:
    """Whether a marked line, and not the file's own, names us as the default."""
    return _MARK in text


def default_of(text: str, containerd: _blocks.Path) -> Any:
    try:
        return _blocks.below("", _blocks.parse("", text), containerd)[DEFAULT]
    except (TypeError, KeyError, ConfigError):
        return None


def set_aside(text: str, keys: _blocks.Path) -> str:
    """`text` with each line of the table at `keys` as a comment, for `brought_back`.

    A table that begins or ends within a line is not found: `check` refuses the result.
    """
    changed = ""
    header: _blocks.Path = ()
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        said = _keys_of(line)
        is_header = line.lstrip().startswith("[")
        if is_header:
            header = said
        is_theirs = (header if is_header else (*header, *said))[: len(keys)] == keys
        is_blank = not line.strip() or line.lstrip().startswith("#")
        changed += _ASIDE + line if is_theirs and not is_blank else line
    return changed


def _keys_of(line: str) -> _blocks.Path:
    """The keys of a header or a statement; none if the line is neither."""
    try:
        said: Any = _blocks.parse("", line)
    except ConfigError:
        return ()
    keys: list[str] = []
    while isinstance(said, dict) and len(said) == 1:
        keys += said
        said = said[keys[-1]]
    return tuple(keys)


def brought_back(text: str) -> str:
    """`text` with the comments of `set_aside` as lines again."""
    return re.sub(rf"^{re.escape(_ASIDE)}", "", text, flags=re.MULTILINE)


def changed_at(path: str, text: str, keys: _blocks.Path, ours: dict[str, Any] | None) -> str:
    """`text` with the value at `keys`, in any spelling, set to `ours`; None removes it.

    Our block and the rest are changed separately: tomlkit garbles a table that continues further below.
    """
    block = _blocks.BLOCK.search(text)
    cuts = (0, *block.span(1), len(text)) if block else (0, len(text))
    for start, end in reversed(list(zip(cuts, cuts[1:]))):
        part = text[start:end]
        if keys[-1] in (_blocks.below(path, _blocks.parse(path, part), keys[:-1]) or {}):
            text = text[:start] + _changed_part(path, part, keys, ours) + text[end:]
    return text


def _changed_part(path: str, text: str, keys: _blocks.Path, ours: dict[str, Any] | None) -> str:
    try:
        document = tomlkit.parse(text)
        above: Any = document
        for key in keys[:-1]:
            above = above[key]
        if ours is None:
            del above[keys[-1]]
            return tomlkit.dumps(document)
        table = above[keys[-1]]
        for key, value in ours.items():
            if isinstance(value, dict):
                # Inline, because tomlkit puts a table's header into the middle of dotted keys.
                inner = table.setdefault(key, tomlkit.inline_table())
                for name in value:
                    if inner.get(name) != value[name]:
                        inner[name] = value[name]
            elif table.get(key) != value:
                table[key] = value
        return tomlkit.dumps(document)
    except (TOMLKitError, KeyError, IndexError, RecursionError):  # tomlkit raises IndexError for dotted keys
        raise _by_hand(path, keys[:3]) from None


def check(path: str, text: str, wanted: dict[str, Any], containerd: _blocks.Path) -> None:
    """Compares the new text with the intended content before anything is written."""
    try:
        data = _blocks.parse(path, text)
    except ConfigError:
        raise _by_hand(path, containerd) from None
    if without_empty_tables(data) != without_empty_tables(wanted):
        raise _by_hand(path, containerd)


def _by_hand(path: str, containerd: _blocks.Path) -> ConfigError:
    header = f"[{tomlkit.key(containerd).as_string()}]"
    return ConfigError(
        f"{path} has the CRI plugin's tables as inline tables or dotted keys, which are not safe to change",
        f"write the line {header} first, and below it what that table holds; nothing was changed",
    )


def without_empty_tables(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    inner = {key: without_empty_tables(value) for key, value in data.items()}
    return {key: value for key, value in inner.items() if value != {}}
