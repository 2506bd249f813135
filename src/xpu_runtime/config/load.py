"""The effective configuration, for the price of a few stat(2) calls.

Importing YAML and JSON Schema costs more than a whole container start. So a file that was checked once is
kept as JSON in the run folder, and used as long as the file's stamp stays the same. The run folder is only a
cache: if it cannot be written, each call computes the same again. Independent of the settings' meaning.
"""

from __future__ import annotations

import os

from xpu_runtime import paths
from xpu_runtime.config import cache
from xpu_runtime.config.defaults import DEFAULTS, Config, from_plain
from xpu_runtime.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def load() -> Config:
    """The effective configuration; the defaults where there is no file.

    Raises ConfigError, with the first problem's line, where the file cannot be used.
    """
    path = paths.config_file()
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return DEFAULTS
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})", "check its permissions") from None
    compiled = _read_compiled(cache.config_stamp(path, found))
    if compiled is not None:
        return compiled
    from xpu_runtime.config.compile import compile_config

    return compile_config(path)


def _read_compiled(stamp: list[Any]) -> Config | None:
    document = cache.read(cache.COMPILED)
    if document.get("stamp") != stamp:
        return None
    try:
        return from_plain(document["config"])
    except (LookupError, TypeError, AttributeError):
        return None
