"""containerd: our runtime in the tables of its CRI plugin.

From 2.0 on containerd merges the tables of imported files, so there we are a drop-in file of our own where
config.toml imports a folder. containerd 1 takes the whole CRI plugin from the file that names it last, which
would drop the user's own runtimes; there, and where nothing is imported, we are a block at the end of
config.toml. All else in that file stays byte for byte. The names of the tables depend on its `version`; one
without it is version 1 (docs/man/containerd-config.toml.5). What becomes of the
text is in blocks.py, what containerd makes of all files together in merged.py, and nothing is written here:
see textfile.py.
"""

from __future__ import annotations

import copy
import glob
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import tomlkit

from xpu_runtime import textfile
from xpu_runtime.engines import RUNTIME_NAME
from xpu_runtime.engines.containerd import blocks, merged
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import Edit, TextFile

PROGRAM = "containerd"
DEFAULT_PATH = "/etc/containerd/config.toml"
CONFIG_OPTIONS = ("--config", "-c")
AFTER_CONFIGURE = AFTER_UNCONFIGURE = "systemctl restart containerd"

#: The annotations that ask for an XPU must reach the runtime; containerd passes only those named here.
_ANNOTATIONS = "yoyoworks.com/*"
_RUNTIME_TYPE = "io.containerd.runc.v2"
#: Which program makes a runtime ours, also under another name.
_PROGRAM = "xpu-container-runtime"

#: The last one that is imported decides on the default runtime.
_DROP_IN = "99-xpu.toml"


def configure(file: TextFile, runtime_path: str, set_as_default: bool) -> tuple[Edit, ...]:
    """Enters the runtime at `runtime_path`. ConfigError if config.toml is malformed or cannot be extended, or
    if the installed containerd would not see the runtime."""
    data = blocks.parse(file.path, file.text)
    installed = installed_version()
    beginning = {} if data else _beginning(file, installed)
    containerd = _containerd_path(file.path, data or beginning)
    path = (*containerd, "runtimes", RUNTIME_NAME)
    drop_ins = _drop_ins(file, data)
    installed = _reader(data or beginning, installed)
    there = [drop_in for drop_in in drop_ins if drop_in.state is not None]
    version = installed or _fitting(file, data)
    root = file.replace(text=tomlkit.dumps(beginning)) if beginning else file
    read = merged.files(root, version=version)
    table = merged.containerd_table(read, version)
    # One that is there was made for a containerd that merges; it may be that it is just not on PATH now.
    merges = there if installed is None else drop_ins if installed >= merged.MERGES else []
    if merges and blocks.below(file.path, data, path) is None:
        drop_in = (there or merges)[0]
        edit = _configure_drop_in(drop_in, data, table, containerd, runtime_path, set_as_default)
        return _seen(file, (edit,), version, installed is not None, runtime_path, set_as_default)

    # A drop-in beside what goes into config.toml would be a second copy; a containerd that does not merge
    # would see no other tables of the CRI plugin.
    set_as_default |= any(blocks.default_of(drop_in.text, containerd) == RUNTIME_NAME for drop_in in there)
    text, before = file.text, None
    wanted, added = {**copy.deepcopy(data), **beginning}, dict(beginning)
    present = blocks.below(file.path, data, path)
    ours = _ours(file.path, present, table, runtime_path)
    if present is None:
        for target in (wanted, added):
            _enter(file.path, target, table, containerd, ours)
    elif present != ours:
        if _is_anothers(file, present, path, runtime_path):
            before = present
        blocks.below(file.path, wanted, path[:-1])[RUNTIME_NAME] = ours
        text = blocks.changed_at(file.path, text, path, ours)
    default = (blocks.below(file.path, data, containerd) or {}).get(blocks.DEFAULT)
    if set_as_default and default != RUNTIME_NAME:
        blocks.below(file.path, wanted, containerd, make=True)[blocks.DEFAULT] = RUNTIME_NAME
        changed = blocks.with_default(text, containerd, default)
        if changed is None:
            blocks.below(file.path, added, containerd, make=True)[blocks.DEFAULT] = RUNTIME_NAME
        text = changed or text
    text = blocks.with_block(text, added, file.state is None, before)
    blocks.check(file.path, text, wanted, containerd)
    edits = (Edit(file, text), *(Edit(drop_in, None) for drop_in in there))
    return _seen(file, edits, version, installed is not None, runtime_path, set_as_default)


