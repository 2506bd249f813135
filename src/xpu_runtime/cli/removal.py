"""The steps before the package is removed (`xpu runtime retire`, of packaging/scripts/before-removal.sh).

The engines must not go on naming a program that is about to go, and running containers need it once more,
when they are deleted. So the runtime is taken out of the engines' configuration, and the processes that still
call it are written down: the package's last script, which finds nothing of ours any more, keeps the programs'
paths for these (after-removal.sh).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import click

from xpu_runtime import engines, paths, textfile
from xpu_runtime.cli.terminal.screen import printable
from xpu_runtime.doctor import docker_flags, podman_containers
from xpu_runtime.doctor.areas import docker as running_docker
from xpu_runtime.engines import ENGINES, RUNTIME_NAME, Engine, engine
from xpu_runtime.errors import ConfigError, XpuError
from xpu_runtime.ledger import cgroup_records, waiting
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import files, proc
from xpu_runtime.observe import docker_api
from xpu_runtime.observe import engine as engine_processes
from xpu_runtime.observe.engine import LAUNCHER, Process
from xpu_runtime.textfile import TextFile
from xpu_runtime.value import Value
from xpu_runtime.vendors import cdi_file

#: Lines of PID, START TIME (proc(5), field 22 of stat) and the program's name.
CALLERS = "callers"
_SHIMS = ("containerd-shim-runc-v2", "containerd-shim-runc-v1", "containerd-shim")
#: A shim's file in its bundle with the runtime's name.
_OF_SHIM = ("runtime", "options.json")
_MOST_BYTES = 1 << 20
_WAIT_S = 5.0


class _Caller(Value):
    pid: int
    start_time: int
    text: str


def prepare() -> None:
    """Takes all steps; a failed one is reported, and does not stop the others."""
    _remove_cdi_file()
    callers = [caller for name in ENGINES for caller in _engine(name)]
    callers += [*_monitors(), *_holders()]
    lines = "".join(f"{each.pid} {each.start_time} {each.text}\n" for each in callers)
    # A fixed path, where the package's last script reads it; XPU_RUN_DIR does not matter.
    os.makedirs(paths.DEFAULT_RUN_DIR, mode=0o755, exist_ok=True)
    files.write_atomic(os.path.join(paths.DEFAULT_RUN_DIR, CALLERS), lines.encode(), mode=0o644)


def _remove_cdi_file() -> None:
    """Removes the CDI file, by which engines would call a hook that is gone. Another installation's stays."""
    path = os.path.join(paths.DEFAULT_CDI_DIR, os.path.basename(paths.cdi_file()))
    try:
        found = cdi_file.there(path)
        if found is None or f'"{LAUNCHER}-hook"' not in found:
            return
        os.unlink(path)
    except OSError as error:
        _say(f"{path} stays, remove it: {error.strerror}", err=True)
        return
    with contextlib.suppress(OSError):  # others have files there, or it is a link
        os.rmdir(paths.DEFAULT_CDI_DIR)


def _say(text: str, *, err: bool = False) -> None:
    click.echo(f"xpu-container-runtime: {text}", err=err)


def _engine(name: str) -> Iterator[_Caller]:
    """Takes us out of the engine's configuration for its next start, and names the processes that have read
    it."""
    known = engine(name)
    processes = engine_processes.running(known.PROGRAM)
    named = set()
    for path in sorted({known.DEFAULT_PATH, *(each.file(name) for each in processes)}):
        try:
            if _unconfigure(known, path):
                named.add(path)
        except (XpuError, OSError) as error:
            # An engine that reads it the next time calls us: until then the path stays good.
            _say(f"still in {name}'s configuration, take it out there: {error}", err=True)
            named.add(path)
            yield from _caller(1, f"{path}, until you take {RUNTIME_NAME} out of it")
    for process in processes:
        if not (_knows(name, process) or process.file(name) in named):
            continue
        until = _until(known, process.file(name))
        _say(f"{known.PROGRAM} (process {process.pid}) knows {RUNTIME_NAME} until: {until}")
        yield from _caller(process.pid, f"{known.PROGRAM} (process {process.pid}), until it is restarted")


def _until(known: Engine, path: str) -> str:
    """What makes the engine forget us."""
    try:
        file = textfile.read(path)
    except (XpuError, OSError):  # the engine has read it before it became so
        file = TextFile(path, path, "", None)
    return known.after_change(file, True)


