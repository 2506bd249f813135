"""config.toml with all that it imports, merged in containerd's way.

The way depends on containerd's version: `LoadConfig` and `mergeConfig` in its config.go
(services/server/config, from 2.0 on cmd/containerd/server/config), and `configMigration` in
plugins/cri/runtime/plugin.go. Files are read, and none is written.
"""

from __future__ import annotations

import copy
import fnmatch
import os
from collections.abc import Iterable
from typing import Any

from xpu_runtime import textfile
from xpu_runtime.engines import _blocks
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import TextFile

#: The CRI plugin's name by version of the file. Version 4 moved only the server's own settings.
PLUGINS = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}

#: The first version that merges the tables of a plugin. Earlier ones take a whole plugin from the last file
#: that names it.
MERGES = (2, 0)
#: The first version that brings each file to the newest version before the merge. Earlier ones do so after
#: it.
_MIGRATES_EACH = (2, 3)
_NEWEST = 3


def files(
    root: TextFile, becoming: Iterable[TextFile] = (), version: tuple[int, int] = MERGES
) -> list[TextFile]:
    """The file and its imports, nested ones too, in the order in which a containerd of this version merges
    them. ConfigError.

    `becoming`: the new content of files. It replaces existing files, or adds files that are still to be made.
    """
    new = {os.path.abspath(each.path): each for each in (root, *becoming)}
    found: dict[str, TextFile] = {}
    waiting = [os.path.abspath(root.path)]
    while waiting:
        path = waiting.pop(0)
        if path in found:
            continue
        found[path] = new.get(path) or textfile.read(path)
        imports = _blocks.parse(path, found[path].text).get("imports", [])
        if not isinstance(imports, list) or not all(isinstance(each, str) for each in imports):
            raise ConfigError(f"{path}: imports is no list of strings", "fix it first; nothing was changed")
        for name in imports:
            # A containerd that does not merge uses a pattern unchanged. systemd starts it in this folder.
            folder = "/" if version < MERGES and "*" in name else os.path.dirname(path)
            waiting += _named(os.path.normpath(os.path.join(folder, name)), new)
    return list(found.values())


def imports(pattern: str, path: str) -> bool:
    """Whether an import matches the file at `path`, existing or not. Both paths are absolute and
    normalised."""
    return path in _named(pattern, [path])


def _named(pattern: str, new: Iterable[str]) -> list[str]:
    """The paths that match an import, by the rules of Go's filepath.Glob: hidden files match, too. A path
    without a `*` is taken unchanged."""
    if "*" not in pattern:
        return [pattern]
    found = ["/"]
    for part in pattern.split("/")[1:]:
        found = [
            os.path.join(folder, name)
            for folder in found
            for name in sorted(_names(folder, new))
            if fnmatch.fnmatchcase(name, part.replace("[^", "[!"))
        ]
    return found


def _names(folder: str, new: Iterable[str]) -> set[str]:
    try:
        there = os.listdir(folder)
    except OSError:
        there = []
    start = os.path.join(folder, "")
    return {*there, *(each[len(start) :].partition("/")[0] for each in new if each.startswith(start))}


def containerd_table(read: Iterable[TextFile], version: tuple[int, int]) -> dict[str, Any]:
    """The CRI plugin's table that holds `runtimes`, as a containerd of this version reads it. ConfigError."""
    if version < MERGES:
        return _of_whole_plugins(read)
    plugins: dict[str, Any] = {}
    merged_version = _NEWEST
    for each in read:
        data = _blocks.parse(each.path, each.text)
        theirs = _plugins(each, data)
        own_version = data.get("version")
        if type(own_version) is not int or own_version < 2:
            if PLUGINS[1] in theirs:
                theirs[PLUGINS[2]] = theirs.pop(PLUGINS[1])
            own_version = merged_version
            if version >= _MIGRATES_EACH:
                _migrate(theirs)
        elif version >= _MIGRATES_EACH and own_version < _NEWEST:
            _migrate(theirs)
        merged_version = own_version
        _merge(plugins, theirs)
    if merged_version < _NEWEST:
        _migrate(plugins)
    return _table(_table(plugins, PLUGINS[_NEWEST]), "containerd")


def _of_whole_plugins(read: Iterable[TextFile]) -> dict[str, Any]:
    """The table for a containerd that does not merge: the version in the last file that has one counts for
    all."""
    plugins: dict[str, Any] = {}
    version = 1
    for each in read:
        data = _blocks.parse(each.path, each.text)
        plugins.update(_plugins(each, data))
        version = data.get("version") or version
    return _table(_table(plugins, PLUGINS[1 if version == 1 else 2]), "containerd")


def _plugins(file: TextFile, data: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(_blocks.below(file.path, data, ("plugins",)) or {})


def runtime(table: dict[str, Any], name: Any) -> dict[str, Any]:
    """The runtime of this name in a `containerd_table`; empty where there is none."""
    return _table(_table(table, "runtimes"), name)


def options(table: dict[str, Any], name: Any) -> dict[str, Any]:
    return _table(runtime(table, name), "options")


def _migrate(plugins: dict[str, Any]) -> None:
    """Version 2's table fills the gaps of version 3's."""
    old = _table(_table(plugins, PLUGINS[2]), "containerd")
    if old:
        new = {**_table(plugins, PLUGINS[3])}
        new["containerd"] = {**old, **_table(new, "containerd")}
        plugins[PLUGINS[3]] = new


def _table(table: dict[str, Any], name: Any) -> dict[str, Any]:
    found = table.get(name) if isinstance(name, str) else None
    return found if isinstance(found, dict) else {}


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
