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
from xpu_runtime.engines import ENGINES, Engine, crio
from xpu_runtime.engines import engine as engine_named
from xpu_runtime.engines import podman as podman_engine
from xpu_runtime.engines._drop_in import DropIn
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
        yield _found(_CHECK, engine_named("podman"), podman_engine.FILE, [])
    processes = engine.running(crio.PROGRAM)
    if processes or engine.program(crio.PROGRAM) is not None:
        yield _found(_CRIO, engine_named("crio"), crio.FILE, processes)


def _found(check: str, known: Engine, drop_in: DropIn, processes: list[Process]) -> Finding:
    """The finding about the engine's file. `processes`: they have read it when they started."""
    path = known.DEFAULT_PATH
    try:
        file = textfile.read(path)
        ours = known.runtime_path(file)
        hidden = drop_in.unseen(file) if ours else None
        sources = known.sources(file)
    except ConfigError as error:
        return engine.unusable(check, error, check)
    restart = known.after_change(file, False)
    again = f"xpu runtime configure {known.PROGRAM}, then {restart}"
    if ours is None:
        return _unnamed(check, path, again, processes)
    if hidden is not None:
        return finding.problem(check, hidden.what, hidden.todo)
    if (wrong := engine.entry(check, path, ours, again)) is not None:
        return wrong
    for process in processes:
        if changed := engine.changed_since(process, sources):
            who = f"{known.PROGRAM} (process {process.pid})"
            text = f"{who} has not read {listed(changed)}, changed after its start"
            return finding.problem(check, text, restart)
    return finding.ok(check, f"{path} names xpu ({ours})")


def _unnamed(check: str, path: str, again: str, processes: list[Process]) -> Finding:
    if check == _CHECK:
        text = f"installed; it needs no configuration: podman --runtime {engine.LAUNCHER} run ..."
        return finding.ok(check, f"{text}; `xpu runtime configure podman` makes that --runtime xpu")
    text = f"{path} does not name xpu, which a RuntimeClass needs"
    is_node = bool(processes and engine.running("kubelet"))
    return finding.warning(check, text, again) if is_node else finding.ok(check, f"{text} ({again})")


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
