"""containerd: whether its CRI plugin, for Kubernetes, is configured for us, and has read that.

It reads its files once, when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator

from xpu_runtime import engines, finding, textfile
from xpu_runtime.doctor.machine import Machine, listed
from xpu_runtime.engines import containerd, docker
from xpu_runtime.engines.containerd import outcome
from xpu_runtime.errors import ConfigError
from xpu_runtime.finding import Finding
from xpu_runtime.linux import proc
from xpu_runtime.observe import engine
from xpu_runtime.observe.engine import Process

ORDER = 71
_CHECK = "containerd"
#: The first that knows user namespaces in Kubernetes, and the first that always keeps a container's runtime
#: there (github.com/containerd/containerd/issues/11568; later ones of 2.0 do too).
_FORGETFUL = (1, 7), (2, 1)


def look(machine: Machine) -> Iterator[Finding]:
    processes = engine.running(containerd.PROGRAM)
    for process in processes:
        # One that dockerd has started is its own; nothing of CRI is used there.
        if proc.name(proc.parent(process.pid)) != docker.PROGRAM:
            path = process.file("containerd")
            yield from _look(path, process)
    if not processes and engine.program(containerd.PROGRAM) is not None:
        yield from _look(containerd.DEFAULT_PATH, None)


def _look(path: str, process: Process | None) -> Iterator[Finding]:
    who = f"containerd (process {process.pid})" if process else "containerd (not running)"
    option = "" if path == containerd.DEFAULT_PATH else f" --config {path}"
    try:
        file = textfile.read(path)
        ours = containerd.runtime_path(file)
        sources = containerd.sources(file)
        hidden = outcome.unseen(file, ours) if ours else None
        unlike = outcome.unlike_others(file) if ours else ""
    except ConfigError as error:
        yield engine.unusable(_CHECK, error, who)
        return
    restart = containerd.after_change(file, False)
    again = f"xpu runtime configure containerd{option}, then {restart}"
    if ours is None:
        text = f"{path} does not name xpu, which only Kubernetes needs"
        if engine.running("kubelet"):
            yield finding.warning(_CHECK, f"{text}, and kubelet runs here", again)
        else:
            yield finding.ok(_CHECK, f"{text} ({again})")
        return
    wrong = engine.entry(_CHECK, path, ours, again)
    if hidden is not None:
        wrong = finding.problem(_CHECK, hidden.what, hidden.todo)
    if wrong is not None:
        yield wrong
    if unlike:
        yield finding.warning(
            _CHECK, f"{path}: {unlike}", f"xpu runtime unconfigure containerd{option}; {again}"
        )
    changed = engine.changed_since(process, sources) if process else []
    if changed:
        text = f"{who} has not read {listed(changed)}, which changed after it had started"
        yield finding.problem(_CHECK, text, restart)
    elif wrong is None:
        yield finding.ok(_CHECK, f"{who}: {path} names xpu ({ours})")
    yield from of_version(engines.installed_version(containerd.PROGRAM))


def of_version(version: tuple[int, int] | None) -> Iterator[Finding]:
    """Findings about a containerd for which we are configured. None: the version is not known."""
    if version is not None and _FORGETFUL[0] <= version < _FORGETFUL[1]:
        text = "with hostUsers: false (a user namespace) a container starts under runc itself, without a GPU"
        yield finding.warning(
            _CHECK,
            f"containerd {version[0]}.{version[1]}: {text}",
            "take containerd 2.1 or newer for such pods",
        )
