"""The effect of a running dockerd's command line on its daemon.json.

At a start dockerd merges the runtimes of both (moby, daemon/config: skipDuplicates), and does not start if
both have a default runtime (findConfigurationConflicts). At a SIGHUP the file's runtimes replace all
(daemon/reload_unix.go): those of its command line are forgotten, and 20.10 panics if one of them is the
default. This module asks no engine, and writes nothing.
"""

from __future__ import annotations

import os
from typing import Any

from xpu_runtime.doctor.machine import listed
from xpu_runtime.engines import RUNTIME_NAME, docker
from xpu_runtime.errors import ConfigError
from xpu_runtime.observe import engine
from xpu_runtime.observe.engine import Process

_ADD, _DEFAULT = "--add-runtime", "--default-runtime"
_KEY = "default-runtime"
#: dockerd knows it without the file.
_STOCK = "runc"


def readers(path: str) -> list[Process]:
    """The dockerds that run and read the file at `path`."""
    running = engine.running(docker.PROGRAM)
    return [each for each in running if os.path.realpath(each.file("docker")) == os.path.realpath(path)]


def added(process: Process) -> list[str]:
    """The names of the runtimes that its command line adds."""
    return [each.partition("=")[0] for each in process.option(_ADD)]


def default(process: Process) -> str | None:
    """The default runtime that its command line names."""
    return next(reversed(process.option(_DEFAULT)), None)


def after_configure(process: Process, data: dict[str, Any]) -> str:
    """The command that makes it read a file with `data`: a reload, or a restart if a reload is not safe."""
    runtimes = data.get("runtimes")
    known = {_STOCK, *(runtimes if isinstance(runtimes, dict) else ())}
    named = [*added(process), *process.option(_DEFAULT)]
    lost = [name for name in dict.fromkeys(named) if name not in known]
    if not lost:
        return docker.AFTER_CONFIGURE
    return (
        f"{docker.AFTER_UNCONFIGURE}. Do not reload: dockerd (process {process.pid}) would forget the "
        f"runtimes that only its command line names ({listed(lost)}). Their containers would not start "
        "again, and 20.10 panics if one is the default. A restart ends containers unless live-restore is on"
    )


def conflict(process: Process, path: str, data: dict[str, Any]) -> ConfigError | None:
    """Why it does not start again if the file at `path` has `data`; None: it does."""
    named = default(process)
    if named is None or _KEY not in data:
        return None
    what = (
        f"dockerd (process {process.pid}) is started with {_DEFAULT} {named}, and does not start where "
        f"{path} has {_KEY} as well"
    )
    if named == RUNTIME_NAME:
        return ConfigError(what, f"leave {_KEY} out of the file: it is {RUNTIME_NAME} by that flag")
    return ConfigError(
        what,
        f"take the flag out of its command line (systemctl edit docker) and restart it, or leave {_KEY} "
        f"out of the file and say {_DEFAULT} {RUNTIME_NAME} there",
    )


def needs_us(process: Process) -> ConfigError | None:
    """Why it does not start again without our runtime in its file; None: it does."""
    if default(process) != RUNTIME_NAME or RUNTIME_NAME in added(process):
        return None
    return ConfigError(
        f"dockerd (process {process.pid}) is started with {_DEFAULT} {RUNTIME_NAME}, and does not start "
        "without that runtime",
        f"take {_DEFAULT} out of its command line first (systemctl edit docker)",
    )
