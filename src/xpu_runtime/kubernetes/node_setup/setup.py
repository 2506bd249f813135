"""The steps that install the runtime on a node, and those that restore the node.

All of them run in the node's mount namespace, each can be repeated, and one that fails leaves those before it
done: the init container runs again. The changes are written down beside the keys, because older parts (a
package of ours, an entry in containerd's configuration) must not be removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from xpu_runtime import paths, textfile, version
from xpu_runtime.config.compile import read_config
from xpu_runtime.engines import containerd
from xpu_runtime.errors import ConfigError, XpuError
from xpu_runtime.kubernetes.node_setup import agent_unit, removal_timer, section, tree
from xpu_runtime.kubernetes.node_setup.host import run, say
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.linux import files, proc
from xpu_runtime.observe import engine
from xpu_runtime.request.assignment import read_keys
from xpu_runtime.value import Value

FOLDER = "/etc/xpu/kubernetes"
KEYS = f"{FOLDER}/keys"
_DONE = f"{FOLDER}/installed.json"
#: Files of a package of ours, and the place of its build's mark.
_PACKAGE, _OURS = "/usr/bin", os.path.join(tree.PREFIX, "bin")
_PACKAGE_VERSION = "/usr/lib/xpu-container-runtime/python/xpu_runtime/version.py"
#: In the run folder: the file of `xpu runtime retire` (cli/removal.py).
_CALLERS = "callers"
#: The beginning of `xpu runtime`'s output after a change.
_TOLD_TO_RESTART = "For the change to take effect"
_SMALL = 64 << 10
#: Results of `uninstall`: containers still call the tree, and nothing removes it after them; another pod has
#: installed since, so that nothing was removed.
PENDING, KEPT = 3, 4
#: Whoever changes the node locks this folder: it exists on each node, and nobody else locks it. A pod that
#: was deleted by force may still uninstall while its replacement installs.
_LOCKED = "/etc"


class Settings(Value):
    """How a node is to be: `values` is the section of its configuration, `unit` the systemd unit that is
    restarted when containerd's configuration has changed ("": none)."""

    values: Mapping[str, Any]
    keys: bytes | None
    containerd_config: str
    unit: str
    #: The UID of the pod that installs; "": it is not known.
    pod: str = ""


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """One at a time; a killed process releases it."""
    folder = os.open(_LOCKED, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@_lock()
def install(source: str, settings: Settings) -> None:
    """Puts the tree from `source` on the node, configures it, and tells containerd. ConfigError, OSError."""
    programs = _PACKAGE if _has_package() else _OURS
    first = {"made_state": not os.path.exists(paths.DEFAULT_RUN_DIR)}
    _write_done({**first, **(_done() or {}), "programs": programs, "pod": settings.pod, "removing": False})
    is_new = tree.copy(source, tree.PREFIX)
    if is_new:
        say(f"{tree.PREFIX}: version {version.VERSION} is there now")
    removal_timer.cancel()
    _write_keys(settings)
    _write_section(settings)
    _configure_containerd(settings, programs)
    if programs == _OURS:  # a package brings its own
        _write_done({**(_done() or {}), "agent": True})
        agent_unit.start(tree.PREFIX, is_new=is_new)
    # For the log; a driver that does not answer yet is the device plugin's to wait for.
    with contextlib.suppress(ConfigError):
        run(os.path.join(programs, "xpu"), "devices")


def write_keys(keys: bytes) -> bool:
    """Makes these the node's keys; returns whether they were others. AssignmentError if they are not valid,
    OSError."""
    with contextlib.suppress(OSError):
        if files.read(KEYS, _SMALL) == keys:
            return False
    os.makedirs(FOLDER, mode=0o700, exist_ok=True)
    os.chmod(FOLDER, 0o700)
    # Looked at before starts can meet them.
    files.write_atomic(KEYS, keys, 0o600, fsync=True, before=_check_keys)
    return True


def _check_keys(path: str) -> None:
    read_keys(path)


@_lock()
def uninstall(pod: str = "") -> int:
    """Removes the files of `install` from the node; returns 0. KEPT if another pod than `pod`, if given,
    installed them. If containers still call the runtime, the tree stays for them, and a timer of the node
    removes it when they have ended; PENDING if there can be no timer, and this has to be repeated.
    ConfigError, OSError."""
    done = _done()
    installer = (done or {}).get("pod")
    if pod and installer and installer != pod:
        say("another pod has installed the runtime since: nothing is removed")
        return KEPT
    if done is None and not os.path.isdir(tree.PREFIX):
        say("nothing is installed here")
        return 0
    done = {**(done or {}), "removing": True}
    _write_done(done)
    if done.get("configured"):
        path = str(done.get("containerd_config") or containerd.DEFAULT_PATH)
        xpu = os.path.join(str(done.get("programs") or _OURS), "xpu")
        said = run(xpu, "runtime", "unconfigure", "containerd", "--config", path)
        _restart(str(done.get("unit", "")), path, said)
        # The program may already be gone when this is repeated.
        _write_done({**done, "configured": False})
    with contextlib.suppress(FileNotFoundError):
        os.unlink(KEYS)
    _end_reservations()
    return _finish()


def _end_reservations() -> None:
    """Ends pods' reservations: without the device plugin they would stay, and docker's containers could not
    have that memory until the next boot. A running container has its grant."""
    if not os.path.exists(paths.in_run_dir("ledger.db")):
        return
    try:
        with PodLedger() as ledger:
            ledger.deallocate([each.uid for each in ledger.allocations()])
    except XpuError as error:
        say(f"reservations of pods stay until the next boot: {error}", error=True)


@_lock()
def finish() -> int:
    """The last part of `uninstall`, which the node's timer repeats; returns the same."""
    # A newer installation stays.
    return _finish() if (_done() or {}).get("removing") else 0


def _finish() -> int:
    done = _done() or {}
    if done.get("programs") != _PACKAGE:
        callers = _callers()
        if callers:
            say(f"{tree.PREFIX} stays for: {'; '.join(callers)}")
            return 0 if removal_timer.schedule(tree.PREFIX) else PENDING
    elif _has_old_configuration(str(done.get("containerd_config") or containerd.DEFAULT_PATH)):
        say(f"{tree.PREFIX} stays until containerd is restarted")
        return 0 if removal_timer.schedule(tree.PREFIX) else PENDING
    if done.get("agent"):
        agent_unit.stop()
    if done.get("programs") != _PACKAGE and done.get("made_state"):
        _remove_state()
    # Until now the section was needed: with it a runtime that is still called refuses pods without an
    # assignment.
    _remove_section()
    tree.remove(tree.PREFIX)
    shutil.rmtree(FOLDER, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(FOLDER))  # if nothing is left in it
    removal_timer.cancel()
    say("the node is as it was before")
    return 0


def _has_package() -> bool:
    """Whether the node has a package of ours; ConfigError if that is another build."""
    try:
        text = files.read(_PACKAGE_VERSION, _SMALL).decode("utf-8", "replace")
    except OSError:
        return False
    theirs = {
        name: value.strip(' "') for name, _, value in (line.partition(" = ") for line in text.splitlines())
    }
    if theirs.get("BUILD") != version.BUILD:
        raise ConfigError(
            f"the node has another build of xpu-container-runtime, {theirs.get('VERSION')}, from a package",
            "install this image's version there, or remove the package",
        )
    return True


def _write_keys(settings: Settings) -> None:
    if settings.keys is not None:
        write_keys(settings.keys)
    elif settings.values.get("placement") == "extender":
        raise ConfigError(
            "there is no Secret xpu-keys with a key `keys`, which verifies the extender's assignments",
            "make it: packaging/kubernetes/make-secrets",
        )


def _write_section(settings: Settings) -> None:
    """Into the configuration, where it is right with it: a wrong one would stop every start."""
    path = paths.DEFAULT_CONFIG
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    file = textfile.read(path)
    text = section.written(file.text, {**settings.values, "keys": KEYS}, path)
    if text == file.text:
        return
    trial = os.path.join(os.path.dirname(path), ".config.yaml.new")
    try:
        files.write_atomic(trial, text.encode(), 0o644)
        _, _, problems = read_config(trial)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(trial)
    if problems:
        raise ConfigError(f"with the section kubernetes: {problems[0].at(path)}", "nothing was changed")
    textfile.write(file, text)
    say(f"{path}: changed")


def _remove_section() -> None:
    file = textfile.read(paths.DEFAULT_CONFIG)
    if file.state is None:
        return
    text = section.without(file.text, file.path)
    if text != file.text:
        textfile.write(file, text if text.strip() else None)
        say(f"{file.path}: {'changed' if text.strip() else 'removed'}")


def _configure_containerd(settings: Settings, programs: str) -> None:
    path = settings.containerd_config
    before = containerd.runtime_path(textfile.read(path))
    done = _done() or {}
    if before != os.path.join(programs, "xpu-container-runtime"):
        # Written down first: an installation that is cut short here is undone as well.
        done["configured"] = True
    _write_done({**done, "containerd_config": path, "unit": settings.unit})
    said = run(os.path.join(programs, "xpu"), "runtime", "configure", "containerd", "--config", path)
    _restart(settings.unit, path, said)


def _restart(unit: str, path: str, said: str) -> None:
    """Restarts containerd if it has not read its configuration since the change.

    `xpu runtime`'s output, or the times of file and process, tell that. Containers go on meanwhile: their
    shims are processes of their own.
    """
    if not _has_old_configuration(path) and _TOLD_TO_RESTART not in said:
        return
    if not unit:
        say(f"containerd has not read {path} since it has changed: restart it")
        return
    say(f"{unit} is restarted, as containerd reads its configuration only when it starts; containers go on")
    run("systemctl", "restart", unit)


def _has_old_configuration(path: str) -> bool:
    """Whether a containerd runs that has not read its configuration since that has changed."""
    file = textfile.read(path)
    patterns = containerd.data(file).get("imports")
    # A file that was removed has changed its folder.
    read = [*containerd.sources(file), os.path.dirname(path)]
    read += (
        [os.path.dirname(str(each)) for each in patterns if isinstance(patterns, list)] if patterns else []
    )
    return any(
        path == process.file("containerd") and engine.changed_since(process, read)
        for process in engine.running(containerd.PROGRAM)
    )


def _done() -> dict[str, Any] | None:
    try:
        found = json.loads(files.read(_DONE, _SMALL))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write_done(record: dict[str, Any]) -> None:
    os.makedirs(FOLDER, mode=0o700, exist_ok=True)
    files.write_atomic(_DONE, json.dumps(record).encode(), 0o600, fsync=True)


def _callers() -> list[str]:
    """Processes that still call the tree's programs: containers, and an engine that has not been
    restarted."""
    if not os.path.exists(os.path.join(_OURS, "xpu")):
        return []
    run(os.path.join(_OURS, "xpu"), "runtime", "retire")
    try:
        lines = files.read(os.path.join(paths.DEFAULT_RUN_DIR, _CALLERS), 1 << 20).decode("utf-8", "replace")
    except OSError:
        return []
    found = []
    for line in lines.splitlines():
        pid, started, what = (*line.split(" ", 2), "", "")[:3]
        if pid.isdigit() and started.isdigit() and proc.is_alive(int(pid), int(started)):
            found.append(what)
    return found


def _remove_state() -> None:
    """Removes the ledger and the caches, which are not used any more and were not there before; leaves mounts
    of others."""
    with contextlib.suppress(OSError):
        mounted = files.read("/proc/self/mountinfo", 16 << 20).decode("utf-8", "replace")
        if f" {paths.DEFAULT_RUN_DIR}" not in mounted:
            shutil.rmtree(paths.DEFAULT_RUN_DIR)
