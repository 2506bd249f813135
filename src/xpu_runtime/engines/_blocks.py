"""An engine's TOML file as text: `configure` adds its part, and the rest stays byte for byte.

Our part is a block at the end, or a marked line in a table of the file's own. Another program's table of our
name becomes comments. tomllib decides about the content. tomlkit changes a table of ours that is not in a
block. Every change is read again and compared (`check`). The caller names the table: nothing here knows a
version of containerd.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from xpu_runtime.engines import RUNTIME_NAME
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import malformed, newline_of

if sys.version_info >= (3, 11):
    import tomllib  # novm
else:  # the same parser, under the name that it had before
    import tomli as tomllib

#: The keys that lead to a table.
Path = tuple[str, ...]

DEFAULT = "default_runtime_name"

BEGIN = "# xpu: what follows is by `xpu runtime configure`; `xpu runtime unconfigure` takes it away."
_END = "# xpu: end"
BLOCK = re.compile(rf"(?:^|\r?\n){re.escape(BEGIN)}\r?\n(.*?){re.escape(_END)}(?:\r?\n|\Z)", re.DOTALL)
_MARK = "# by `xpu runtime configure`"
#: Our line in a table of the file's own. The replaced line, if there was one, follows the mark.
_LINE = f'{DEFAULT} = "{RUNTIME_NAME}" {_MARK}'
_OUR_LINE = re.compile(
    rf'(\r?\n|\A)[^\r\n=]*{DEFAULT}["\']?[ \t]*=[ \t]*"{RUNTIME_NAME}" {_MARK}(?:, before: ([^\r\n]*))?'
)
_ANY_DEFAULT = re.compile(rf"""^([^\r\n=#]*{DEFAULT}["']?[ \t]*=[ \t]*)[^\r\n]*""", re.MULTILINE)
#: The beginning of a commented line of another program's table. Our table replaces that table.
_ASIDE = "# xpu: not ours, comes back: "
_PLACE = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def parse(path: str, text: str) -> dict[str, Any]:
    """The data of `text`; ConfigError with line and column if it is not TOML."""
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, and int()'s for a number that is too long
        if path.endswith(".tmpl"):
            raise ConfigError(
                f"{path} is a template, of which K3s or RKE2 makes a config.toml, and no TOML",
                "name that config.toml by --config, or write our table into the template by hand "
                "(docs/how-to/engines.md has it); nothing was changed",
            ) from None
        place = _PLACE.fullmatch(str(error))
        what = place.group(1) if place else str(error)
        if place and place.group(2):
            line, column = int(place.group(2)), int(place.group(3))
        else:
            line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
        raise malformed(path, line, column, f"not TOML: {what}") from None
    except RecursionError:
        raise malformed(path, 1, 1, "nested too deeply") from None


def below(path: str, data: dict[str, Any], keys: Path, make: bool = False) -> Any:
    """The table at `keys`. A missing one is None, or a new one with `make`."""
    table = data
    for index, key in enumerate(keys):
        if key not in table and not make:
            return None
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            name = ".".join(keys[: index + 1])
            raise ConfigError(f"{path}: {name} is not a table", "fix it first; nothing was changed")
    return table


def with_default(text: str, containerd: Path, default: Any) -> str | None:
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
            if tomllib.loads(line[0]) == header and default_of(changed, containerd) == RUNTIME_NAME:
                return changed
        except ValueError:
            continue
    return None


def without_default(path: str, text: str, containerd: Path) -> str:
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


def default_of(text: str, containerd: Path) -> Any:
    try:
        return below("", tomllib.loads(text), containerd)[DEFAULT]
    except (ValueError, TypeError, KeyError, ConfigError):
        return None


def with_block(text: str, added: dict[str, Any], is_new: bool) -> str:
    """`text` with a block of ours at its end, or with more content in an existing block.

    `is_new`: there is no file.
    """
    if not added:
        return text
    newline, lines = newline_of(text), tomlkit.dumps(added).removesuffix("\n").split("\n")
    block = BLOCK.search(text)
    if block is not None:
        # Above the existing tables: the table that holds them must come first.
        table = re.search(r"^[ \t]*\[", block[1], re.MULTILINE)
        at = block.start(1) + table.start() if table else block.end(1)
        return text[:at] + newline.join([*lines, ""]) + text[at:]
    # One line end comes before the block: a blank line, or the missing end of the last line. It distinguishes
    # an empty file from a missing one.
    return text + ("" if is_new else newline) + newline.join([BEGIN, *lines, _END, ""])


def set_aside(text: str, keys: Path) -> str:
    """`text` with each line of the table at `keys` as a comment, for `brought_back`.

    A table that begins or ends within a line is not found: `check` refuses the result.
    """
    changed, header = "", Path()
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        said = _keys_of(line)
        is_header = line.lstrip().startswith("[")
        if is_header:
            header = said
        is_theirs = (header if is_header else (*header, *said))[: len(keys)] == keys
        is_blank = not line.strip() or line.lstrip().startswith("#")
        changed += _ASIDE + line if is_theirs and not is_blank else line
    return changed


def _keys_of(line: str) -> Path:
    """The keys of a header or a statement; none if the line is neither."""
    try:
        said: Any = tomllib.loads(line)
    except ValueError:
        return ()
    keys: list[str] = []
    while isinstance(said, dict) and len(said) == 1:
        keys += said
        said = said[keys[-1]]
    return tuple(keys)


def brought_back(text: str) -> str:
    """`text` with the comments of `set_aside` as lines again."""
    return re.sub(rf"^{re.escape(_ASIDE)}", "", text, flags=re.MULTILINE)


def without_blocks(text: str, kept: dict[str, Any]) -> str:
    """`text` with `kept` instead of our block."""
    newline = newline_of(text)
    lines = tomlkit.dumps(kept).removesuffix("\n").split("\n") if kept else []
    while (block := BLOCK.search(text)) is not None:
        before, after = text[: block.start()], text[block.end() :]
        if before and not before.endswith("\n") and (lines or after):
            before += newline
        text = before + "".join(line + newline for line in lines) + after
        lines = []
    return text


def changed_at(path: str, text: str, keys: Path, ours: dict[str, Any] | None) -> str:
    """`text` with the value at `keys`, in any spelling, set to `ours`; None removes it.

    Our block and the rest are changed separately: tomlkit garbles a table that continues further below.
    """
    block = BLOCK.search(text)
    cuts = (0, *block.span(1), len(text)) if block else (0, len(text))
    for start, end in reversed(list(zip(cuts, cuts[1:]))):
        part = text[start:end]
        if keys[-1] in (below(path, parse(path, part), keys[:-1]) or {}):
            text = text[:start] + _changed_part(path, part, keys, ours) + text[end:]
    return text


def _changed_part(path: str, text: str, keys: Path, ours: dict[str, Any] | None) -> str:
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


def check(path: str, text: str, wanted: dict[str, Any], containerd: Path) -> None:
    """Compares the new text with the intended content before anything is written."""
    try:
        data = parse(path, text)
    except ConfigError:
        raise _by_hand(path, containerd) from None
    if without_empty_tables(data) != without_empty_tables(wanted):
        raise _by_hand(path, containerd)


def _by_hand(path: str, containerd: Path) -> ConfigError:
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