def _unconfigure(known: Engine, path: str) -> bool:
    """Returns whether the file named us; another installation's entry stays. XpuError or OSError: it still
    names us."""
    file = textfile.read(path)
    if file.state is None:
        return False
    try:
        sources = known.sources(file)
    except XpuError:
        sources = [file.target]
    # Such as that of docker's own containerd, which need not be one that we understand.
    if not any(LAUNCHER in _text(each) for each in sources):
        return False
    if known.runtime_path(file) != LAUNCHER:
        return False
    if not _is_roots(file.target):
        raise ConfigError(f"{path} belongs to another user than root, or others may write to it")
    for process in docker_flags.readers(path):
        if (problem := docker_flags.needs_us(process)) is not None:
            raise problem
    if (problem := podman_containers.in_the_way(known)) is not None:
        raise problem
    for edit in engines.unconfigure(known, file, engine_processes.is_named(known, path)):
        if edit.text != edit.file.text:
            textfile.write(edit.file, edit.text)
    _say(f"taken out of {path}")
    return True


def _is_roots(path: str) -> bool:
    """Whether only root can change the file at the absolute `path`, or put another one in its place."""
    while True:
        state = os.lstat(path)
        if state.st_uid != 0 or state.st_mode & 0o022:
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)


def _knows(name: str, process: Process) -> bool:
    """Whether a running engine calls us regardless of its file: by its command line, or by its answer."""
    if any(LAUNCHER in word for word in process.words):
        _say(f"the command line of process {process.pid} names {LAUNCHER}: take that out", err=True)
        return True
    if name != "docker":
        return False
    try:
        told = running_docker.info(docker_api.socket_of_process(process)).get("Runtimes") or {}
    except Exception:
        return False  # it does not answer: its file counts
    return any(each.get("path") == LAUNCHER for each in told.values())


def _monitors() -> Iterator[_Caller]:
    """The processes that will call us to delete a container, whether it has a slice or not."""
    for name in _SHIMS:
        for process in engine_processes.running(name):
            folder = f"/proc/{process.pid}/cwd"
            if any(LAUNCHER in _text(os.path.join(folder, file)) for file in _OF_SHIM):
                yield from _caller(process.pid, f"container {os.path.basename(os.readlink(folder))}")
    for process in engine_processes.running("conmon"):
        if LAUNCHER in process.option("-r", "--runtime"):
            yield from _caller(process.pid, f"container {' '.join(process.option('-c', '--cid'))}")


def _text(path: str) -> str:
    try:
        return files.read(path, _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _holders() -> Iterator[_Caller]:
    """The containers with a slice: deleting one calls our hook, which its spec names."""
    living = [grant for folder in _run_folders() for grant in _living(os.path.join(folder, "ledger.db"))]
    if living:
        _say("these containers hold slices, and keep them until they end:", err=True)
    for grant in living:
        click.echo(f"  {grant.container_id}", err=True)
        yield from _caller(grant.pid, f"container {grant.container_id}")


def _run_folders() -> list[str]:
    """Folders that may have a ledger: the usual one, and those in XPU_RUN_DIR of this process and of
    processes that start containers."""
    found = [paths.DEFAULT_RUN_DIR, paths.run_dir()]
    for program in (*(engine(name).PROGRAM for name in ENGINES), *_SHIMS, "conmon"):
        for process in engine_processes.running(program):
            for variable in _text(f"/proc/{process.pid}/environ").split("\0"):
                name, _, value = variable.partition("=")
                if name == "XPU_RUN_DIR" and os.path.isabs(value):
                    found.append(value)
    return list(dict.fromkeys(map(os.path.realpath, found)))


def _living(path: str) -> list[Grant]:
    """The grants in the ledger at `path` whose containers run."""
    if not os.path.exists(path):
        return []
    waiting.allow(_WAIT_S)
    try:
        with Ledger(path) as ledger:
            return [grant for grant in ledger.grants() if cgroup_records.has_processes(grant)]
    except XpuError as error:
        _say(f"which containers hold slices is not known: {error}", err=True)
        return []


def _caller(pid: int, text: str) -> Iterator[_Caller]:
    started = proc.start_time(pid)
    if started is not None:
        yield _Caller(pid, started, printable(text))
