"""docker's /etc/docker/daemon.json: our entry in `runtimes`, and `default-runtime` if asked.

The file is changed only where our entry is. Its owner's order, indentation, spacing and way of writing
numbers stay. Nothing is written here: see textfile.py.
"""

from __future__ import annotations

import json
import os
from typing import Any

from xpu_runtime.engines import RUNTIME_NAME, RUNTIME_PROGRAM
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import Edit, TextFile, apply, malformed, newline_of
from xpu_runtime.value import Value

PROGRAM = "dockerd"
DEFAULT_PATH = "/etc/docker/daemon.json"
CONFIG_OPTIONS = ("--config-file",)
AFTER_CONFIGURE = "systemctl reload docker, or without systemd: kill -HUP $(pidof dockerd)"
#: At a HUP signal dockerd keeps settings that the file no longer mentions.
AFTER_UNCONFIGURE = "systemctl restart docker (without systemd: end dockerd, and start it as before)"

_SPACE = " \t\r\n"
#: The replaced values, in our entry. `default-runtime`: its value, and whether the file had an entry for it
#: (dockerd does not start with a default that it does not know); `xpu`: another program's entry of that name;
#: `runtimes` and `file`: their spelling, if they were empty.
_KEPT = "replaced"


class _Source(str):
    """A value in the spelling to be written."""


class _Member(Value):
    """One member of a JSON object, by its offsets in the text."""

    key: str
    start: int
    value_start: int
    end: int


def configure(file: TextFile, runtime_path: str, set_as_default: bool) -> tuple[Edit, ...]:
    """The file with our runtime at `runtime_path`; ConfigError if it is malformed."""
    text = file.text
    if not text.strip():
        text = "{}\n"
    data = _parse(file.path, text)
    runtimes = _object(file.path, data, "runtimes")
    entry = (runtimes or {}).get(RUNTIME_NAME)
    was_default = data.get("default-runtime")
    notes: tuple[str, ...] = ()
    if RUNTIME_NAME not in (runtimes or {}):
        added = {RUNTIME_NAME: _entry_of(runtime_path)}
        if runtimes:
            text = _add(text, _find(text, "runtimes").value_start, RUNTIME_NAME, added[RUNTIME_NAME])
        elif runtimes is None:
            text = _add(text, _start(text), "runtimes", added)
        else:
            member = _find(text, "runtimes")
            empty = text[member.value_start : member.end]
            text = _add(text, member.value_start, RUNTIME_NAME, added[RUNTIME_NAME])
            text = _keep(text, "runtimes", empty)
        if not data and file.state is not None:
            text = _keep(text, "file", file.text)
        if was_default == RUNTIME_NAME:
            notes = (f"default-runtime was {RUNTIME_NAME} already; unconfigure takes that out, too",)
    elif not isinstance(entry, dict):
        raise _wrong_type(file.path, f"runtimes.{RUNTIME_NAME}")
    elif _is_ours(entry, runtime_path):
        if "path" not in entry:
            text = _add(text, _find(text, "runtimes", RUNTIME_NAME).value_start, "path", runtime_path)
        elif entry["path"] != runtime_path:
            text = _set(text, _find(text, "runtimes", RUNTIME_NAME, "path"), runtime_path)
    else:
        member = _find(text, "runtimes", RUNTIME_NAME)
        theirs = _as_written(text, member)
        text = _keep(_set(text, member, _entry_of(runtime_path)), RUNTIME_NAME, theirs)
        notes = (f"runtimes.{RUNTIME_NAME} was another program's; unconfigure brings that back",)
        if was_default == RUNTIME_NAME:
            text = _keep(text, "default-runtime", was_default)
    if not set_as_default or was_default == RUNTIME_NAME:
        return (Edit(file, text, notes),)
    # The file's owner has set another default since: the kept one is outdated.
    for key in ("default-runtime", "default-runtime-has-entry"):
        text = _without_kept(text, key)
    if "default-runtime" not in data:
        return (Edit(file, _add(text, _start(text), "default-runtime", RUNTIME_NAME), notes),)
    member = _find(text, "default-runtime")
    text = _keep(_set(text, member, RUNTIME_NAME), "default-runtime", _as_written(text, member))
    if was_default in list(runtimes or {}):
        text = _keep(text, "default-runtime-has-entry", True)
    note = f"default-runtime was {json.dumps(was_default)}; unconfigure brings that back"
    return (Edit(file, text, (*notes, note)),)


def _as_written(text: str, member: _Member) -> _Source:
    return _Source(text[member.value_start : member.end])


def _entry_of(runtime_path: str) -> dict[str, Any]:
    """Our entry. If the program has another name, the entry has a mark for `unconfigure`."""
    is_plain = os.path.basename(runtime_path) == RUNTIME_PROGRAM
    return {"path": runtime_path} if is_plain else {"path": runtime_path, _KEPT: {}}