def _is_anothers(file: TextFile, present: dict[str, Any], path: blocks.Path, runtime_path: str) -> bool:
    """Whether the table of our name is another program's, and not of an installation of ours."""
    options = present.get("options")
    program = str(options.get("BinaryName", "")) if isinstance(options, dict) else ""
    if program == runtime_path or os.path.basename(program) == _PROGRAM:
        return False
    added = blocks.parse(file.path, "".join(block[1] for block in blocks.BLOCK.finditer(file.text)))
    return blocks.replaced(file.path, file.text) is None and blocks.below(file.path, added, path) is None


def runtime_path(file: TextFile) -> str | None:
    """The program that config.toml or our drop-in beside it names as our runtime; None where neither does.
    ConfigError."""
    data = blocks.parse(file.path, file.text)
    containerd = _containerd_path(file.path, data or _beginning(file, installed_version()))
    for each in (*_drop_ins(file, data), file):
        tables = blocks.parse(each.path, each.text)
        ours = blocks.below(each.path, tables, (*containerd, "runtimes", RUNTIME_NAME, "options")) or {}
        if isinstance(ours.get("BinaryName"), str):
            return str(ours["BinaryName"])
    return None


def data(file: TextFile) -> dict[str, Any]:
    """What the file says, without those that it imports; ConfigError."""
    return blocks.parse(file.path, file.text)


def sources(file: TextFile) -> list[str]:
    """The paths of config.toml and of the files that it imports, as far as they are there. ConfigError."""
    version = _version_for(file, data(file))
    return [each.target for each in merged.files(file, version=version) if each.state is not None]


def is_default(file: TextFile) -> bool | None:
    """Whether we start what names no runtime, as config.toml and all that it imports say together; None where
    none of them has our runtime: then it is another containerd's file, or no containerd starts the node's
    containers. ConfigError."""
    ours: set[str] = set()
    defaults: set[str] = set()
    for path in sources(file):
        for name, value in _settings(data(textfile.read(path))):
            if name == blocks.DEFAULT and isinstance(value, str):
                defaults.add(value)
            options = value.get("options") if isinstance(value, dict) else None
            program = options.get("BinaryName") if isinstance(options, dict) else None
            if isinstance(program, str) and (name == RUNTIME_NAME or os.path.basename(program) == _PROGRAM):
                ours.add(name)
    # Which of several defaults counts depends on containerd's version: one that is ours will do.
    return bool(ours & defaults) if ours else None


