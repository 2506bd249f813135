"""An engine's configuration file, as a person would treat it: read whole, changed with care, written once.

Its owner, mode and place behind a symlink stay; it is replaced in one step, so that an engine that starts at
that moment, or a power cut, meets the old file or the new one. Knows no engine's format.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat

from xpu_runtime.errors import ConfigError
from xpu_runtime.linux import files
from xpu_runtime.value import Value

#: Bytes; engines' files are a few kilobytes.
LARGEST = 1 << 20
_MARK = "\ufeff"


class TextFile(Value):
    """A file as it was read: `path` as given, `target` behind all symlinks; no `state` if it is missing.

    Its byte-order mark, which engines take, is not in the text; it stays.
    """

    path: str
    target: str
    text: str
    state: os.stat_result | None
    mark: str = ""


class Edit(Value):
    """The new text of a file (None: remove it), and notes for the person who asked."""

    file: TextFile
    text: str | None
    notes: tuple[str, ...] = ()


def read(path: str) -> TextFile:
    """The file at `path`, empty if it is missing; ConfigError if it cannot be read or is no text."""
    target = os.path.realpath(path)
    try:
        raw = files.read(target, LARGEST)
        state = os.stat(target)
    except FileNotFoundError:
        return TextFile(path, target, "", None)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})", "nothing was changed") from error
    try:
        text = raw.decode("utf-8")
        mark = _MARK if text.startswith(_MARK) else ""
        return TextFile(path, target, text.removeprefix(mark), state, mark)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise malformed(
            path, line, error.start - raw.rfind(b"\n", 0, error.start), "not UTF-8 text"
        ) from None


def replaceable(path: str) -> str:
    """The file behind all symlinks at `path`, missing or not. ConfigError for a device, a pipe or a folder: a
    rename would put a file in its place."""
    todo = "give another path; nothing was written"
    try:
        # By `path`, as /dev/stdout can lead to a pipe, which has no path. The kernel refuses to follow other
        # users' links in /tmp (fs.protected_symlinks).
        is_file = stat.S_ISREG(os.stat(path or ".").st_mode)
    except FileNotFoundError:
        is_file = True
    except OSError as error:
        raise ConfigError(f"{path} cannot be replaced ({error.strerror})", todo) from error
    if not is_file:
        raise ConfigError(f"{path or repr(path)} is not a regular file", todo)
    return os.path.realpath(path)


def write(file: TextFile, text: str | None) -> None:
    """Replaces the file's text; a missing one is made with mode 0644. None removes it. OSError leaves it."""
    if text == file.text and file.state is not None:
        return
    try:
        _write(file, text)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        raise ConfigError(
            f"{file.path} is a mount of its own, which cannot be replaced",
            "change the file that is mounted there (findmnt names it; --config takes its path), or unmount "
            "it first; it is as it was",
        ) from error


def _write(file: TextFile, text: str | None) -> None:
    if text is None:
        _check_unchanged(file)
        os.unlink(file.target)
        return
    if file.state is None:
        os.makedirs(os.path.dirname(file.target), mode=0o755, exist_ok=True)
    mode = file.state.st_mode & 0o7777 if file.state else 0o644
    # By descriptor: another user of the folder could put a link in the place of the new file.
    owner = (file.state.st_uid, file.state.st_gid) if file.state else None
    files.write_atomic(
        file.target,
        (file.mark + text).encode(),
        mode,
        fsync=True,
        owner=owner,
        before=lambda _: _check_unchanged(file),
    )


def _check_unchanged(file: TextFile) -> None:
    if _state(file.target) != _state_of(file.state):
        raise ConfigError(f"{file.path} was changed by somebody else meanwhile", "run this again")


def difference(file: TextFile, text: str | None) -> str:
    """The change as `diff -u` shows it; empty if there is none."""
    lines = difflib.unified_diff(
        file.text.splitlines(keepends=True),
        (text or "").splitlines(keepends=True),
        fromfile=file.path if file.state else "/dev/null",
        tofile="/dev/null" if text is None else file.path,
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def malformed(path: str, line: int, column: int, what: str) -> ConfigError:
    """The error for a file that does not parse; line and column count from 1."""
    return ConfigError(f"{path}:{line}:{column}: {what}", "fix it first; nothing was changed")


def newline_of(text: str) -> str:
    """The line ending that the file uses."""
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def apply(text: str, changes: list[tuple[int, int, str]]) -> str:
    """`text` with each of the (start, end, replacement) spans, which do not overlap, replaced."""
    for start, end, replacement in sorted(changes, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text


def _state(path: str) -> tuple[int, ...] | None:
    try:
        return _state_of(os.stat(path))
    except FileNotFoundError:
        return None


def _state_of(state: os.stat_result | None) -> tuple[int, ...] | None:
    return (state.st_ino, state.st_size, state.st_mtime_ns) if state else None