def _is_ours(entry: dict[str, Any], runtime_path: str = "") -> bool:
    """Whether the entry belongs to an installation of ours, and not to another program with our name."""
    path = entry.get("path", None if "runtimeType" in entry else runtime_path)
    return _KEPT in entry or path == runtime_path or os.path.basename(str(path)) == RUNTIME_PROGRAM


def _keep(text: str, key: str, value: Any) -> str:
    """`text` with a replaced value kept in our entry, for unconfigure. dockerd ignores keys that it does not
    know there. The entry has nothing under that key yet."""
    kept = _kept(text)
    if kept is None:
        text = _add(text, _find(text, "runtimes", RUNTIME_NAME).value_start, _KEPT, {})
        kept = _find(text, "runtimes", RUNTIME_NAME, _KEPT)
    return _add(text, kept.value_start, key, value)


def _without_kept(text: str, key: str) -> str:
    kept = _kept(text)
    if kept is None or all(member.key != key for member in _members(text, kept.value_start)):
        return text
    return _remove(text, kept.value_start, key)


def _kept(text: str) -> _Member | None:
    entry = _find(text, "runtimes", RUNTIME_NAME)
    return next((each for each in _members(text, entry.value_start) if each.key == _KEPT), None)


def runtime_path(file: TextFile) -> str | None:
    """The program that the file names as our runtime; None if it names none. ConfigError."""
    ours = (_object(file.path, data(file), "runtimes") or {}).get(RUNTIME_NAME)
    path = ours.get("path") if isinstance(ours, dict) else None
    return path if isinstance(path, str) else None


def data(file: TextFile) -> dict[str, Any]:
    """The file's content; ConfigError."""
    return _parse(file.path, file.text) if file.text.strip() else {}


def sources(file: TextFile) -> list[str]:
    """The path of the file, if it is there."""
    return [file.target] if file.state is not None else []


def hosts(file: TextFile) -> list[str]:
    """The addresses on which the engine listens by the file, such as `unix:///run/docker.sock`.
    ConfigError."""
    found = data(file).get("hosts")
    return [str(each) for each in found] if isinstance(found, list) else []


def unconfigure(file: TextFile) -> tuple[Edit, ...]:
    """The file before `configure`, with others' later changes. ConfigError."""
    text = file.text
    if not text.strip():
        return (Edit(file, text),)
    data = _parse(file.path, text)
    runtimes = _object(file.path, data, "runtimes") or {}
    entry = runtimes.get(RUNTIME_NAME)
    if isinstance(entry, dict) and not _is_ours(entry):
        return (Edit(file, text, (f"runtimes.{RUNTIME_NAME} is another program's, and stays",)),)
    kept = entry.get(_KEPT) if isinstance(entry, dict) else None
    kept = kept if isinstance(kept, dict) else {}
    notes: tuple[str, ...] = ()
    if data.get("default-runtime") == RUNTIME_NAME:
        before = kept.get("default-runtime")
        had_entry, has_entry = kept.get("default-runtime-has-entry"), before in list(runtimes)
        if "default-runtime" in kept and (has_entry or not had_entry):
            theirs = _find(text, "runtimes", RUNTIME_NAME, _KEPT, "default-runtime")
            text = _set(text, _find(text, "default-runtime"), _as_written(text, theirs))
        else:
            text = _remove(text, _start(text), "default-runtime")
            if entry is None:
                notes = (
                    f"default-runtime was {RUNTIME_NAME}, which is not among the file's runtimes: docker "
                    "would not start with it, and takes runc",
                )
            if had_entry:
                notes = (
                    f"default-runtime was {json.dumps(before)}, which is no longer among the file's "
                    "runtimes: docker would not start with it, and takes runc",
                )
    if RUNTIME_NAME in kept:
        # In its owner's spelling.
        theirs = _find(text, "runtimes", RUNTIME_NAME, _KEPT, RUNTIME_NAME)
        text = _set(text, _find(text, "runtimes", RUNTIME_NAME), _as_written(text, theirs))
    elif runtimes.keys() == {RUNTIME_NAME}:
        if _is_blank_object(kept.get("runtimes")):
            text = _set(text, _find(text, "runtimes"), _Source(kept["runtimes"]))
        else:
            text = _remove(text, _start(text), "runtimes")
    elif RUNTIME_NAME in runtimes:
        text = _remove(text, _find(text, "runtimes").value_start, RUNTIME_NAME)
    was = kept.get("file")
    if isinstance(was, str) and (not was.strip() or _is_blank_object(was)) and not json.loads(text):
        text = was
    return (Edit(file, text, notes),)


def _is_blank_object(text: Any) -> bool:
    stripped = text.strip(_SPACE) if isinstance(text, str) else ""
    return stripped[:1] == "{" and stripped[-1:] == "}" and not stripped[1:-1].strip(_SPACE)


