"""A container's spec in a bug report: its shape, without possible secrets.

Arguments, and values of variables and annotations, hold passwords as a matter of habit; options of mounts
and hooks' arguments can. A container's image has written much of the rest, so that all of it is bounded.
"""

from __future__ import annotations

import re
from typing import Any

from xpu_runtime.doctor.redact import LEFT_OUT, strings

_MOST = 500
_LONGEST = 200
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_FLAG_WORDS = (
    "ro rw suid nosuid dev nodev exec noexec sync async dirsync atime noatime diratime nodiratime relatime "
    "norelatime strictatime bind rbind private rprivate shared rshared slave rslave unbindable runbindable "
    "rro rrw idmap ridmap copy tmpcopyup defaults newinstance"
)
#: Options of mounts that have no value; others can be a part of a secret.
_FLAGS = frozenset(_FLAG_WORDS.split())
#: Members of `process` that are kept unchanged.
_OF_PROCESS = (
    "terminal",
    "user",
    "cwd",
    "capabilities",
    "noNewPrivileges",
    "apparmorProfile",
    "selinuxLabel",
)
_OF_LINUX = (
    "namespaces",
    "uidMappings",
    "gidMappings",
    "cgroupsPath",
    "devices",
    "resources",
    "rootfsPropagation",
)


def of(spec: Any) -> dict[str, Any]:
    """The outline of any spec (config.json of the OCI runtime-spec), even a malformed one."""
    process, linux, root = (_object(_object(spec).get(name)) for name in ("process", "linux", "root"))
    return {
        "ociVersion": _short(_object(spec).get("ociVersion")),
        "root": _bounded({name: root.get(name) for name in ("path", "readonly")}),
        "process": {
            **_bounded({name: process[name] for name in _OF_PROCESS if name in process}),
            "env": [_name(each) for each in _list(process.get("env"))],
            "args": f"{len(_list(process.get('args')))} {LEFT_OUT}",
        },
        "mounts": [_mount(_object(each)) for each in _list(_object(spec).get("mounts"))],
        "hooks": {
            _short(stage): [_hook(_object(each)) for each in _list(hooks)]
            for stage, hooks in _object(_object(spec).get("hooks")).items()
        },
        "annotations": [_short(name) for name in _object(_object(spec).get("annotations"))][:_MOST],
        "linux": {
            **_bounded({name: linux[name] for name in _OF_LINUX if name in linux}),
            "seccomp": _short(_object(linux.get("seccomp")).get("defaultAction")),
            "sysctl": [_short(name) for name in _object(linux.get("sysctl"))][:_MOST],
        },
    }


def _mount(mount: dict[str, Any]) -> dict[str, Any]:
    source = _short(mount.get("source"))
    return {
        "destination": _short(mount.get("destination")),
        "type": _short(mount.get("type")),
        # The source of a network's file system names its user, or worse.
        "source": source if source.startswith("/") and not source.startswith("//") else LEFT_OUT,
        "options": [_option(each) for each in _list(mount.get("options"))],
    }


def _hook(hook: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": _short(hook.get("path")),
        "args": f"{len(_list(hook.get('args')))} {LEFT_OUT}",
        "env": [_name(each) for each in _list(hook.get("env"))],
    }


def _name(assignment: Any) -> str:
    """The name in `NAME=value`; a word without a value can be a value that lost its name, and one with `=`
    at its end only can be base64."""
    name, _, value = str(assignment).partition("=")
    return _short(name) if value.strip("=") and _VARIABLE.fullmatch(name) else LEFT_OUT


def _option(option: Any) -> str:
    return str(option) if option in _FLAGS else _name(option)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value[:_MOST] if isinstance(value, list) else []


def _short(value: Any) -> str:
    return "" if value is None else str(strings(str(value)[:_LONGEST]))


def _bounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {_short(key): _bounded(each) for key, each in list(value.items())[:_MOST]}
    if isinstance(value, list):
        return [_bounded(each) for each in value[:_MOST]]
    return _short(value) if isinstance(value, str) else value
