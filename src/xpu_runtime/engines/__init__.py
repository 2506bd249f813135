"""The engines whose configuration we know: a module each, with the same few names.

A new engine is one new file or folder here. Its functions say of which files the text should become what,
and write nothing; textfile.py, below this layer, does the reading and writing.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Protocol, cast

from xpu_runtime import registered
from xpu_runtime.textfile import Edit, TextFile

ENGINES = registered.names("engines")

#: The name under which an engine knows us: `docker run --runtime=xpu`.
RUNTIME_NAME = "xpu"


class Engine(Protocol):
    """What each module here has: the program, where its file is and by which options another one, what makes
    it read it; the two changes, what the file names as our runtime (None: nothing), all files that count."""

    PROGRAM: str
    DEFAULT_PATH: str
    CONFIG_OPTIONS: tuple[str, ...]
    AFTER_CONFIGURE: str
    AFTER_UNCONFIGURE: str

    @staticmethod
    def configure(file: TextFile, runtime_path: str, set_as_default: bool) -> tuple[Edit, ...]: ...

    @staticmethod
    def runtime_path(file: TextFile) -> str | None: ...

    @staticmethod
    def data(file: TextFile) -> dict[str, Any]: ...

    @staticmethod
    def sources(file: TextFile) -> list[str]: ...

    @staticmethod
    def unconfigure(file: TextFile) -> tuple[Edit, ...]: ...


def engine(name: str) -> Engine:
    """The engine with this name, one of ENGINES."""
    return cast(Engine, importlib.import_module(f"xpu_runtime.engines.{name}"))


def unconfigure(known: Engine, file: TextFile, is_needed: bool = False) -> tuple[Edit, ...]:
    """The engine's files without our runtime; a file is gone if it has nothing but what configure writes
    where there is none. ConfigError.

    `is_needed`: an engine was started with the file's name, and would not start again without the file.
    """
    edits = known.unconfigure(file)
    path = known.runtime_path(file)
    if path is None or is_needed or file.mark or os.path.islink(file.path):
        return edits
    none = TextFile(file.path, file.target, "", None)
    for set_as_default in (False, True):
        made = known.configure(none, path, set_as_default)
        if [(edit.file.path, edit.text) for edit in made] == [(file.path, file.text)]:
            return (Edit(file, None),)
    return edits
