"""containerd: our runtime in the tables of its CRI plugin.

From 2.0 on containerd merges the tables of imported files, so there we are a drop-in file of our own where
config.toml imports a folder. containerd 1 takes the whole CRI plugin from the file that names it last, which
would drop the user's own runtimes; there, and where nothing is imported, we are a block at the end of
config.toml. All else in that file stays byte for byte. The names of the tables depend on its `version`; one
without it is version 1 (docs/man/containerd-config.toml.5). What becomes of the
text is in blocks.py, and nothing is written here: see textfile.py.
"""

from __future__ import annotations

import copy
import fnmatch
import glob
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import tomlkit

from xpu_runtime import textfile
from xpu_runtime.engines import RUNTIME_NAME
from xpu_runtime.engines.containerd import blocks
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

#: By version of the file. 4 moved only the server's own settings.
_PLUGINS = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}

#: The last one that is imported decides on the default runtime.
_DROP_IN = "99-xpu.toml"


def configure(file: TextFile, runtime_path: str, set_as_default: bool) -> tuple[Edit, ...]:
    """Enters the runtime at `runtime_path`; ConfigError if config.toml is malformed or cannot be extended."""
    data = blocks.parse(file.path, file.text)
    beginning = {} if data else _beginning(file)
    containerd = _containerd_path(file.path, data or beginning)
    path = (*containerd, "runtimes", RUNTIME_NAME)
    drop_ins = _drop_ins(file, data)
    installed = installed_version() if drop_ins else None
    there = [drop_in for drop_in in drop_ins if drop_in.state is not None]
    # One that is there was made for a containerd that merges; it may be that it is just not on PATH now.
    merges = there if installed is None else drop_ins if installed >= (2, 0) else []
    if merges and blocks.below(file.path, data, path) is None:
        drop_in = (there or merges)[0]
        return (_configure_drop_in(drop_in, data, containerd, runtime_path, set_as_default),)

    # A drop-in beside what goes into config.toml would be a second copy; a containerd that does not merge
    # would see no other tables of the CRI plugin.
    set_as_default |= any(blocks.default_of(drop_in.text, containerd) == RUNTIME_NAME for drop_in in there)
    text = file.text
    wanted, added = {**copy.deepcopy(data), **beginning}, dict(beginning)
    present = blocks.below(file.path, data, path)
    ours = _ours(file.path, data, containerd, runtime_path)
    if present is None:
        for target in (wanted, added):
            _enter(file.path, target, data, containerd, ours)
    elif present != ours:
        blocks.below(file.path, wanted, path[:-1])[RUNTIME_NAME] = ours
        text = blocks.changed_at(file.path, text, path, ours)
    default = (blocks.below(file.path, data, containerd) or {}).get(blocks.DEFAULT)
    if set_as_default and default != RUNTIME_NAME:
        blocks.below(file.path, wanted, containerd, make=True)[blocks.DEFAULT] = RUNTIME_NAME
        changed = blocks.with_default(text, containerd, default)
        if changed is None:
            blocks.below(file.path, added, containerd, make=True)[blocks.DEFAULT] = RUNTIME_NAME
        text = changed or text
    text = blocks.with_block(text, added)
    blocks.check(file.path, text, wanted, containerd)
    return (Edit(file, text, _notes(file, wanted, containerd)), *(Edit(drop_in, None) for drop_in in there))


def runtime_path(file: TextFile) -> str | None:
    """The program that config.toml or our drop-in beside it names as our runtime; None where neither does.
    ConfigError."""
    data = blocks.parse(file.path, file.text)
    containerd = _containerd_path(file.path, data or _beginning(file))
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
    imports = blocks.parse(file.path, file.text).get("imports")
    found = [file.target] if file.state is not None else []
    for pattern in imports if isinstance(imports, list) else []:
        found += sorted(glob.glob(os.path.join(os.path.dirname(file.target), str(pattern))))
    return found


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

    tables = blocks.below(file.path, wanted, containerd) or {}
    runtimes = tables.get("runtimes", {})
    runtimes.pop(RUNTIME_NAME, None)
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
    if tables.get(blocks.DEFAULT) == RUNTIME_NAME:
        del tables[blocks.DEFAULT]
        text = blocks.without_default(file.path, text, containerd)
        if (default := blocks.default_of(text, containerd)) is not None:
            tables[blocks.DEFAULT] = default
    text = blocks.changed_at(file.path, text, (*containerd, "runtimes", RUNTIME_NAME), None)
    blocks.check(file.path, text, wanted, containerd)
    return Edit(file, text)


def _beginning(file: TextFile) -> dict[str, Any]:
    """What a file that says nothing yet must say first, for the containerd that is installed."""
    installed = installed_version()
    if installed is None or installed < (2, 0):
        return {"version": 2}  # which any containerd reads
    if installed < (2, 2) or file.state is not None:
        return {"version": 3}
    # What containerd 2.2 assumes where there is no file, and reads only where there is one.
    return {"version": 3, "imports": [os.path.join(os.path.dirname(file.path), "conf.d", "*.toml")]}


