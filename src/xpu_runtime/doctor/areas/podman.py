"""podman and cri-o: the hook in a hooks.d folder (oci-hooks(5)), and our file among the engine's own.

podman has no daemon; cri-o reads its files when it starts.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator

from xpu_runtime import finding, paths, textfile
from xpu_runtime.doctor.machine import Machine, listed
from xpu_runtime.engines import ENGINES, crio
from xpu_runtime.engines import engine as engine_named
from xpu_runtime.engines import podman as podman_engine
from xpu_runtime.errors import ConfigError, RootlessError
from xpu_runtime.finding import Finding
from xpu_runtime.linux import files, proc
from xpu_runtime.observe import engine
from xpu_runtime.observe.engine import Process

ORDER = 72
_CHECK = "podman"
_CRIO = "cri-o"
_FOLDERS = (
    "/usr/share/containers/oci/hooks.d",
    "/usr/local/share/containers/oci/hooks.d",
    "/etc/containers/oci/hooks.d",
)
_MAX_BYTES = 1 << 20


def look(machine: Machine) -> Iterator[Finding]:
    if not proc.is_hosts_root():
        yield finding.warning("engines", RootlessError.WHAT, RootlessError.TODO)
    yield from hooks(_FOLDERS)
    if not any(map(engine.program, ("docker", *(engine_named(name).PROGRAM for name in ENGINES)))):
        text = f"no engine is installed: none of {listed(list(ENGINES))}"
        yield finding.warning("engines", text, "install one, such as docker.io")
    if engine.program(podman_engine.PROGRAM) is not None:
        yield from _of_podman()
    processes = engine.running(crio.PROGRAM)
    if processes or engine.program(crio.PROGRAM) is not None:
        yield from _of_crio(processes)


def _of_podman() -> Iterator[Finding]:
    path = podman_engine.DEFAULT_PATH
    again = "xpu runtime configure podman"
    try:
        file = textfile.read(path)
        ours = podman_engine.runtime_path(file)
        hidden = podman_engine.unseen(file) if ours else None
    except ConfigError as error:
        yield _unread(_CHECK, error, "podman")
        return
    if ours is None:
        text = f"installed; it needs no configuration: podman --runtime {engine.LAUNCHER} run ..."
        yield finding.ok(_CHECK, f"{text}; `{again}` makes that --runtime xpu")
        return
    wrong = engine.entry(_CHECK, path, ours, again)
    if hidden is not None:
        wrong = finding.problem(_CHECK, hidden.what, hidden.todo)
    yield wrong or finding.ok(_CHECK, f"{path} names xpu ({ours})")


def _of_crio(processes: list[Process]) -> Iterator[Finding]:
    path = crio.DEFAULT_PATH
    try:
        file = textfile.read(path)
        ours = crio.runtime_path(file)
        hidden = crio.unseen(file) if ours else None
        sources = crio.sources(file)
    except ConfigError as error:
        yield _unread(_CRIO, error, "cri-o")
        return
    restart = crio.after_change(file, False)
    again = f"xpu runtime configure crio, then {restart}"
    if ours is None:
        text = f"{path} does not name xpu, which a RuntimeClass needs"
        is_node = bool(processes and engine.running("kubelet"))
        yield finding.warning(_CRIO, text, again) if is_node else finding.ok(_CRIO, f"{text} ({again})")
        return
    wrong = engine.entry(_CRIO, path, ours, again)
    if hidden is not None:
        wrong = finding.problem(_CRIO, hidden.what, hidden.todo)
    for process in processes:
        if wrong is None and (changed := engine.changed_since(process, sources)):
            text = f"crio (process {process.pid}) has not read {listed(changed)}, changed after its start"
            wrong = finding.problem(_CRIO, text, restart)
    yield wrong or finding.ok(_CRIO, f"{path} names xpu ({ours})")


def _unread(check: str, error: ConfigError, who: str) -> Finding:
    if isinstance(error.__cause__, PermissionError):
        return finding.unknown(check, error.what, "run it as root")
    return finding.problem(check, error.what, f"mend it: {who} does not start with it")


def hooks(folders: tuple[str, ...]) -> Iterator[Finding]:
    """Findings on the files in `folders` that name our hook."""
    name = os.path.basename(paths.HOOK)
    for path in (each for folder in folders for each in sorted(glob.glob(f"{glob.escape(folder)}/*.json"))):
        try:
            text = files.read(path, _MAX_BYTES).decode()
            if name not in text:
                continue
            hook = str(json.loads(text)["hook"]["path"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            yield finding.problem(
                _CHECK, f"{path} cannot be used: {error}", "install again, or remove that file"
            )
            continue
        if os.access(hook, os.X_OK):
            yield finding.ok(_CHECK, f"{path} names {hook}")
        else:
            text = (
                f"{path} names {hook}, which is not an executable file: no container starts with that folder"
            )
            yield finding.problem(_CHECK, text, "install again, or remove that file")
