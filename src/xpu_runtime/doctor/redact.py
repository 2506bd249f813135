"""Takes out of texts and documents what may be a secret, for a bug report that goes to strangers.

Of other programs' files only what is known to be harmless is kept: which keys hold secrets there is more than
anybody can list. In texts of our own (logs, messages) what looks like a secret is taken out.
"""

from __future__ import annotations

import re
from typing import Any

LEFT_OUT = "[left out]"

#: Keys of the engines' configuration and of hooks.d files whose texts are kept. All others' are not.
_KEPT = frozenset(
    (
        "BinaryName",
        "Root",
        "SystemdCgroup",
        "base_runtime_spec",
        "bin_dir",
        "bridge",
        "cgroup",
        "cgroup-parent",
        "conf_dir",
        "containerd",
        "data-root",
        "default-cgroupns-mode",
        "default-runtime",
        "default_runtime_name",
        "disabled_plugins",
        "exec-opts",
        "exec-root",
        "group",
        "imports",
        "log-driver",
        "log-level",
        "path",
        "pod_annotations",
        "required_plugins",
        "root",
        "runtimeType",
        "runtime_engine",
        "runtime_path",
        "runtime_root",
        "runtime_type",
        "snapshotter",
        "stages",
        "state",
        "storage-driver",
        "userns-remap",
        "version",
    )
)
_NAMES = "password|passwd|passphrase|secret|token|auth|credential|private|(?:api|access|signing).?key"
_SECRET = re.compile(_NAMES, re.IGNORECASE)
#: Each with what it becomes. Greedy: what goes too far takes out too much.
_PATTERNS = (
    # The user's part of a URL, which can have any letter in it.
    (re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s\"'<>]*@"), rf"\1{LEFT_OUT}@"),
    # `password = ...`, `"token": ...`, to the end of the line.
    (re.compile(rf"((?:{_NAMES})[\w.-]*[\"']?\s*[=:]\s*)\S.*", re.IGNORECASE), rf"\1{LEFT_OUT}"),
    # Environment variables. Those of a request are the container's too.
    (re.compile(r"\b([A-Z][A-Z0-9_]{2,})=(?:'[^']*'|\"[^\"]*\"|[^\s,;:]+)"), rf"\1={LEFT_OUT}"),
    # A process's command line, as messages have it.
    (re.compile(r"(\bprocess \d+) \(.*\)"), rf"\1 ({LEFT_OUT})"),
)


def text(words: str) -> str:
    """A text of ours, line by line, without what looks like a secret."""
    return "\n".join(_line(line) for line in words.split("\n"))


def _line(line: str) -> str:
    for pattern, replacement in _PATTERNS:
        line = pattern.sub(replacement, line)
    return line


def strings(value: Any) -> Any:
    """A document of ours, with `text` applied to each string in it."""
    if isinstance(value, dict):
        return {text(str(key)): strings(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [strings(each) for each in value]
    return text(value) if isinstance(value, str) else value


def document(value: Any, key: str = "") -> Any:
    """A document of another program: its keys, numbers, and the texts of keys that are known as harmless."""
    if _SECRET.search(key):
        return LEFT_OUT
    if isinstance(value, dict):
        return {text(str(name)): document(each, str(name)) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [document(each, key) for each in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return text(str(value)) if key in _KEPT else LEFT_OUT
