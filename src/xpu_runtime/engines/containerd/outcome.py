"""Our runtime in containerd's merged files: whether containerd sees it, and notes for the user."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from xpu_runtime.engines import RUNTIME_NAME, _blocks
from xpu_runtime.engines.containerd import in_place, merged
from xpu_runtime.engines.containerd.reader import DROP_IN, containerd_path, version_for
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import Edit, TextFile


def noted(
    file: TextFile,
    edits: tuple[Edit, ...],
    version: tuple[int, int],
    is_installed: bool,
    runtime_path: str,
    as_default: bool,
) -> tuple[Edit, ...]:
    """The edits, with notes. ConfigError if the installed containerd has this version and would not see our
    runtime then."""
    becoming = [each.file.replace(text=each.text or "") for each in edits]
    root = next((each for each in becoming if each.path == file.path), file)
    hidden = unseen(root, runtime_path, as_default, becoming, version)
    hidden = hidden or _hiding(file, root, becoming, version)
    if hidden is not None and is_installed:
        raise ConfigError(hidden.what, f"{hidden.todo}; nothing was changed")
    notes = [str(hidden)] if hidden is not None else []
    for each in merged.files(root, becoming, version):
        disabled = _blocks.parse(each.path, each.text).get("disabled_plugins")
        for name in disabled if isinstance(disabled, list) else []:
            if name in merged.PLUGINS.values():
                notes.append(
                    f"disabled_plugins has {name}, in {each.path}: Kubernetes will not see the runtime until "
                    "that is removed"
                )
    if unlike := unlike_others(root, becoming, version):
        notes.append(f"{unlike}; for the same, run `xpu runtime unconfigure containerd`, then this again")
    return (edits[0].replace(notes=(*edits[0].notes, *notes)), *edits[1:])


def _hiding(
    file: TextFile, root: TextFile, becoming: Sequence[TextFile], version: tuple[int, int]
) -> ConfigError | None:
    """The runtimes that containerd would no longer see beside ours: its tables of version 3 hide those of
    version 2, whatever these name."""
    before = merged.containerd_table(merged.files(file, version=version), version)
    after = merged.containerd_table(merged.files(root, becoming, version), version)
    gone = [name for name in before.get("runtimes", {}) if not merged.runtime(after, name)]
    if not gone:
        return None
    return ConfigError(
        f"beside ours containerd {version[0]}.{version[1]} would not see the runtime {', '.join(gone)}: a "
        f"file that {file.path} imports has it in tables of another version",
        f"give all these files the version of {file.path}",
    )


def unseen(
    file: TextFile,
    runtime_path: str,
    as_default: bool = False,
    becoming: Sequence[TextFile] = (),
    version: tuple[int, int] | None = None,
) -> ConfigError | None:
    """Why containerd would not run `runtime_path` for us, and the remedy; None: it would. ConfigError.

    `becoming`: files as they will be (merged.files). `version`: containerd's; None: it is looked up.
    """
    data = _blocks.parse(file.path, file.text)
    plugin = containerd_path(file.path, data)[1]
    version = version or version_for(file, data)
    read = merged.files(file, becoming, version)
    table = merged.containerd_table(read, version)
    named = merged.options(table, RUNTIME_NAME).get("BinaryName") == runtime_path
    if named and (not as_default or table.get(in_place.DEFAULT) == RUNTIME_NAME):
        return None
    who = f"containerd {version[0]}.{version[1]}"
    if version >= merged.MERGES and plugin == merged.PLUGINS[1]:
        rename = f'name its tables plugins."{merged.PLUGINS[2]}", ' if data.get("plugins") else ""
        return ConfigError(
            f"{who} ignores plugins.{plugin} of a file of version 1, as {file.path} is",
            f"write `version = 2` as its first line, {rename}and configure again",
        )
    for other in reversed(read):
        if other.path == file.path or os.path.basename(other.path) == DROP_IN:
            continue
        plugins = _blocks.below(other.path, _blocks.parse(other.path, other.text), ("plugins",)) or {}
        tables = [each for each in dict.fromkeys(merged.PLUGINS.values()) if each in plugins]
        if tables and version < merged.MERGES:
            return ConfigError(
                f"{other.path}, which is imported, has tables of plugins.{tables[0]} too, and {who} "
                "takes only those",
                f"use --config {other.path}",
            )
        alone = merged.containerd_table([other], version)
        if tables and (
            tables != [plugin] or in_place.DEFAULT in alone or merged.runtime(alone, RUNTIME_NAME)
        ):
            return ConfigError(
                f"{other.path}, which is imported, has tables of plugins.{tables[0]}, and {who} takes "
                f"those in the place of ours in plugins.{plugin}",
                f"give it the version of {file.path}, without {RUNTIME_NAME} and {in_place.DEFAULT}",
            )
    return ConfigError(f"{who} does not take our runtime from {file.path}", "see its log at its start")


def unlike_others(
    file: TextFile, becoming: Sequence[TextFile] = (), version: tuple[int, int] | None = None
) -> str:
    """A note if our runtime makes cgroups in another way than the default runtime or runc; "" if not. The
    arguments are those of `unseen`."""
    version = version or version_for(file, _blocks.parse(file.path, file.text))
    table = merged.containerd_table(merged.files(file, becoming, version), version)
    name, theirs = systemd_cgroup(table) or ("runc", False)
    ours = bool(merged.options(table, RUNTIME_NAME).get("SystemdCgroup"))
    if ours == theirs or not merged.runtime(table, name):
        return ""
    return (
        f"SystemdCgroup is {str(theirs).lower()} for {name} and {str(ours).lower()} for {RUNTIME_NAME}: "
        "containers are then outside of their pods' slices"
    )


def systemd_cgroup(table: dict[str, Any]) -> tuple[str, bool] | None:
    """The runtime that sets the cgroup driver, and whether that is systemd; None if no runtime sets it."""
    for name in (table.get(in_place.DEFAULT), "runc"):
        options = merged.options(table, name)
        if name != RUNTIME_NAME and "SystemdCgroup" in options:
            return str(name), bool(options["SystemdCgroup"])
    return None
