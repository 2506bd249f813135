"""An engine's TOML file as text: `configure` adds a block at its end, and the rest stays byte for byte.

tomllib decides about the content.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import tomlkit

from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import malformed, newline_of

if sys.version_info >= (3, 11):
    import tomllib  # novm
else:  # the same parser, under the name that it had before
    import tomli as tomllib

#: The keys that lead to a table.
Path = tuple[str, ...]

BEGIN = "# xpu: what follows is by `xpu runtime configure`; `xpu runtime unconfigure` takes it away."
_END = "# xpu: end"
BLOCK = re.compile(rf"(?:^|\r?\n){re.escape(BEGIN)}\r?\n(.*?){re.escape(_END)}(?:\r?\n|\Z)", re.DOTALL)
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
