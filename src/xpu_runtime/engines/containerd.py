"""containerd's /etc/containerd/config.toml: our runtime in the tables of its CRI plugin.

The tables' names depend on the file's `version`; a file without one is version 1 (containerd's
cmd/containerd/server/config and docs/man/containerd-config.toml.5). What is added stands at the end
of the file, so that everything else stays byte for byte; marks in comments tell `unconfigure` what is ours.
"""

from __future__ import annotations

import copy
import glob
import os
import shutil
import subprocess
from typing import Any

from xpu_runtime.engines import RUNTIME_NAME
from xpu_runtime.engines.textfile import Edit, TextFile, apply, newline_of
from xpu_runtime.engines.tomltext import Path, Statement, key_text, parse, statements, value_text
from xpu_runtime.errors import ConfigError

PROGRAM = "containerd"
DEFAULT_PATH = "/etc/containerd/config.toml"
AFTER_CONFIGURE = AFTER_UNCONFIGURE = "systemctl restart containerd"

#: The annotations that ask for an XPU must reach the runtime; containerd passes only those named here.
_ANNOTATIONS = "yoyoworks.com/*"
_RUNTIME_TYPE = "io.containerd.runc.v2"
_RUNC = {"runc": {"runtime_type": _RUNTIME_TYPE}}
_DEFAULT = "default_runtime_name"

#: By version of the file. 4 moved only the server's own settings.
_PLUGINS = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}

#: A span of the text, by offsets, and what comes in its place.
Change = tuple[int, int, str]

_MARK = "# by `xpu runtime configure`"
_SET_ASIDE = "#xpu# "


def configure(file: TextFile, runtime_path: str, set_as_default: bool) -> Edit:
    """The file with our runtime at `runtime_path`; ConfigError if it is malformed or cannot be extended."""
    text = file.text
    data = parse(file.path, text)
    wanted = copy.deepcopy(data)
    block: list[str] = []
    if not data:
        wanted.update(_beginning(file))
        block += [f"{key} = {value_text(value)} {_MARK}" for key, value in wanted.items()]
    containerd = _containerd_path(file.path, wanted)
    path = (*containerd, "runtimes", RUNTIME_NAME)
    present = _below(file.path, data, path)
    ours = _ours(file.path, wanted, containerd, runtime_path)
    tables = _below(file.path, wanted, containerd, make=True)
    changes: list[Change] = []
    if set_as_default and tables.get(_DEFAULT) != RUNTIME_NAME:
        tables[_DEFAULT] = RUNTIME_NAME
        changes += _default_changes(text, (*containerd, _DEFAULT), block)
    runtimes = _below(file.path, wanted, path[:-1], make=True)
    if not runtimes:
        # The first table that names a runtime hides the runc that containerd 1 knows without one, and
        # without its default runtime the CRI plugin does not load.
        runtimes.update(copy.deepcopy(_RUNC))
        block += _table_lines((*path[:-1], "runc"), runtimes["runc"], "")
    runtimes[RUNTIME_NAME] = ours
    if present is None:
        block += _table_lines(path, ours, "")
    elif ours != present:
        changes += _table_changes(text, path, present, ours, block)
    newline = newline_of(text)
    text = apply(text, changes)
    if block:
        # One line end comes before the block: a blank line, or the end that the last line lacks. Either way
        # `unconfigure` takes it away again.
        text += (newline if text else "") + newline.join([*block, ""])
    _check(file.path, text, wanted)
    return Edit(text, _notes(file, wanted, containerd))


def unconfigure(file: TextFile) -> Edit:
    """The file without our runtime, and without what `configure` had to add for it."""
    text = file.text
    wanted = parse(file.path, text)
    if not wanted:
        return Edit(text)
    containerd = _containerd_path(file.path, wanted)
    tables = _below(file.path, wanted, containerd)
    if tables is None:
        return Edit(text)
    found = statements(text)
    path = (*containerd, "runtimes", RUNTIME_NAME)
    ours = {i for i, s in enumerate(found) if s.path[: len(path)] == path}
    runtimes = _below(file.path, wanted, path[:-1]) or {}
    runtimes.pop(RUNTIME_NAME, None)
    runc = next((i for i, s in enumerate(found) if s.path == (*path[:-1], "runc") and _marked(text, s)), None)
    if runc is not None and runtimes == _RUNC:
        # Only if no other runtime came to stand beside it: that one would hide containerd's own runc.
        runtimes.clear()
        ours |= {i for i, s in enumerate(found) if s.section == runc}
    changes: list[Change] = []
    if tables.get(_DEFAULT) == RUNTIME_NAME:
        del tables[_DEFAULT]
        index = next((i for i, s in enumerate(found) if s.path == (*containerd, _DEFAULT)), None)
        if index is None:
            raise _by_hand(file.path)
        in_our_block = found[index].section >= 0 and _marked(text, found[found[index].section])
        if in_our_block:
            ours.add(index)
        else:
            change, was = _default_restored(text, found[index])
            changes.append(change)
            tables.update({} if was is None else {_DEFAULT: was})
    for i, s in enumerate(found):
        section = {j for j, other in enumerate(found) if other.section == i and j != i}
        if s.is_header and s.path == containerd and _marked(text, s) and section <= ours:
            ours.add(i)
    rest = [i for i in range(len(found)) if i not in ours]
    if ours and all(_marked(text, found[i]) and found[i].section < 0 for i in rest):
        ours.update(rest)
        for i in rest:
            wanted.pop(found[i].path[0], None)
    text = apply(text, changes + _removals(text, found, ours))
    _check(file.path, text, wanted)
    return Edit(text)