def _settings(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each key with its value, at whatever depth: the tables' names depend on the file's version."""
    for name, value in table.items():
        yield name, value
        if isinstance(value, dict):
            yield from _settings(value)


def unconfigure(file: TextFile) -> tuple[Edit, ...]:
    """Takes our runtime out, and all that `configure` had to add for it."""
    edits = [_unconfigured(file)] if file.text else []
    drop_ins = _drop_ins(file, blocks.parse(file.path, file.text))
    return (*edits, *(Edit(drop_in, None) for drop_in in drop_ins if drop_in.state is not None))


def _unconfigured(file: TextFile) -> Edit:
    wanted = blocks.parse(file.path, file.text)
    containerd = _containerd_path(file.path, wanted)
    text = file.text
    added = blocks.parse(file.path, "".join(block[1] for block in blocks.BLOCK.finditer(text)))
    theirs = blocks.parse(file.path, blocks.BLOCK.sub("\n", text))
    kept: dict[str, Any] = {}
    before = blocks.replaced(file.path, text)

    tables = blocks.below(file.path, wanted, containerd) or {}
    runtimes = tables.get("runtimes", {})
    if runtimes.pop(RUNTIME_NAME, None) is None:
        before = None  # somebody has taken ours away: nothing is there to give back
    elif before is not None:
        runtimes[RUNTIME_NAME] = before
    others = blocks.below(file.path, theirs, (*containerd, "runtimes")) or {}
    if "runc" in (blocks.below(file.path, added, (*containerd, "runtimes")) or {}):
        # It stays where another runtime came to stand beside it, which would hide containerd's own runc.
        if others.keys() - {RUNTIME_NAME}:
            blocks.below(file.path, kept, (*containerd, "runtimes"), make=True)["runc"] = runtimes["runc"]
        else:
            del runtimes["runc"]
    for key in added.keys() - {"plugins"}:
        if theirs:
            kept[key] = wanted[key]
        else:
            del wanted[key]
    text = blocks.without_blocks(text, kept)
    was_default = (blocks.below(file.path, theirs, containerd) or {}).get(blocks.DEFAULT) == RUNTIME_NAME
    is_theirs = was_default and before is not None and not blocks.is_default_ours(text)
    if tables.get(blocks.DEFAULT) == RUNTIME_NAME and not is_theirs:
        del tables[blocks.DEFAULT]
        text = blocks.without_default(file.path, text, containerd)
        if (default := blocks.default_of(text, containerd)) is not None:
            tables[blocks.DEFAULT] = default
    ours = (*containerd, "runtimes", RUNTIME_NAME)
    notes: tuple[str, ...] = ()
    try:
        text = blocks.changed_at(file.path, text, ours, before, only=True)
    except ConfigError:
        if before is None:
            raise
        text = blocks.changed_at(file.path, text, ours, None)
        del runtimes[RUNTIME_NAME]
        notes = (f"runtimes.{RUNTIME_NAME} was {before}, and is to be written again by hand",)
    blocks.check(file.path, text, wanted, containerd)
    return Edit(file, text, notes)


def _beginning(file: TextFile, installed: tuple[int, int] | None) -> dict[str, Any]:
    """What a file that says nothing yet must say first, for the containerd that is installed."""
    if installed is None or installed < (2, 0):
        return {"version": 2}  # which any containerd reads
    if installed < (2, 2) or file.state is not None:
        return {"version": 3}
    # What containerd 2.2 assumes where there is no file, and reads only where there is one.
    return {"version": 3, "imports": [os.path.join(os.path.dirname(file.path), "conf.d", "*.toml")]}


def installed_version() -> tuple[int, int] | None:
    """The major and minor version of the containerd on PATH; None if there is none, or it does not say.

    Takes as long as that does, up to 10 seconds: what needs it twice hands it on.
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


def _drop_ins(file: TextFile, data: dict[str, Any]) -> list[TextFile]:
    """Our file, whether it is there or not, in each folder whose files config.toml imports."""
    imports = data.get("imports")
    found: dict[str, TextFile] = {}
    for pattern in imports if isinstance(imports, list) else []:
        named = os.path.abspath(os.path.join(os.path.dirname(file.path), str(pattern)))
        folder = os.path.dirname(named)
        path = os.path.join(folder, _DROP_IN)
        if folder == glob.escape(folder) and merged.imports(named, path):
            drop_in = textfile.read(path)
            found.setdefault(drop_in.target, drop_in)
    return list(found.values())


def _configure_drop_in(
    file: TextFile,
    data: dict[str, Any],
    table: dict[str, Any],
    containerd: blocks.Path,
    runtime_path: str,
    set_as_default: bool,
) -> Edit:
    """The whole file. `data` is config.toml's, whose version it must have: a higher one is refused."""
    present = blocks.parse(file.path, file.text)
    mine = blocks.below(file.path, present, (*containerd, "runtimes", RUNTIME_NAME))
    wanted: dict[str, Any] = {"version": data["version"]} if "version" in data else {}
    # A runc that it names already was named for a containerd with no other.
    if "runc" in (blocks.below(file.path, present, (*containerd, "runtimes")) or {}):
        table = {**table, "runtimes": {}}
    _enter(file.path, wanted, table, containerd, _ours(file.path, mine, table, runtime_path))
    if (
        set_as_default
        or (blocks.below(file.path, present, containerd) or {}).get(blocks.DEFAULT) == RUNTIME_NAME
    ):
        blocks.below(file.path, wanted, containerd)[blocks.DEFAULT] = RUNTIME_NAME
    text = file.text if present == wanted else f"{blocks.BEGIN}\n{tomlkit.dumps(wanted)}"
    return Edit(file, text)


def _containerd_path(path: str, data: dict[str, Any]) -> blocks.Path:
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


def _ours(path: str, present: Any, table: dict[str, Any], runtime_path: str) -> dict[str, Any]:
    """Our table: as it is, or else as runc's is (SystemdCgroup must be alike), with what makes it ours."""
    if present is None:
        for name in (table.get(blocks.DEFAULT), "runc"):
            model = merged.runtime(table, name)
            if model.get("runtime_type") == _RUNTIME_TYPE:
                present = model
                break
    ours = copy.deepcopy(present or {})
    ours["runtime_type"] = _RUNTIME_TYPE
    annotations = ours.get("pod_annotations", [])
    if not isinstance(annotations, list) or _ANNOTATIONS not in annotations:
        ours["pod_annotations"] = [*(annotations if isinstance(annotations, list) else []), _ANNOTATIONS]
    options = ours.setdefault("options", {})
    if not isinstance(options, dict):
        raise ConfigError(f"{path}: a runtime's options are not a table", "fix it first; nothing was changed")
    options["BinaryName"] = runtime_path
    return ours


def _enter(
    path: str, target: dict[str, Any], table: dict[str, Any], containerd: blocks.Path, ours: dict[str, Any]
) -> None:
    """Puts our table into `target`, which will stand beside what containerd has already in `table`."""
    runtimes = blocks.below(path, target, (*containerd, "runtimes"), make=True)
    if not table.get("runtimes"):
        # The first table that names a runtime hides the runc that containerd 1 knows without one, and
        # without its default runtime the CRI plugin does not load.
        runtimes["runc"] = {"runtime_type": _RUNTIME_TYPE}
    runtimes[RUNTIME_NAME] = ours


def _version_for(file: TextFile, data: dict[str, Any]) -> tuple[int, int]:
    """The version of the containerd that reads config.toml, which says `data`, as far as it can be told."""
    return _reader(data, installed_version()) or _fitting(file, data)


def _reader(data: dict[str, Any], installed: tuple[int, int] | None) -> tuple[int, int] | None:
    """The version of the containerd that reads such a config.toml: the installed one's, if that knows it."""
    another = installed is not None and installed < merged.MERGES and _is_for_2(data)
    return None if another else installed


def _is_for_2(data: dict[str, Any]) -> bool:
    """Whether only containerd 2 reads a config.toml of this version."""
    version = data.get("version")
    return isinstance(version, int) and version > 2


def _fitting(file: TextFile, data: dict[str, Any]) -> tuple[int, int]:
    """The version of a containerd that such files are for. A pattern relative to config.toml means nothing to
    one that does not merge (merged.files)."""
    imports = data.get("imports")
    patterns = [str(each) for each in imports if "*" in str(each)] if isinstance(imports, list) else []
    merges = (
        _is_for_2(data)
        or not all(map(os.path.isabs, patterns))
        or any(each.state for each in _drop_ins(file, data))
    )
    return merged.MERGES if merges else (1, 0)


def _seen(
    file: TextFile,
    edits: tuple[Edit, ...],
    version: tuple[int, int],
    is_installed: bool,
    runtime_path: str,
    as_default: bool,
) -> tuple[Edit, ...]:
    """The edits, with notes; ConfigError where the containerd of this version is installed, and would not see
    our runtime then."""
    becoming = [each.file.replace(text=each.text or "") for each in edits]
    root = next((each for each in becoming if each.path == file.path), file)
    hidden = unseen(root, runtime_path, as_default, becoming, version)
    if hidden is not None and is_installed:
        raise ConfigError(hidden.what, f"{hidden.todo}; nothing was changed")
    notes = [str(hidden)] if hidden is not None else []
    for each in merged.files(root, becoming, version):
        disabled = blocks.parse(each.path, each.text).get("disabled_plugins")
        for name in disabled if isinstance(disabled, list) else []:
            if name in merged.PLUGINS.values():
                notes.append(
                    f"disabled_plugins has {name}, in {each.path}: Kubernetes will not see the runtime until "
                    "that is removed"
                )
    if unlike := unlike_runc(root, becoming, version):
        notes.append(f"{unlike}; for the same, run `xpu runtime unconfigure containerd`, then this again")
    return (edits[0].replace(notes=tuple(notes)), *edits[1:])


def unseen(
    file: TextFile,
    runtime_path: str,
    as_default: bool = False,
    becoming: Sequence[TextFile] = (),
    version: tuple[int, int] | None = None,
) -> ConfigError | None:
    """What keeps containerd from running `runtime_path` for us, and what to do; None: nothing. ConfigError.

    `becoming`: files as they will be (merged.files). `version`: containerd's; None: is found out.
    """
    data = blocks.parse(file.path, file.text)
    plugin = _containerd_path(file.path, data)[1]
    version = version or _version_for(file, data)
    read = merged.files(file, becoming, version)
    table = merged.containerd_table(read, version)
    named = merged.options(table, RUNTIME_NAME).get("BinaryName") == runtime_path
    if named and (not as_default or table.get(blocks.DEFAULT) == RUNTIME_NAME):
        return None
    who = f"containerd {version[0]}.{version[1]}"
    if version >= merged.MERGES and plugin == merged.PLUGINS[1]:
        rename = f'name its tables plugins."{merged.PLUGINS[2]}", ' if data.get("plugins") else ""
        return ConfigError(
            f"{who} ignores plugins.{plugin} of a file of version 1, as {file.path} is",
            f"write `version = 2` as its first line, {rename}and configure again",
        )
    for other in reversed(read):
        if other.path == file.path or os.path.basename(other.path) == _DROP_IN:
            continue
        plugins = blocks.below(other.path, blocks.parse(other.path, other.text), ("plugins",)) or {}
        tables = [each for each in dict.fromkeys(merged.PLUGINS.values()) if each in plugins]
        if tables and version < merged.MERGES:
            return ConfigError(
                f"{other.path}, which is imported, has tables of plugins.{tables[0]} too, and {who} "
                "takes only those",
                f"use --config {other.path}",
            )
        alone = merged.containerd_table([other], version)
        if tables and (tables != [plugin] or blocks.DEFAULT in alone or merged.runtime(alone, RUNTIME_NAME)):
            return ConfigError(
                f"{other.path}, which is imported, has tables of plugins.{tables[0]}, and {who} takes "
                f"those in the place of ours in plugins.{plugin}",
                f"give it the version of {file.path}, without {RUNTIME_NAME} and {blocks.DEFAULT}",
            )
    return ConfigError(f"{who} does not take our runtime from {file.path}", "see what it logs when it starts")


def unlike_runc(
    file: TextFile, becoming: Sequence[TextFile] = (), version: tuple[int, int] | None = None
) -> str:
    """What to say where our runtime's cgroups are not made as runc's are; "" where they are. As `unseen`."""
    version = version or _version_for(file, blocks.parse(file.path, file.text))
    table = merged.containerd_table(merged.files(file, becoming, version), version)
    runc, ours = (
        str(bool(merged.options(table, name).get("SystemdCgroup"))).lower() for name in ("runc", RUNTIME_NAME)
    )
    if runc == ours or not merged.runtime(table, "runc"):
        return ""
    return (
        f"SystemdCgroup is {runc} for runc and {ours} for {RUNTIME_NAME}: containers are then outside of "
        "their pods' slices"
    )
