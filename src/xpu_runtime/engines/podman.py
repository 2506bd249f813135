"""podman: our name among its runtimes, in a file of our own below /etc/containers/containers.conf.d.

podman reads a runtime's error from the runtime's log if `runtime_supports_json` names the runtime
(containers.conf(5)). Such a list replaces podman's own list. From 5.0 on, perhaps before, it can add to that
list. Seen with 4.3 and 5.4.
"""

from __future__ import annotations

from typing import Any

from xpu_runtime import engines
from xpu_runtime.engines import RUNTIME_NAME, _drop_in
from xpu_runtime.textfile import Edit, TextFile

PROGRAM = "podman"
DEFAULT_PATH = "/etc/containers/containers.conf.d/99-xpu.conf"
CONFIG_OPTIONS: tuple[str, ...] = ()

_RUNTIME = ("engine", "runtimes", RUNTIME_NAME)
_JSON = ("engine", "runtime_supports_json")
FILE = _drop_in.DropIn(
    _RUNTIME,
    ("engine", "runtime"),
    "containers.conf",
    before=("/usr/share/containers/containers.conf",),
    # 5.4 reads it, 4.3 does not: there it would count from an upgrade on.
    after=("/root/.config/containers/containers.conf",),
)
unconfigure, data, sources = FILE.unconfigure, FILE.data, FILE.sources

_APPENDS = (5, 0)
#: podman's own list in earlier versions.
_BY_DEFAULT = ["crun", "runc", "kata", "runsc", "youki", "krun"]


def configure(file: TextFile, runtime_path: str, set_as_default: bool) -> tuple[Edit, ...]:
    """The file with our runtime at `runtime_path`. ConfigError."""
    wanted = {"engine": {_JSON[1]: _supports_json(file), "runtimes": {RUNTIME_NAME: [runtime_path]}}}
    return FILE.configure(file, wanted, set_as_default)


def _supports_json(file: TextFile) -> list[Any]:
    version = engines.installed_version(PROGRAM)
    if version is not None and version >= _APPENDS:
        return [RUNTIME_NAME, {"append": True}]
    others = [each for each in FILE.files(file) if each.path != file.path]
    lists = [_drop_in.of(each, _JSON) for each in others]
    known = [each for each in lists if isinstance(each, list)] or [_BY_DEFAULT]
    return [*(each for each in known[-1] if each != RUNTIME_NAME), RUNTIME_NAME]


def runtime_path(file: TextFile) -> str | None:
    """The program that the file names as our runtime; None if it names none. ConfigError."""
    named = _drop_in.of(file, _RUNTIME)
    return str(named[0]) if isinstance(named, list) and named else None


def after_change(_file: TextFile, _is_removed: bool) -> str:
    """The command that makes podman's service read the file."""
    return "systemctl restart podman, where its service runs (podman itself reads it at each command)"
