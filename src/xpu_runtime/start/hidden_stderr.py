"""The reason of a hook whose stderr nobody reads: crun's hooks have /dev/null there, and crun says their exit
status alone.

Engines show people what the low-level runtime has logged, its last line or the only one. crun opens its log
before it calls a hook, and writes its own line afterwards: so a copy with our line takes the log's place, and
crun's line goes to the old file. Without a log the reason goes to crun's own stderr.
"""

from __future__ import annotations

import os
import stat

from xpu_runtime.linux import files, proc
from xpu_runtime.messages import PREFIX, Log

_MOST_BYTES = 1 << 20


def tell(pid: int, log: Log, text: str) -> None:
    """Says why the hook with this process id fails, if its stderr is /dev/null. `log` has the line if it is
    one. No error where that cannot be done."""
    try:
        if _is_null(os.stat(f"/proc/{pid}/fd/2")):
            _tell(proc.parent(pid), log, text)
    except OSError:
        pass  # the event of the refusal has it


def _tell(runtime: int, log: Log, text: str) -> None:
    if not log.path:
        log = _log_of(runtime)
        log.write("error", text)
    if log.path:
        state = os.stat(log.path)
        if stat.S_ISREG(state.st_mode):
            files.write_atomic(log.path, files.read(log.path, _MOST_BYTES), stat.S_IMODE(state.st_mode))
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    stderr = os.open(f"/proc/{runtime}/fd/2", flags)
    try:
        os.write(stderr, f"{PREFIX}{text}\n".encode("utf-8", "replace"))
    finally:
        os.close(stderr)


def _is_null(state: os.stat_result) -> bool:
    return stat.S_ISCHR(state.st_mode) and state.st_rdev == os.stat(os.devnull).st_rdev


def _log_of(pid: int) -> Log:
    """The log of a runtime: the file that its command line names and that it has open to write. OSError."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = os.fsdecode(file.read(_MOST_BYTES)).split("\0")
    values = [*words, *(word.partition("=")[2] for word in words)]
    opened: set[str] = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        link = f"/proc/{pid}/fd/{name}"
        try:
            if os.lstat(link).st_mode & stat.S_IWUSR:  # of the open file: proc_pid_fd(5)
                opened.add(os.readlink(link))
        except OSError:
            continue  # closed meanwhile
    named = [each for each in values if each in opened and os.path.isabs(each) and os.path.isfile(each)]
    return Log(named[0] if named else "", "json" if "json" in values else "text")