def installed_version() -> tuple[int, int] | None:
    """The major and minor version of the containerd on PATH; None if there is none, or it does not say."""
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
        folder, names = os.path.split(os.path.join(os.path.dirname(file.path), str(pattern)))
        if fnmatch.fnmatchcase(_DROP_IN, names) and folder == glob.escape(folder):
            drop_in = textfile.read(os.path.join(folder, _DROP_IN))
            found.setdefault(drop_in.target, drop_in)
    return list(found.values())


def _configure_drop_in(
    file: TextFile, data: dict[str, Any], containerd: blocks.Path, runtime_path: str, set_as_default: bool
) -> Edit:
    """The whole file. `data` is config.toml's, whose version it must have: a higher one is refused."""
    present = blocks.parse(file.path, file.text)
    model = copy.deepcopy(data)
    if (mine := blocks.below(file.path, present, (*containerd, "runtimes", RUNTIME_NAME))) is not None:
        blocks.below(file.path, model, (*containerd, "runtimes"), make=True)[RUNTIME_NAME] = mine
    wanted: dict[str, Any] = {"version": data["version"]} if "version" in data else {}
    _enter(file.path, wanted, data, containerd, _ours(file.path, model, containerd, runtime_path))
    if (
        set_as_default
        or (blocks.below(file.path, present, containerd) or {}).get(blocks.DEFAULT) == RUNTIME_NAME
    ):
        blocks.below(file.path, wanted, containerd)[blocks.DEFAULT] = RUNTIME_NAME
    text = file.text if present == wanted else f"{blocks.BEGIN}\n{tomlkit.dumps(wanted)}"
    return Edit(file, text, _notes(file, data, containerd))


def _containerd_path(path: str, data: dict[str, Any]) -> blocks.Path:
    """The path of the table that holds `runtimes`, for the version that the file is in."""
    version = data.get("version", 1)
    if version == 0 and type(version) is int:
        version = 1  # as containerd takes it; dockerd writes it for the containerd that it starts
    if type(version) is not int or version not in _PLUGINS:
        raise ConfigError(f"{path}: version is {version!r}", "known are 1 to 4; nothing was changed")
    plugins = blocks.below(path, data, ("plugins",)) or {}
    if version == 1 and _PLUGINS[2] in plugins:
        # containerd 1 ignores such a table; containerd 2 would merge it with ours in no certain order.
        raise ConfigError(
            f"{path} has version 2's tables (plugins.{_PLUGINS[2]}) and no `version = 2`",
            "add that as its first line; nothing was changed",
        )
    return ("plugins", _PLUGINS[version], "containerd")


def _ours(path: str, data: dict[str, Any], containerd: blocks.Path, runtime_path: str) -> dict[str, Any]:
    """Our table: as it is, or else as runc's is (SystemdCgroup must be alike), with what makes it ours."""
    present = blocks.below(path, data, (*containerd, "runtimes", RUNTIME_NAME))
    if present is None:
        runtimes = blocks.below(path, data, (*containerd, "runtimes")) or {}
        default = (blocks.below(path, data, containerd) or {}).get(blocks.DEFAULT)
        for name in (default, "runc"):
            model = runtimes.get(name) if isinstance(name, str) else None
            if isinstance(model, dict) and model.get("runtime_type") == _RUNTIME_TYPE:
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
    path: str, target: dict[str, Any], data: dict[str, Any], containerd: blocks.Path, ours: dict[str, Any]
) -> None:
    """Puts our table into `target`, which will stand beside the `data` of config.toml."""
    runtimes = blocks.below(path, target, (*containerd, "runtimes"), make=True)
    if not blocks.below(path, data, (*containerd, "runtimes")):
        # The first table that names a runtime hides the runc that containerd 1 knows without one, and
        # without its default runtime the CRI plugin does not load.
        runtimes["runc"] = {"runtime_type": _RUNTIME_TYPE}
    runtimes[RUNTIME_NAME] = ours


def _notes(file: TextFile, data: dict[str, Any], containerd: blocks.Path) -> tuple[str, ...]:
    """What in config.toml or beside it would keep our runtime from being seen."""
    notes = []
    plugin = containerd[1]
    disabled = data.get("disabled_plugins")
    for name in disabled if isinstance(disabled, list) else []:
        if name in _PLUGINS.values():
            notes.append(
                f"disabled_plugins has {name}: Kubernetes will not see the runtime until that is removed"
            )
    installed = installed_version() or (1, 0)
    if plugin == _PLUGINS[1] and installed >= (2, 0):
        notes.append(
            f"containerd {installed[0]} ignores plugins.{plugin} in {file.path}, which is of version 1: "
            f'write `version = 2` as its first line, name its tables plugins."{_PLUGINS[2]}", and configure '
            "again"
        )
    imports = data.get("imports")
    if not isinstance(imports, list) or installed >= (2, 0):
        return tuple(notes)
    for pattern in imports:
        for other in sorted(glob.glob(os.path.join(os.path.dirname(file.target), str(pattern)))):
            if os.path.basename(other) == _DROP_IN:
                continue
            try:
                with open(other, encoding="utf-8") as stream:
                    theirs = blocks.parse(other, stream.read())
            except (OSError, ValueError, ConfigError):
                continue
            if plugin in (theirs.get("plugins") or {}):
                notes.append(
                    f"{other}, which is imported, has tables of plugins.{plugin} too: containerd before 2.0 "
                    f"takes only those, so use --config {other}"
                )
    return tuple(notes)
