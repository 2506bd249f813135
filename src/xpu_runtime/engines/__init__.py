"""The engines that we can configure. Each has a module with the same few names.

A new engine is one new file or folder here. Its functions return the new texts of files, and write nothing.
textfile.py, below this layer, reads and writes.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
from typing import Any, Protocol, cast

from xpu_runtime import extensions
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import Edit, TextFile

ENGINES = extensions.names("engines")

#: The name under which an engine knows us: `docker run --runtime=xpu`.
RUNTIME_NAME = "xpu"
#: The file name of our runtime, whatever the folder and the name under which an engine knows it.
RUNTIME_PROGRAM = "xpu-container-runtime"


class Engine(Protocol):
    """The names of each module here. They are the program, its file, and the options that name another file.
    They are also the two changes, our runtime's path in the file (None: none), all files that count, and what
    makes the program read the file again, after our runtime was added or removed."""

    PROGRAM: str
    DEFAULT_PATH: str
    CONFIG_OPTIONS: tuple[str, ...]

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

    @staticmethod
    def after_change(file: TextFile, is_removed: bool) -> str: ...


def engine(name: str) -> Engine:
    """The engine with this name, one of ENGINES."""
    return cast(Engine, importlib.import_module(f"xpu_runtime.engines.{name}"))


def installed_version(program: str) -> tuple[int, int] | None:
    """The major and minor version of the program on PATH. None if there is no program, or if it prints no
    version.

    This takes as long as that program, up to 10 seconds: callers pass the result on.
    """
    path = shutil.which(program)
    try:
        done = subprocess.run([path or "", "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    for word in done.stdout.split():
        parts = word.removeprefix("v").split(".")
        if len(parts) >= 3 and parts[0].isdigit() and parts[1].isdigit():
            return int(parts[0]), int(parts[1])
    return None


def unconfigure(known: Engine, file: TextFile, is_needed: bool = False) -> tuple[Edit, ...]:
    """The engine's files without our runtime. A file with only the text that configure writes into a new one
    is removed, also behind a link. ConfigError.

    `is_needed`: an engine was started with the file's name, and would not start again without the file.
    """
    edits = known.unconfigure(file)
    if edits and edits[0].text is None:
        return edits
    path = known.runtime_path(file)
    if path is None or is_needed or file.mark:
        return edits
    none = TextFile(file.path, file.target, "", None)
    for set_as_default in (False, True):
        try:
            made = known.configure(none, path, set_as_default)
        except ConfigError:
            continue  # another file has our name, which is no reason to keep ours
        if [(edit.file.path, edit.text) for edit in made] == [(file.path, file.text)]:
            return (Edit(file, None),)
    return edits
