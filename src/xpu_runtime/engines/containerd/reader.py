"""Which containerd reads config.toml, in which of its tables, and where our drop-in file would be."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from typing import Any

from xpu_runtime import textfile
from xpu_runtime.engines.containerd import blocks, merged
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import TextFile

#: The last one that is imported decides on the default runtime.
DROP_IN = "99-xpu.toml"


def installed_version() -> tuple[int, int] | None:
    """The major and minor version of the containerd on PATH; None if there is none, or if it does not tell.

    Takes as long as that program, up to 10 seconds: callers pass the result on.
    """
    program = shutil.which("containerd")
    try:
        done = subprocess.run([program or "", "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    for word in done.stdout.split():
        parts = word.removeprefix("v").split(".")
        if len(parts) >= 3 and parts[0].isdigit() and parts[1].isdigit():
            return int(parts[0]), int(parts[1])
    return None


def version_for(file: TextFile, data: dict[str, Any]) -> tuple[int, int]:
    """The version of the containerd that reads config.toml, which says `data`, as far as it can be told."""
    return reader_of(data, installed_version()) or fitting(file, data)


def reader_of(data: dict[str, Any], installed: tuple[int, int] | None) -> tuple[int, int] | None:
    """The version of the containerd that reads such a config.toml: the installed one's, if that knows it."""
    another = installed is not None and installed < merged.MERGES and _is_for_2(data)
    return None if another else installed


def _is_for_2(data: dict[str, Any]) -> bool:
    """Whether only containerd 2 reads a config.toml of this version."""
    version = data.get("version")
    return isinstance(version, int) and version > 2


def fitting(file: TextFile, data: dict[str, Any]) -> tuple[int, int]:
    """The version of a containerd that such files are for. A pattern relative to config.toml means nothing to
    one that does not merge (merged.files)."""
    imports = data.get("imports")
    patterns = [str(each) for each in imports if "*" in str(each)] if isinstance(imports, list) else []
    merges = (
        _is_for_2(data)
        or not all(map(os.path.isabs, patterns))
        or any(each.state for each in drop_ins_of(file, data))
    )
    return merged.MERGES if merges else (1, 0)


def drop_ins_of(file: TextFile, data: dict[str, Any]) -> list[TextFile]:
    """Our file, whether it is there or not, in each folder whose files config.toml imports."""
    imports = data.get("imports")
    found: dict[str, TextFile] = {}
    for pattern in imports if isinstance(imports, list) else []:
        named = os.path.abspath(os.path.join(os.path.dirname(file.path), str(pattern)))
        folder = os.path.dirname(named)
        path = os.path.join(folder, DROP_IN)
        if folder == glob.escape(folder) and merged.imports(named, path):
            drop_in = textfile.read(path)
            found.setdefault(drop_in.target, drop_in)
    return list(found.values())


def containerd_path(path: str, data: dict[str, Any]) -> blocks.Path:
    """The path of the table that holds `runtimes`, for the version that the file is in."""
    version = data.get("version", 1)
    if version == 0 and type(version) is int:
        version = 1  # as containerd takes it; dockerd writes it for the containerd that it starts
    if type(version) is not int or version not in merged.PLUGINS:
        raise ConfigError(f"{path}: version is {version!r}", "known are 1 to 4; nothing was changed")
    plugins = blocks.below(path, data, ("plugins",)) or {}
    if version == 1 and merged.PLUGINS[2] in plugins:
        # containerd 1 ignores such a table; containerd 2 would merge it with ours in no certain order.
        raise ConfigError(
            f"{path} has version 2's tables (plugins.{merged.PLUGINS[2]}) and no `version = 2`",
            "add that as its first line; nothing was changed",
        )
    return ("plugins", merged.PLUGINS[version], "containerd")
