"""podman and cri-o: the hook in a hooks.d folder (oci-hooks(5)), and cri-o's tables of runtimes."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator

from xpu_runtime import finding, paths
from xpu_runtime.doctor.machine import Machine
from xpu_runtime.errors import RootlessError
from xpu_runtime.finding import Finding
from xpu_runtime.linux import files, proc
from xpu_runtime.observe import engine

ORDER = 72
#: podman needs one of them to start a container.
_ENGINES = ("docker", "dockerd", "containerd", "podman", "crio")
_CHECK = "podman"
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
    if not any(map(engine.program, _ENGINES)):
        text = "no engine is installed: neither docker nor containerd, podman or cri-o"
        yield finding.warning("engines", text, "install one, such as docker.io")
    if engine.program("podman") is not None:
        yield finding.ok(
            _CHECK, f"installed; it needs no configuration: podman --runtime {engine.LAUNCHER} run ..."
        )


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
