"""A TOML file of our own in an engine's drop-in folder, for podman and cri-o.

These engines read the main file, then the files of the folder in the order of their names. A later value
counts. A file may be the main one itself.

Our tables are a block of the file (_blocks.py), so other content of the file stays. Nothing is written here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from xpu_runtime import textfile
from xpu_runtime.engines import RUNTIME_NAME, _blocks
from xpu_runtime.engines._blocks import Path
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import Edit, TextFile
from xpu_runtime.value import Value


class DropIn(Value):
    """Our file in such a folder, with the functions of an `Engine` that do not depend on the tables' content.

    `runtime`, `default`: the keys of our runtime and of the default one. `main`: the main file's name, above
    the folder. `before`, `after`: files that the engine reads before and after all of these. `every`: it
    reads all files in and below the folder, and not *.conf alone."""

    runtime: Path
    default: Path
    main: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    every: bool = False

    def configure(self, file: TextFile, wanted: dict[str, Any], set_as_default: bool) -> tuple[Edit, ...]:
        """The file with the tables `wanted`. ConfigError if it is malformed, if it has these tables already,
        or if the engine would take others."""
        data = _blocks.parse(file.path, file.text)
        others = [each for each in self.files(file) if each.path != file.path]
        notes = []
        if set_as_default or _value(data, self.default) == RUNTIME_NAME:
            _blocks.below(file.path, wanted, self.default[:-1], make=True)[self.default[-1]] = RUNTIME_NAME
        text = self._with(file, data, wanted)
        becoming = _blocks.parse(file.path, text)
        for keys in (self.runtime, self.default):
            ours = _value(becoming, keys)
            where, value = last(others, keys)
            if ours is None or value in (None, ours):
                continue
            name = ".".join(keys)
            if self._is_later(where, file):
                raise ConfigError(
                    f"{where} is read after {file.path}, and has another {name}",
                    "take it out there; nothing was changed",
                )
            notes.append(f"{where} has another {name}; ours stands over it until unconfigure")
        return (Edit(file, text, tuple(notes)),)

    def unconfigure(self, file: TextFile) -> tuple[Edit, ...]:
        """The file without our block, or no file if nothing else is in it. ConfigError."""
        _blocks.parse(file.path, file.text)
        text = _blocks.without_blocks(file.text, {})
        if _value(_blocks.parse(file.path, text), self.runtime) is not None:
            raise ConfigError(
                f"{file.path} has {'.'.join(self.runtime)} by another hand than `xpu runtime configure`",
                "take it out there; nothing was changed",
            )
        is_all_ours = not text and not file.mark and file.text.startswith(_blocks.BEGIN)
        return (Edit(file, None if is_all_ours else text),)

    def unseen(self, file: TextFile) -> ConfigError | None:
        """Why the engine takes another runtime than the one in our file. ConfigError."""
        where, value = last(self.files(file), self.runtime)
        if not self._is_later(where, file) or value == of(file, self.runtime):
            return None
        return ConfigError(
            f"{where} is read after {file.path}, and has another {'.'.join(self.runtime)}",
            "take it out there",
        )

    def data(self, file: TextFile) -> dict[str, Any]:
        """The file's content. ConfigError."""
        return _blocks.parse(file.path, file.text)

    def sources(self, file: TextFile) -> list[str]:
        """The paths of the files that the engine reads, as root. ConfigError."""
        return [each.target for each in self.files(file)]

    def files(self, file: TextFile) -> list[TextFile]:
        """The existing files that the engine reads, in its order. ConfigError."""
        ours = os.path.abspath(file.path)
        found = [file if each == ours else textfile.read(each) for each in self._paths(file)]
        return [each for each in found if each.state is not None]

    def _with(self, file: TextFile, data: dict[str, Any], wanted: dict[str, Any]) -> str:
        theirs = _blocks.without_blocks(file.text, {})
        merged = _merged(_blocks.parse(file.path, theirs), wanted)
        if data == merged:
            return file.text
        text = _blocks.with_block(theirs, wanted, file.state is None or file.text.startswith(_blocks.BEGIN))
        try:
            if _blocks.parse(file.path, text) == merged:
                return text
        except ConfigError:
            pass  # a table of the same name
        what = f"{file.path} has tables of its own with the names of ours"
        if os.path.basename(file.path) == self.main:
            raise ConfigError(
                what, "leave --config out, or name a new file of its folder of drop-ins; nothing was changed"
            )
        raise ConfigError(
            what,
            "move them to another file of that folder, or remove it if they are of an `xpu` written by hand; "
            "nothing was changed",
        )

    def _paths(self, file: TextFile) -> list[str]:
        ours = os.path.abspath(file.path)
        folder, name = os.path.split(ours)
        main = os.path.join(os.path.dirname(folder), self.main)
        if name == self.main:
            main, folder = ours, f"{ours}.d"
        beside = {
            os.path.join(each, name)
            for each, _, names in os.walk(folder)
            for name in names
            if self.every or (each == folder and name.endswith(".conf"))
        }
        # A folder's files come where its own name stands among the names beside it.
        ordered = sorted({*beside, ours} - {main}, key=lambda path: path.split("/"))
        return [*self.before, main, *ordered, *self.after]

    def _is_later(self, path: str, file: TextFile) -> bool:
        order = self._paths(file)
        return path in order and order.index(path) > order.index(os.path.abspath(file.path))


def of(file: TextFile, keys: Path) -> Any:
    """The file's own value at `keys`; None where it has none. ConfigError."""
    return _value(_blocks.parse(file.path, file.text), keys)


def last(read: Sequence[TextFile], keys: Path) -> tuple[str, Any]:
    """The last file that has a value at `keys`, and that value; ("", None) if none has."""
    for each in reversed(read):
        value = _value(_blocks.parse(each.path, each.text), keys)
        if value is not None:
            return each.path, value
    return "", None


def _value(data: dict[str, Any], keys: Path) -> Any:
    value: Any = data
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _merged(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    merged = dict(theirs)
    for key, value in ours.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged
