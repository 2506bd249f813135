"""containerd: our runtime in the tables of its CRI plugin.

From 2.0 on containerd merges the tables of imported files. Our runtime is then a drop-in file of its own, if
config.toml imports a folder. containerd 1 takes the whole CRI plugin from the last file that names it, so a
drop-in would remove the user's own runtimes. For containerd 1, and if nothing is imported, our runtime is a
block at the end of config.toml. The rest of that file stays byte for byte. The names of the tables depend on
its `version`; a file without one has version 1 (docs/man/containerd-config.toml.5).

engines/_blocks.py adds the block. in_place.py changes the file's own tables. reader.py finds the containerd
that reads them. merged.py merges all files as containerd does. outcome.py states the result for our runtime.
textfile.py writes.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import tomlkit

from xpu_runtime import engines, textfile
from xpu_runtime.engines import RUNTIME_NAME, RUNTIME_PROGRAM, _blocks
from xpu_runtime.engines.containerd import in_place, merged, reader
from xpu_runtime.engines.containerd.outcome import noted, systemd_cgroup
from xpu_runtime.engines.containerd.reader import (
    containerd_path,
    drop_ins_of,
    fitting,
    reader_of,
    version_for,
)
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import Edit, TextFile

PROGRAM = "containerd"
DEFAULT_PATH = "/etc/containerd/config.toml"
CONFIG_OPTIONS = ("--config", "-c")
_RESTART = "systemctl restart containerd (without systemd: end containerd, and start it as before)"

#: The annotations that ask for an XPU must reach the runtime; containerd passes only those named here.
_ANNOTATIONS = "yoyoworks.com/*"
_RUNTIME_TYPE = "io.containerd.runc.v2"
#: containerd's runtime if the file has no table of runtimes. It is named if ours would be the only one.
_PLAIN_RUNC = {"runtime_type": _RUNTIME_TYPE}
#: The program that makes a runtime ours, also under another name.


def configure(file: TextFile, runtime_path: str, set_as_default: bool) -> tuple[Edit, ...]:
    """Enters the runtime at `runtime_path`. ConfigError if config.toml is malformed or cannot be extended, or
    if the installed containerd would not see the runtime."""
    data = _blocks.parse(file.path, file.text)
    installed = engines.installed_version(PROGRAM)
    beginning = {} if data else _beginning(file, installed)
    containerd = containerd_path(file.path, data or beginning)
    path = (*containerd, "runtimes", RUNTIME_NAME)
    drop_ins = drop_ins_of(file, data)
    installed = reader_of(data or beginning, installed)
    there = [drop_in for drop_in in drop_ins if drop_in.state is not None]
    version = installed or fitting(file, data)
    root = file.replace(text=tomlkit.dumps(beginning)) if beginning else file
    read = merged.files(root, version=version)
    table = merged.containerd_table(read, version)
    # An existing drop-in was made for a containerd that merges. That containerd may only be missing on PATH
    # now.
    merges = there if installed is None else drop_ins if installed >= merged.MERGES else []
    if reader.maker_of(file) and reader.is_for_2(data):
        merges = drop_ins
    if merges and _blocks.below(file.path, data, path) is None:
        drop_in = (there or merges)[0]
        edit = _configure_drop_in(drop_in, data, table, containerd, runtime_path, set_as_default)
        imported = merged.runtime(table, RUNTIME_NAME)
        if imported and not _is_ours(imported, runtime_path):
            note = (
                f"an imported file has a runtimes.{RUNTIME_NAME} of another program's; ours stands over it "
                "until unconfigure"
            )
            edit = edit.replace(notes=(*edit.notes, note))
        return noted(file, (edit,), version, installed is not None, runtime_path, set_as_default)

    reader.check_stays(file)
    # A drop-in beside an entry in config.toml would be a second copy. A containerd that does not merge would
    # see no other tables of the CRI plugin.
    set_as_default |= any(in_place.default_of(drop_in.text, containerd) == RUNTIME_NAME for drop_in in there)
    text = file.text
    notes: tuple[str, ...] = ()
    wanted, added = {**copy.deepcopy(data), **beginning}, dict(beginning)
    present = _blocks.below(file.path, data, path)
    if present is not None and _is_anothers(file, present, path, runtime_path):
        text, present = in_place.set_aside(text, path), None
        del _blocks.below(file.path, wanted, path[:-1])[RUNTIME_NAME]
        notes = (f"runtimes.{RUNTIME_NAME} was another program's; unconfigure brings that back",)
    ours = _ours(file.path, present, table, runtime_path)
    if present is None:
        for target in (wanted, added):
            _enter(file.path, target, table, containerd, ours)
    elif present != ours:
        _blocks.below(file.path, wanted, path[:-1])[RUNTIME_NAME] = ours
        text = in_place.changed_at(file.path, text, path, ours)
    default = (_blocks.below(file.path, data, containerd) or {}).get(in_place.DEFAULT)
    if default == RUNTIME_NAME and _blocks.below(file.path, data, path) is None:
        notes = (f"{in_place.DEFAULT} was {RUNTIME_NAME} already; unconfigure takes that out, too",)
    if set_as_default and default != RUNTIME_NAME:
        _blocks.below(file.path, wanted, containerd, make=True)[in_place.DEFAULT] = RUNTIME_NAME
        changed = in_place.with_default(text, containerd, default)
        if changed is None:
            _blocks.below(file.path, added, containerd, make=True)[in_place.DEFAULT] = RUNTIME_NAME
        text = changed or text
    text = _blocks.with_block(text, added, file.state is None)
    in_place.check(file.path, text, wanted, containerd)
    edits = (Edit(file, text, notes), *_without_ours(there, data, runtime_path))
    return noted(file, edits, version, installed is not None, runtime_path, set_as_default)


def _is_anothers(file: TextFile, present: dict[str, Any], path: _blocks.Path, runtime_path: str = "") -> bool:
    """Whether the table of our name belongs to another program, and not to an installation of ours."""
    if _is_ours(present, runtime_path):
        return False
    added = _blocks.parse(file.path, "".join(block[1] for block in _blocks.BLOCK.finditer(file.text)))
    return _blocks.below(file.path, added, path) is None


def _is_ours(table: dict[str, Any], runtime_path: str = "") -> bool:
    """Whether a runtime is an installation of ours: by its program, or by annotations that only ours
    takes."""
    options, annotations = table.get("options"), table.get("pod_annotations")
    program = str(options.get("BinaryName", "")) if isinstance(options, dict) else ""
    return (
        os.path.basename(program) == RUNTIME_PROGRAM
        or (program != "" and program == runtime_path)
        or (isinstance(annotations, list) and _ANNOTATIONS in annotations)
    )


def runtime_path(file: TextFile) -> str | None:
    """The program that config.toml or our drop-in beside it names as our runtime; None if neither does.
    ConfigError."""
    data = _blocks.parse(file.path, file.text)
    containerd = containerd_path(file.path, data or _beginning(file, engines.installed_version(PROGRAM)))
    for each in (*drop_ins_of(file, data), file):
        tables = _blocks.parse(each.path, each.text)
        ours = _blocks.below(each.path, tables, (*containerd, "runtimes", RUNTIME_NAME, "options")) or {}
        if isinstance(ours.get("BinaryName"), str):
            return str(ours["BinaryName"])
    return None


def data(file: TextFile) -> dict[str, Any]:
    """The file's content, without its imports; ConfigError."""
    return _blocks.parse(file.path, file.text)


