"""The common part of engines' areas: the running processes of an engine, and its entry for us."""

from __future__ import annotations

import os
import shutil
import time

from xpu_runtime import engines, finding, paths, textfile
from xpu_runtime.engines import Engine
from xpu_runtime.errors import ConfigError
from xpu_runtime.finding import Finding
from xpu_runtime.linux import proc
from xpu_runtime.value import Value

LAUNCHER = os.path.join(os.path.dirname(paths.HOOK), "xpu-container-runtime")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_BYTES = 64 << 10


class Process(Value):
    """A running engine: its words, and when it started, in seconds since the epoch."""

    pid: int
    words: tuple[str, ...]
    started: float

    def file(self, name: str) -> str:
        """The configuration file that it reads as a process of the engine `name`, one of ENGINES."""
        known = engines.engine(name)
        return (self.option(*known.CONFIG_OPTIONS) or [known.DEFAULT_PATH])[-1]

    def option(self, *names: str) -> list[str]:
        """The values that it was given for an option, as `--host X`, `--host=X` or `-H X`."""
        found = []
        for position, word in enumerate(self.words):
            name, equals, value = word.partition("=")
            if name in names:
                found.append(value if equals else "".join(self.words[position + 1 : position + 2]))
        return found


def program(name: str) -> str | None:
    """The path of an installed program; None if there is none."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_PATH}")


def running(name: str) -> list[Process]:
    """Root's processes of the program `name`, without those in containers, whose files are others."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        pid = int(entry)
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read(_MOST_BYTES).decode("utf-8", "replace").rstrip("\0").split("\0")
            if _is_program(pid, name, words[0]) and _is_roots(pid) and proc.innermost_pid(pid) == pid:
                found.append(Process(pid, tuple(words), _started(pid)))
        except OSError:
            continue  # it has ended
    return sorted(found, key=lambda each: each.pid)


def _is_program(pid: int, name: str, called: str) -> bool:
    """Whether a process is of the program, and sees our files. OSError.

    If the link to its program can be read, its first word does not count: any user can start any program with
    any words, also a set-user-id program of root's. Its root folder is compared and not its mount namespace:
    a service with PrivateTmp= (systemd.exec(5)) has one of its own, and our files.
    """
    try:
        program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
        return os.path.basename(program) == name and os.path.samefile(f"/proc/{pid}/root", "/")
    except PermissionError:  # we are not root
        return os.path.basename(called) == name


def _is_roots(pid: int) -> bool:
    """Whether all its user ids (real, effective, saved, of files) are 0, in our user namespace. OSError."""
    with open(f"/proc/{pid}/status", "rb") as lines:
        for line in lines:
            if line.startswith(b"Uid:"):
                return line.split()[1:] == [b"0"] * 4
    return False


def running_of(name: str) -> list[Process]:
    return running(engines.engine(name).PROGRAM)


def is_named(known: Engine, path: str) -> bool:
    """Whether the command line of a process of the engine names the file at `path`."""
    given = [each for process in running(known.PROGRAM) for each in process.option(*known.CONFIG_OPTIONS)]
    return os.path.realpath(path) in map(os.path.realpath, given)


def files_of(name: str) -> list[str]:
    """The configuration files of the engine `name`, the usual ones and those of its processes."""
    known = engines.engine(name)
    given = [path for each in running_of(name) for path in each.option(*known.CONFIG_OPTIONS)]
    found: list[str] = []
    for path in (known.DEFAULT_PATH, *given):
        try:
            found += known.sources(textfile.read(path))
        except ConfigError:
            found.append(path)  # a broken one is the most interesting
    return list(dict.fromkeys(found))


def _started(pid: int) -> float:
    """By the present clock, even if it was set since; a file's time is compared with it."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - proc.seconds(proc.start_time(pid) or 0)
    return time.time() - age


def changed_since(process: Process, files: list[str]) -> list[str]:
    """Which of the files are younger than the process."""
    found = []
    for path in files:
        try:
            if os.stat(path).st_mtime > process.started + 0.1:
                found.append(path)
        except OSError:
            continue
    return found


def unusable(check: str, error: ConfigError, who: str) -> Finding:
    """That `who` has a configuration which cannot be used."""
    if isinstance(error.__cause__, PermissionError):
        return finding.unknown(check, error.what, "run it as root")
    return finding.problem(check, error.what, f"mend it: {who} does not start with it")


def entry(check: str, where: str, path: str, again: str) -> Finding | None:
    """The fault of the program `path` that an engine's configuration `where` names as our runtime."""
    if not os.path.isfile(path):
        return finding.problem(check, f"{where} names {path}, which is not there", again)
    if not os.access(path, os.X_OK):
        return finding.problem(check, f"{where} names {path}, which is not executable", f"chmod 755 {path}")
    if not os.path.exists(LAUNCHER) or not os.path.samefile(path, LAUNCHER):
        text = f"{where} names {path}, which belongs to another installation than this xpu ({LAUNCHER})"
        return finding.warning(check, text, f"if this one is meant: {again}")
    return None