def _parse(path: str, text: str) -> dict[str, Any]:
    """The file's data. ConfigError with line and column if it is no JSON object, or has a key twice."""
    try:
        data = json.loads(text, parse_constant=_no_constant)
        if not isinstance(data, dict):
            raise malformed(path, 1, 1, "not a JSON object")
        twice = _twice(text, _start(text))
    except json.JSONDecodeError as error:
        raise malformed(path, error.lineno, error.colno, f"not JSON: {error.msg}") from None
    except RecursionError:
        raise malformed(path, 1, 1, "nested too deeply") from None
    except ValueError as error:
        raise malformed(path, 1, 1, f"not JSON: {error}") from None
    if twice:
        line = text.count("\n", 0, twice.start) + 1
        column = twice.start - text.rfind("\n", 0, twice.start)
        raise malformed(path, line, column, f"the key {json.dumps(twice.key)} is given twice")
    return data


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no value")


def _twice(text: str, start: int) -> _Member | None:
    """The first member, at any depth below `start`, with a key that its object already has."""
    seen = set()
    for member in _members(text, start):
        if member.key in seen:
            return member
        seen.add(member.key)
        if text[member.value_start] in "{[" and (inner := _twice(text, member.value_start)):
            return inner
    return None


def _object(path: str, data: dict[str, Any], key: str) -> dict[str, Any] | None:
    value = data.get(key)
    if key in data and not isinstance(value, dict):
        raise _wrong_type(path, key)
    return value


def _wrong_type(path: str, key: str) -> ConfigError:
    return ConfigError(f"{path}: {key} is not a JSON object", "fix it first; nothing was changed")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _start(text: str) -> int:
    return _skip(text, 0)


def _members(text: str, start: int) -> list[_Member]:
    """The members of the object, or the items of the list, that begins at `start`; the text is JSON."""
    decoder = json.JSONDecoder()
    found: list[_Member] = []
    at = _skip(text, start + 1)
    while text[at] not in "}]":
        key, key_start, value_start = str(len(found)), at, at
        if text[start] == "{":
            key, key_end = decoder.raw_decode(text, at)
            value_start = _skip(text, _skip(text, key_end) + 1)
        _, end = decoder.raw_decode(text, value_start)
        found.append(_Member(key, key_start, value_start, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _find(text: str, *keys: str) -> _Member:
    start = _start(text)
    for key in keys:
        member = next(member for member in _members(text, start) if member.key == key)
        start = member.value_start
    return member


def _set(text: str, member: _Member, value: Any) -> str:
    return apply(text, [(member.value_start, member.end, _written(value))])


def _written(value: Any) -> str:
    return str(value) if isinstance(value, _Source) else json.dumps(value)


def _indentation(text: str, at: int) -> str | None:
    """The white space at the beginning of the line, if nothing else is before `at` on it; otherwise None."""
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return before if "\n" in text[:at] and not before.strip(_SPACE) else None


def _unit(text: str) -> str | None:
    """One step of the file's indentation; None if the whole object is on one line."""
    members = _members(text, _start(text))
    if not members:
        return "    "
    step = _indentation(text, members[0].start)
    return "    " if step == "" else step


def _add(text: str, start: int, key: str, value: Any) -> str:
    """`text` with a member added at the end of the object whose brace is at `start`."""
    newline, unit = newline_of(text), _unit(text)
    members = _members(text, start)
    if members:
        indentation = _indentation(text, members[0].start)
        after = members[-1].end
        lead = "," + (" " if indentation is None else newline + indentation)
        return apply(text, [(after, after, lead + _entry(key, value, unit, indentation, newline))])
    line = text[text.rfind("\n", 0, start) + 1 : start]
    outer = line[: len(line) - len(line.lstrip())]
    end = _skip(text, start + 1)
    if unit is None:
        return apply(text, [(start + 1, end, _entry(key, value, None, None, newline))])
    inner = newline + outer + unit + _entry(key, value, unit, outer + unit, newline) + newline + outer
    return apply(text, [(start + 1, end, inner)])


def _entry(key: str, value: Any, unit: str | None, indentation: str | None, newline: str) -> str:
    """`"key": value`, its further lines indented like the rest of the file."""
    if unit is None or indentation is None or isinstance(value, _Source):
        return f"{json.dumps(key)}: {_written(value)}"
    body = json.dumps(value, indent=unit).replace("\n", newline + indentation)
    return f"{json.dumps(key)}: {body}"


def _remove(text: str, start: int, key: str) -> str:
    """`text` without a member of the object whose brace is at `start`, and its comma."""
    members = _members(text, start)
    index = next(i for i, member in enumerate(members) if member.key == key)
    if index:
        return apply(text, [(members[index - 1].end, members[index].end, "")])
    if len(members) > 1:
        return apply(text, [(members[0].start, members[1].start, "")])
    return apply(text, [(start + 1, _skip(text, members[0].end), "")])


def after_change(_file: TextFile, is_removed: bool) -> str:
    """The command that makes a dockerd of the package read the file."""
    return AFTER_UNCONFIGURE if is_removed else AFTER_CONFIGURE