def sources(file: TextFile) -> list[str]:
    """The paths of config.toml and of the existing files that it imports. ConfigError."""
    version = version_for(file, data(file))
    return [each.target for each in merged.files(file, version=version) if each.state is not None]


def is_default(file: TextFile) -> bool | None:
    """Whether we start containers that name no runtime, by config.toml and all its imports. None if none of
    them has our runtime: the file then belongs to another containerd, or no containerd starts the node's
    containers. ConfigError."""
    ours: set[str] = set()
    defaults: set[str] = set()
    for path in sources(file):
        for name, value in _settings(data(textfile.read(path))):
            if name == in_place.DEFAULT and isinstance(value, str):
                defaults.add(value)
            options = value.get("options") if isinstance(value, dict) else None
            program = options.get("BinaryName") if isinstance(options, dict) else None
            if isinstance(program, str) and (
                name == RUNTIME_NAME or os.path.basename(program) == RUNTIME_PROGRAM
            ):
                ours.add(name)
    # Which of several defaults counts depends on containerd's version. One default of ours is enough.
    return bool(ours & defaults) if ours else None


def _settings(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each key with its value, at any depth: the tables' names depend on the file's version."""
    for name, value in table.items():
        yield name, value
        if isinstance(value, dict):
            yield from _settings(value)


def unconfigure(file: TextFile) -> tuple[Edit, ...]:
    """Removes our runtime, and all that `configure` added for it."""
    edits = [_unconfigured(file)] if file.text else []
    data = _blocks.parse(file.path, file.text)
    there = [drop_in for drop_in in drop_ins_of(file, data) if drop_in.state is not None]
    return (*edits, *_without_ours(there, data))


def after_change(file: TextFile, _is_removed: bool) -> str:
    """What makes this containerd read its file: a Kubernetes distribution starts its own."""
    maker = reader.maker_of(file)
    return f"restart {maker}, which starts this containerd" if maker else _RESTART


def _without_ours(there: list[TextFile], data: dict[str, Any], runtime_path: str = "") -> list[Edit]:
    """Removes the drop-ins that have our runtime. ConfigError if one has more content. `data` is
    config.toml's."""
    edits = []
    for drop_in in there:
        present = _blocks.parse(drop_in.path, drop_in.text)
        containerd = containerd_path(drop_in.path, present or data)
        entry = _blocks.below(drop_in.path, present, (*containerd, "runtimes", RUNTIME_NAME))
        if entry is not None and _is_ours(entry, runtime_path):
            _must_be_ours(drop_in, present, containerd, runtime_path)
            edits.append(Edit(drop_in, None))
    return edits


def _unconfigured(file: TextFile) -> Edit:
    wanted = _blocks.parse(file.path, file.text)
    containerd = containerd_path(file.path, wanted)
    text = file.text
    added = _blocks.parse(file.path, "".join(block[1] for block in _blocks.BLOCK.finditer(text)))
    theirs = _blocks.parse(file.path, _blocks.BLOCK.sub("\n", text))
    kept: dict[str, Any] = {}
    ours = (*containerd, "runtimes", RUNTIME_NAME)

    runtimes = _blocks.below(file.path, wanted, ours[:-1], make=True)
    tables = _blocks.below(file.path, wanted, containerd)
    present = runtimes.get(RUNTIME_NAME)
    notes: tuple[str, ...] = ()
    if tables.get(in_place.DEFAULT) == RUNTIME_NAME and present is None:
        notes = (
            f"{in_place.DEFAULT} was {RUNTIME_NAME}, without a table of that runtime: the CRI plugin would "
            "not load with it, and takes runc",
        )
    is_anothers = present is not None and _is_anothers(file, present, ours)
    if not is_anothers:
        runtimes.pop(RUNTIME_NAME, None)
    others = _blocks.below(file.path, theirs, ours[:-1]) or {}
    if "runc" in (_blocks.below(file.path, added, (*containerd, "runtimes")) or {}):
        # It stays if another runtime was added: that one would hide containerd's own runc.
        if others.keys() - {RUNTIME_NAME}:
            _blocks.below(file.path, kept, (*containerd, "runtimes"), make=True)["runc"] = runtimes["runc"]
        else:
            del runtimes["runc"]
    for key in added.keys() - {"plugins"}:
        if theirs:
            kept[key] = wanted[key]
        else:
            del wanted[key]
    text = _blocks.without_blocks(text, kept)
    was_default = (_blocks.below(file.path, theirs, containerd) or {}).get(in_place.DEFAULT) == RUNTIME_NAME
    if not is_anothers:
        text = in_place.brought_back(in_place.changed_at(file.path, text, ours, None))
        before = _blocks.below(file.path, _blocks.parse(file.path, text), ours)
        if before is not None:
            runtimes[RUNTIME_NAME] = before
    is_theirs = was_default and RUNTIME_NAME in runtimes and not in_place.is_default_ours(text)
    if tables.get(in_place.DEFAULT) == RUNTIME_NAME and not is_theirs:
        del tables[in_place.DEFAULT]
        text = in_place.without_default(file.path, text, containerd)
        if (default := in_place.default_of(text, containerd)) is not None:
            tables[in_place.DEFAULT] = default
    in_place.check(file.path, text, wanted, containerd)
    return Edit(file, text, notes)


def _beginning(file: TextFile, installed: tuple[int, int] | None) -> dict[str, Any]:
    """The first lines of an empty file, for the installed containerd."""
    if installed is None or installed < (2, 0):
        return {"version": 2}  # any containerd reads this version
    if installed < (2, 2) or file.state is not None:
        return {"version": 3}
    # containerd 2.2 assumes this without a file. It reads the folder only if there is a file.
    return {"version": 3, "imports": [os.path.join(os.path.dirname(file.path), "conf.d", "*.toml")]}


def _configure_drop_in(
    file: TextFile,
    data: dict[str, Any],
    table: dict[str, Any],
    containerd: _blocks.Path,
    runtime_path: str,
    set_as_default: bool,
) -> Edit:
    """The whole file. `data` is config.toml's. The drop-in has the same version: containerd refuses a higher
    one."""
    present = _blocks.parse(file.path, file.text)
    # config.toml may have a newer version by now.
    theirs = containerd_path(file.path, present or data)
    _must_be_ours(file, present, theirs, runtime_path)
    mine = _blocks.below(file.path, present, (*theirs, "runtimes", RUNTIME_NAME))
    wanted: dict[str, Any] = {"version": data["version"]} if "version" in data else {}
    # An earlier configure named this runc, for a containerd without another one.
    if "runc" in (_blocks.below(file.path, present, (*theirs, "runtimes")) or {}):
        table = {**table, "runtimes": {}}
    _enter(file.path, wanted, table, containerd, _ours(file.path, mine, table, runtime_path))
    if (
        set_as_default
        or (_blocks.below(file.path, present, theirs) or {}).get(in_place.DEFAULT) == RUNTIME_NAME
    ):
        _blocks.below(file.path, wanted, containerd)[in_place.DEFAULT] = RUNTIME_NAME
    text = file.text if present == wanted else f"{_blocks.BEGIN}\n{tomlkit.dumps(wanted)}"
    return Edit(file, text)


def _must_be_ours(
    file: TextFile, present: dict[str, Any], containerd: _blocks.Path, runtime_path: str
) -> None:
    """ConfigError if a file of our name has content that `configure` does not write, and would lose."""
    others = copy.deepcopy(present)
    others.pop("version", None)
    table = _blocks.below(file.path, others, containerd) or {}
    if table.get(in_place.DEFAULT) == RUNTIME_NAME:
        del table[in_place.DEFAULT]
    runtimes = table.get("runtimes", {})
    if _is_ours(runtimes.get(RUNTIME_NAME, {}), runtime_path):
        del runtimes[RUNTIME_NAME]
        if runtimes.get("runc") == _PLAIN_RUNC:
            del runtimes["runc"]
    if in_place.without_empty_tables(others):
        raise ConfigError(
            f"{file.path} has more than our runtime, which writes and removes that file as a whole",
            "move the rest to another file of that folder; nothing was changed",
        )


def _ours(path: str, present: Any, table: dict[str, Any], runtime_path: str) -> dict[str, Any]:
    """Our table. It is the present one, otherwise a copy of the default runtime's or of runc's, with our own
    keys.

    The cgroup driver belongs to the node and not to a runtime: if the default runtime does not set it, runc's
    value counts.
    """
    ours = copy.deepcopy(present) if present is not None else _modelled(table)
    ours["runtime_type"] = _RUNTIME_TYPE
    annotations = ours.get("pod_annotations", [])
    if not isinstance(annotations, list) or _ANNOTATIONS not in annotations:
        ours["pod_annotations"] = [*(annotations if isinstance(annotations, list) else []), _ANNOTATIONS]
    options = ours.setdefault("options", {})
    if not isinstance(options, dict):
        raise ConfigError(f"{path}: a runtime's options are not a table", "fix it first; nothing was changed")
    options["BinaryName"] = runtime_path
    if present is None and (driver := systemd_cgroup(table)) is not None:
        options["SystemdCgroup"] = driver[1]
    return ours


def _modelled(table: dict[str, Any]) -> dict[str, Any]:
    """A table like that of the default runtime or, if that runs in another way, of runc. Only a runtime that
    runs as ours does is a model."""
    names = [name for name in (table.get(in_place.DEFAULT), "runc") if name != RUNTIME_NAME]
    # A runtime without a type is broken, but its options still show the node's settings.
    models = [copy.deepcopy(merged.runtime(table, name)) for name in names]
    return next(
        (each for each in models if each and each.get("runtime_type", _RUNTIME_TYPE) == _RUNTIME_TYPE), {}
    )


def _enter(
    path: str, target: dict[str, Any], table: dict[str, Any], containerd: _blocks.Path, ours: dict[str, Any]
) -> None:
    """Puts our table into `target`. containerd will merge `target` with its own `table`."""
    runtimes = _blocks.below(path, target, (*containerd, "runtimes"), make=True)
    if not table.get("runtimes"):
        # The first table that names a runtime hides the runc that containerd 1 has by default. The CRI plugin
        # does not load without its default runtime.
        runtimes["runc"] = dict(_PLAIN_RUNC)
    runtimes[RUNTIME_NAME] = ours
