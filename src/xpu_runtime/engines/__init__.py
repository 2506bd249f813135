"""The engines whose configuration we know: a module each, with the same few names.

A new engine is one new file here and its name in ENGINES. Its functions turn the text of a
configuration file into the text that it should be, and touch nothing; `textfile` does the reading
and writing.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from xpu_runtime.engines.textfile import Edit, TextFile

ENGINES = ("docker", "containerd")

#: The name under which an engine knows us: `docker run --runtime=xpu`.
RUNTIME_NAME = "xpu"


class Engine(Protocol):
    """What each module here has: the program, where its file is, what makes it read it, the two changes."""

    PROGRAM: str
    DEFAULT_PATH: str
    AFTER_CONFIGURE: str
    AFTER_UNCONFIGURE: str

    @staticmethod
    def configure(file: TextFile, runtime_path: str, set_as_default: bool) -> Edit: ...

    @staticmethod
    def unconfigure(file: TextFile) -> Edit: ...


def engine(name: str) -> Engine:
    """The engine with this name, one of ENGINES."""
    return cast(Engine, importlib.import_module(f"xpu_runtime.engines.{name}"))