def _beginning(file: TextFile) -> dict[str, Any]:
    """What a file that says nothing yet must say first, for the containerd that is installed."""
    installed = _installed_version()
    if installed < (2, 0):
        return {"version": 2}
    if installed < (2, 2) or file.state is not None:
        return {"version": 3}
    # What containerd 2.2 assumes where there is no file; with one it must be said.
    return {"version": 3, "imports": [os.path.join(os.path.dirname(file.path), "conf.d", "*.toml")]}


def _installed_version() -> tuple[int, int]:
    """The major and minor version of the containerd on PATH; (1, 0), which any can read, if there is none."""
    program = shutil.which("containerd")
    try:
        done = subprocess.run([program or "", "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return 1, 0
    for word in done.stdout.split():
        parts = word.removeprefix("v").split(".")
        if len(parts) >= 3 and parts[0].isdigit() and parts[1].isdigit():
            return int(parts[0]), int(parts[1])
    return 1, 0


def _containerd_path(path: str, data: dict[str, Any]) -> Path:
    """The path of the table that holds `runtimes`, for the version that the file is in."""
    version = data.get("version", 1)
    if isinstance(version, bool) or version not in _PLUGINS:
        raise ConfigError(f"{path}: version is {version!r}", "known are 1 to 4; nothing was changed")
    plugins = _below(path, data, ("plugins",)) or {}
    if version == 1 and _PLUGINS[2] in plugins:
        # containerd 1 ignores such a table; containerd 2 would merge it with ours in no certain order.
        raise ConfigError(
            f"{path} has version 2's tables (plugins.{_PLUGINS[2]}) and no `version = 2`",
            "add that as its first line; nothing was changed",
        )
    return ("plugins", _PLUGINS[version], "containerd")


def _below(path: str, data: dict[str, Any], keys: Path, make: bool = False) -> Any:
    """The table at `keys`; where it is missing None, or a new one with `make`."""
    table = data
    for index, key in enumerate(keys):
        if key not in table and not make:
            return None
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            name = key_text(keys[: index + 1])
            raise ConfigError(f"{path}: {name} is not a table", "mend it first; nothing was changed")
    return table


def _ours(path: str, data: dict[str, Any], containerd: Path, runtime_path: str) -> dict[str, Any]:
    """Our table: as it is, or else as runc's is (SystemdCgroup must be alike), with what makes it ours."""
    present = _below(path, data, (*containerd, "runtimes", RUNTIME_NAME))
    if present is None:
        runtimes = _below(path, data, (*containerd, "runtimes")) or {}
        default = (_below(path, data, containerd) or {}).get(_DEFAULT)
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
        raise ConfigError(
            f"{path}: a runtime's options are not a table", "mend it first; nothing was changed"
        )
    options["BinaryName"] = runtime_path
    return ours


def _table_lines(path: Path, table: dict[str, Any], indentation: str) -> list[str]:
    """A table, and the tables in it below it."""
    lines = [f"{indentation}[{key_text(path)}]" + ("" if indentation else f" {_MARK}")]
    for key, value in table.items():
        if not isinstance(value, dict):
            lines.append(_line((key,), value, indentation + "  "))
    for key, value in table.items():
        if isinstance(value, dict):
            lines += _table_lines((*path, key), value, indentation + "  ")
    return lines


def _line(key: Path, value: Any, indentation: str) -> str:
    try:
        return f"{indentation}{key_text(key)} = {value_text(value)}"
    except TypeError as error:
        raise ConfigError(f"{key_text(key)} in the runtime's table cannot be copied ({error})") from None


def _default_changes(text: str, path: Path, block: list[str]) -> list[Change]:
    """What makes us the default runtime; the old line is set aside in a comment, not lost."""
    found = statements(text)
    for statement in found:
        if statement.path == path:
            line = text[statement.start : statement.value_start] + value_text(RUNTIME_NAME)
            lead = f"{line} {_MARK}{newline_of(text)}{_SET_ASIDE}"
            return [(statement.start, statement.start, lead)]
    for statement in found:
        if statement.is_header and statement.path == path[:-1]:
            return [_after_header(text, statement, _line(path[-1:], RUNTIME_NAME, ""))]
    block.append(f"[{key_text(path[:-1])}] {_MARK}")
    block.append(_line(path[-1:], RUNTIME_NAME, "  "))
    return []


def _default_restored(text: str, statement: Statement) -> tuple[Change, Any]:
    """What takes the line away that made us the default, and the value that holds then (None: none)."""
    after = text[statement.end :]
    if after.startswith(_SET_ASIDE):
        line = after[len(_SET_ASIDE) :].partition("\n")[0].rstrip("\r")
        value: Any = parse("the line set aside", line)
        while isinstance(value, dict):
            value = next(iter(value.values()), None)
        return (statement.start, statement.end + len(_SET_ASIDE), ""), value
    return (_line_start(text, statement), _text_end(text, statement), ""), None


def _table_changes(
    text: str, path: Path, present: dict[str, Any], ours: dict[str, Any], block: list[str]
) -> list[Change]:
    """What turns our table as it is into our table as it should be; the rest of it stays as it is written."""
    found = statements(text)
    changes: list[Change] = []
    for key, value in ours.items():
        old = present.get(key)
        leaves: list[tuple[Path, Any, Any]] = [((key,), value, old)]
        if isinstance(value, dict):
            olds = old if isinstance(old, dict) else {}
            leaves = [((key, name), inner, olds.get(name)) for name, inner in value.items()]
        for leaf, new, was in leaves:
            if new == was:
                continue
            at = next((s for s in found if s.path == path + leaf and not s.is_header), None)
            header = next((s for s in found if s.is_header and s.path == (path + leaf)[:-1]), None)
            if at:
                changes.append((at.value_start, at.value_end, value_text(new)))
            elif header:
                changes.append(_after_header(text, header, _line(leaf[-1:], new, "")))
            else:
                # An inline table or dotted keys: written anew as a whole.
                block += _table_lines(path, ours, "")
                return _removals(text, found, {i for i, s in enumerate(found) if s.path[: len(path)] == path})
    return changes


def _after_header(text: str, header: Statement, line: str) -> Change:
    """A new line below a header, indented like what the header holds."""
    end = _text_end(text, header)
    indentation = text[header.start : end].partition("[")[0] + "  "
    return end, end, f"{newline_of(text)}{indentation}{line}"


def _removals(text: str, found: list[Statement], ours: set[int]) -> list[Change]:
    """The spans that take the statements `ours` away, with the comments between neighbours of them."""
    runs: list[list[int]] = []
    for index in sorted(ours):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    changes: list[Change] = []
    for run in runs:
        start, end = found[run[0]].start, found[run[-1]].end
        before = _line_start(text, found[run[0]])
        blank = before == 0 or text[before - 1] == "\n"
        # The line end that `configure` put before its block.
        if any(_marked(text, found[index]) for index in run) and (blank or end == len(text)):
            start = before
        changes.append((start, end, ""))
    return changes


def _marked(text: str, statement: Statement) -> bool:
    return text[statement.start : statement.end].rstrip().endswith(_MARK)


def _text_end(text: str, statement: Statement) -> int:
    """Where the statement's last line ends, its line end not included."""
    return statement.start + len(text[statement.start : statement.end].rstrip("\r\n"))


def _line_start(text: str, statement: Statement) -> int:
    """Where the statement's first line begins, the line end before it included."""
    return len(text[: statement.start].removesuffix("\n").removesuffix("\r"))


def _check(path: str, text: str, wanted: dict[str, Any]) -> None:
    """The last word before anything is written: the new text must say what was meant, and nothing else."""
    try:
        data = parse(path, text)
    except ConfigError:
        raise _by_hand(path) from None
    if _without_empty_tables(data) != _without_empty_tables(wanted):
        raise _by_hand(path)


def _by_hand(path: str) -> ConfigError:
    return ConfigError(
        f"{path} has the CRI plugin's tables as inline tables or dotted keys, which are not safe to change",
        "write them as [tables] first; nothing was changed",
    )


def _without_empty_tables(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    inner = {key: _without_empty_tables(value) for key, value in data.items()}
    return {key: value for key, value in inner.items() if value != {}}


def _notes(file: TextFile, data: dict[str, Any], containerd: Path) -> tuple[str, ...]:
    """What in this file or beside it would keep our runtime from being seen."""
    notes = []
    plugin = containerd[1]
    disabled = data.get("disabled_plugins")
    for name in disabled if isinstance(disabled, list) else []:
        if name in _PLUGINS.values():
            notes.append(
                f"disabled_plugins has {name}: Kubernetes will not see the runtime until that is removed"
            )
    imports = data.get("imports")
    for pattern in imports if isinstance(imports, list) else []:
        for other in sorted(glob.glob(os.path.join(os.path.dirname(file.target), str(pattern)))):
            try:
                with open(other, encoding="utf-8") as stream:
                    theirs = parse(other, stream.read())
            except (OSError, ValueError, ConfigError):
                continue
            if plugin in (theirs.get("plugins") or {}):
                notes.append(
                    f"{other}, which is imported, has tables of plugins.{plugin} too: containerd before 2.0 "
                    f"takes only those, so use --config {other}"
                )
    return tuple(notes)
