"""docker: whether it is configured for us, and whether the running engine has read that.

The engine itself tells its configuration, by `GET /info` on its socket (Docker's Engine API). It can have
read its file at any SIGHUP, so the times of file and process do not show it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from xpu_runtime import finding, paths, textfile
from xpu_runtime.doctor import docker_flags
from xpu_runtime.doctor.machine import Machine, listed
from xpu_runtime.engines import RUNTIME_NAME, docker
from xpu_runtime.errors import ConfigError, RootlessError
from xpu_runtime.finding import Finding
from xpu_runtime.linux import deadline
from xpu_runtime.observe import docker_api, engine
from xpu_runtime.observe.engine import Process

ORDER = 70
_CHECK = "docker"
_ANSWER_S = 5.0
#: Seconds for all that is to be asked and read of one engine, while the others are looked at.
_ENGINE_S = 15.0
_MOST_BYTES = 4 << 20
#: Runtimes that give whole devices to containers, past the ledger.
_PAST_US = ("nvidia",)
#: Up to 28.1 it is switched on by its file.
_FIRST_WITH_CDI = 25
#: The first that knows CDI devices when it starts containers by their policy (moby 49989).
_FIRST_TO_RESTART = (28, 2)


def look(machine: Machine) -> Iterator[Finding]:
    processes = engine.running(docker.PROGRAM)
    answers = deadline.together([partial(_running, each) for each in processes], _ENGINE_S)
    for process, answer in zip(processes, answers):
        yield from answer.values
        if answer.error:
            text = f"{docker.PROGRAM} (process {process.pid}): this check failed: {answer.error}"
            yield finding.unknown(_CHECK, text, answer.todo or "see `docker info` and the journal")
    if processes or engine.program(docker.PROGRAM) is None:
        return
    path = docker.DEFAULT_PATH
    try:
        ours = docker.runtime_path(textfile.read(path))
    except ConfigError as error:
        yield engine.unusable(_CHECK, error, "docker")
        return
    wrong = engine.entry(_CHECK, path, ours, _configure(path)) if ours else None
    if wrong is not None:
        yield wrong
    about = f"{path} names xpu" if ours else f"{path} does not name xpu ({_configure(path)})"
    yield finding.warning(
        _CHECK,
        f"installed and not running; {about}",
        "systemctl start docker (without systemd: start dockerd)",
    )


def _configure(path: str) -> str:
    option = "" if path == docker.DEFAULT_PATH else f" --config {path}"
    return f"xpu runtime configure docker{option}"


def _running(process: Process) -> Iterator[Finding]:
    path = process.file("docker")
    who = f"dockerd (process {process.pid})"
    ours, hosts = None, process.option("-H", "--host")
    said: dict[str, Any] = {}
    try:
        file = textfile.read(path)
        said = docker.data(file)
        ours = docker.runtime_path(file)
        hosts += docker.hosts(file)
    except ConfigError as error:
        yield finding.problem(_CHECK, error.what, f"mend it: {who} does not start again with it")
    if (conflict := docker_flags.conflict(process, path, said)) is not None:
        yield finding.problem(_CHECK, conflict.what, conflict.todo)
    again = f"{_configure(path)}, then {docker_flags.after_configure(process, said)}"
    wrong = engine.entry(_CHECK, path, ours, again) if ours else None
    if wrong is not None:
        yield wrong
    try:
        told = info(docker_api.socket_of(hosts))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        todo = "run it as root" if isinstance(error, PermissionError) else "see `docker info` and the journal"
        yield finding.unknown(_CHECK, f"{who} does not answer on {docker_api.socket_of(hosts)}: {why}", todo)
        return
    yield from compared(process, path, said, ours, told)


def info(path: str) -> dict[str, Any]:
    """The answer of the engine on the socket `path`; OSError, ValueError.

    Ends in time as a whole: an engine that sends a byte a second would never miss the socket's limit.
    """
    answer = deadline.one(partial(_info, path), _ANSWER_S)
    told = answer.values[0] if answer.values else TimeoutError(errno.ETIMEDOUT, answer.error)
    if isinstance(told, Exception):
        raise told
    return dict(told)


def _info(path: str) -> dict[str, Any] | Exception:
    try:
        told = docker_api.get(path, "/info", _ANSWER_S, _MOST_BYTES)
    except (OSError, ValueError) as error:
        return error
    runtimes = (told.get("Runtimes") or {}) if isinstance(told, dict) else None
    if not isinstance(runtimes, dict) or not all(isinstance(each, dict) for each in runtimes.values()):
        return ValueError("its answer is not an engine's")
    return dict(told)


def compared(
    process: Process, path: str, said: dict[str, Any], ours: str | None, told: dict[str, Any]
) -> Iterator[Finding]:
    """The differences between the file at `path` (its content is `said`, and it names `ours`) and the
    engine's answer `told`."""
    who = f"dockerd (process {process.pid})"
    then = docker_flags.after_configure(process, said)
    again = f"{_configure(path)}, then {then}"
    runtimes = told.get("Runtimes") or {}
    known = (runtimes.get(RUNTIME_NAME) or {}).get("path")
    version = told.get("ServerVersion", "")
    if "name=rootless" in (told.get("SecurityOptions") or []):
        yield finding.problem(_CHECK, f"{who} is rootless, and {RootlessError.WHAT}", RootlessError.TODO)
    if ours is not None and known is None:
        text = f"{who} has not read {path}: it does not know the runtime xpu"
        yield finding.problem(_CHECK, text, then)
    elif ours is not None and known != ours:
        text = f"{who} has not read {path}: it takes {known} for xpu, and the file names {ours}"
        yield finding.problem(_CHECK, text, then)
    elif ours is None and known is not None:
        wrong = engine.entry(_CHECK, who, known, again)
        if wrong is not None:
            yield wrong
        if RUNTIME_NAME in docker_flags.added(process):
            yield finding.ok(_CHECK, f"{who} {version} knows xpu ({known}) by its command line")
        else:
            text = f"{who} knows xpu ({known}), and {path} does not name it (any more)"
            yield finding.warning(_CHECK, text, f"{docker.AFTER_UNCONFIGURE}, or to keep it: {again}")
    elif ours is None and gives_cdi(told):
        text = f"{who} does not know the runtime xpu, and gives slices as CDI devices"
        yield finding.ok(_CHECK, text)
    elif ours is None:
        yield finding.warning(_CHECK, f"{who} does not know the runtime xpu", again)
    else:
        as_what = ", as its default" if told.get("DefaultRuntime") == RUNTIME_NAME else ""
        yield finding.ok(_CHECK, f"{who} {version} has read {path} and knows xpu ({known}){as_what}")
    if os.path.exists(paths.cdi_file()) and not gives_cdi(told):
        yield finding.ok(_CHECK, f"{who} gives no CDI devices: {_why_no_cdi(version, told)}")
    elif gives_cdi(told) and () < _numbers(version) < _FIRST_TO_RESTART:
        text = f"{who} {version} does not start containers with a CDI device by their restart policy when it "
        text += "starts itself, as at a boot (28.2 does): docker start does, and --runtime=xpu needs no CDI"
        yield finding.ok(_CHECK, text)
    lost = [name for name in docker_flags.added(process) if name not in runtimes]
    if lost:
        text = f"{who} has forgotten at a reload the runtimes of its command line ({listed(lost)})"
        text += ": their containers do not start again"
        yield finding.problem(_CHECK, text, docker.AFTER_UNCONFIGURE)
    if (default := told.get("DefaultRuntime")) in _PAST_US:
        text = f"the default runtime of {who} is {default}: containers that name no runtime can get "
        text += "whole devices past the ledger"
        todo = f"{_configure(path)} --set-as-default"
        if docker_flags.default(process) is not None:
            todo = f"say --default-runtime {RUNTIME_NAME} on its command line (systemctl edit docker)"
        yield finding.warning(_CHECK, text, f"{todo}, then {docker.AFTER_UNCONFIGURE}")


def gives_cdi(told: dict[str, Any]) -> bool:
    """Whether an engine with this answer reads our CDI file, which is there."""
    folders = told.get("CDISpecDirs")
    path = paths.cdi_file()
    return isinstance(folders, list) and os.path.dirname(path) in folders and os.path.exists(path)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.split(".")[:2] if each.isdigit())


def _why_no_cdi(version: str, told: dict[str, Any]) -> str:
    if folders := told.get("CDISpecDirs"):
        return f"it looks for files in {listed(folders)}, and ours is {paths.cdi_file()}"
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < _FIRST_WITH_CDI:
        return f"version {version} knows none, {_FIRST_WITH_CDI} does; use --runtime=xpu"
    return 'it takes {"features": {"cdi": true}} in its file, and a restart; or use --runtime=xpu'
