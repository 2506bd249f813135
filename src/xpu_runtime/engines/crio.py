"""cri-o: our runtime, in a file of our own below /etc/crio/crio.conf.d (crio.conf(5), crio.conf.d(5)).

cri-o takes nothing for an entry from the default runtime's. So ours repeats that one's keys: a monitor that
is not in PATH, as that of cri-o's packages, without which cri-o does not start; annotations; limits. A pod's
annotations reach every runtime.
"""

from __future__ import annotations

import os
from typing import Any

from xpu_runtime.engines import RUNTIME_NAME, RUNTIME_PROGRAM, _drop_in
from xpu_runtime.textfile import Edit, TextFile

PROGRAM = "crio"
DEFAULT_PATH = "/etc/crio/crio.conf.d/99-xpu.conf"
CONFIG_OPTIONS: tuple[str, ...] = ()

_RUNTIMES = ("crio", "runtime", "runtimes")
_RUNTIME = (*_RUNTIMES, RUNTIME_NAME)
_DEFAULT = ("crio", "runtime", "default_runtime")
FILE = _drop_in.DropIn(_RUNTIME, _DEFAULT, "crio.conf", every=True)
unconfigure, data, sources = FILE.unconfigure, FILE.data, FILE.sources

_TYPE = "oci"
#: The default where no file names one: newer cri-o's, older one's.
_BY_DEFAULT = ("crun", "runc")
#: What an entry says about the program that it starts (pkg/config/config.go, RuntimeHandler).
_OF_PROGRAM = (
    "runtime_path",
    "runtime_type",
    "runtime_config_path",
    "platform_runtime_paths",
    "inherit_default_runtime",
)


def configure(file: TextFile, runtime_path: str, set_as_default: bool) -> tuple[Edit, ...]:
    """The file with our runtime at `runtime_path`. ConfigError."""
    entry = {"runtime_path": runtime_path, "runtime_type": _TYPE, **_of_default(file)}
    wanted = {"crio": {"runtime": {"runtimes": {RUNTIME_NAME: entry}}}}
    return FILE.configure(file, wanted, set_as_default)


def _of_default(file: TextFile) -> dict[str, Any]:
    """The default runtime's keys that say nothing about its program; none if no file has its entry."""
    others = [each for each in FILE.files(file) if each.path != file.path]
    for name in (_drop_in.last(others, FILE.default)[1], *_BY_DEFAULT):
        _, entry = _drop_in.last(others, (*_RUNTIMES, str(name)))
        # Those of type `pod` and `vm` have other monitors.
        if name != RUNTIME_NAME and isinstance(entry, dict) and (entry.get("runtime_type") or _TYPE) == _TYPE:
            return {key: value for key, value in entry.items() if key not in _OF_PROGRAM}
    return {}


def runtime_path(file: TextFile) -> str | None:
    """The program that the file names as our runtime; None if it names none. ConfigError."""
    path = _drop_in.of(file, (*_RUNTIME, "runtime_path"))
    return path if isinstance(path, str) else None


def is_default(file: TextFile) -> bool | None:
    """Whether we start pods that name no runtime, by `file` and the files beside it. None if none of them has
    our runtime: no cri-o then starts the node's pods. ConfigError."""
    read = FILE.files(file)
    tables = [_drop_in.of(each, _RUNTIMES) for each in read]
    names = {name for table in tables if isinstance(table, dict) for name in table}
    programs = {name: _drop_in.last(read, (*_RUNTIMES, name, "runtime_path"))[1] for name in names}
    ours = {name for name, path in programs.items() if os.path.basename(str(path)) == RUNTIME_PROGRAM}
    return _drop_in.last(read, _DEFAULT)[1] in ours if ours else None


def after_change(_file: TextFile, _is_removed: bool) -> str:
    """The command that makes cri-o read the file."""
    return "systemctl restart crio (containers go on)"
