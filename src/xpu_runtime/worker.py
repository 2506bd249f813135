"""Start workers: processes that have all of shim and hook imported, and do their work for the C programs.

Most of what a start with a slice costs is three interpreters that start. Launcher and hook
(native/launcher/agent.c, which has the messages) give what they were called with to a worker of `xpu agent`,
and the worker calls the same functions, on the same ledger; it keeps nothing between two calls. A worker
takes one call at a time. It declines, before anything is done, whatever is not certain to come out as it
would in the caller's own process; the caller then does it itself. After a call that failed it ends, and
another takes its place: whatever a failed start has left in it is gone.

`xpu agent` starts one process (agent/start_workers.py), which imports everything and forks the workers.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import time

from xpu_runtime import hook, paths, shim, version
from xpu_runtime.ledger import waiting
from xpu_runtime.linux import proc
from xpu_runtime.linux.proc import Caller
from xpu_runtime.start import (  # noqa: F401 - imported once, before the fork, for all calls
    hook_mode,
    not_started,
    spec_mode,
    spec_mode_hook,
)

#: As in native/launcher/agent.c.
_PROTOCOL = "xpu-start-1"
_READY, _GO, _DECLINED = b"ready\0", b"go\0", b"declined\0"
#: Seconds that a caller may take to say what it wants, and to say go.
_CALLER_S = 1.0
_MOST_BYTES = 256 << 10
#: Of what a call says on stderr.
_MOST_TEXT = 16 << 10
#: Calls until a worker ends, and another takes its place: what leaks does not grow for ever.
_MOST_CALLS = 1000
#: asm-generic/socket.h; Python has no name for it.
_SO_SNDBUFFORCE = 32
#: With other namespaces a path or a process id means something else there.
_NAMESPACES = ("mnt", "pid", "user", "cgroup")
#: Exit status of a worker when we have been installed anew: its modules are not what lies on the disk.
_STALE = 3


def main(words: list[str]) -> int:
    """`words`: the descriptors of the listening socket and of the pipe to the agent; how many workers."""
    listening = socket.socket(fileno=int(words[0]))
    agent, count = int(words[1]), int(words[2])
    if nice := os.nice(0):
        os.nice(-nice)  # the agent is in a hurry with its rounds; what it starts is not
    for number in (signal.SIGTERM, signal.SIGINT):
        # systemd stops the whole service; a call that is under way is finished. No program that a start runs
        # inherits a handler, as it would inherit that the signal is ignored.
        signal.signal(number, lambda *_: None)
    here = Installation()
    workers: dict[int, float] = {}
    while True:
        while len(workers) < count:
            pid = os.fork()
            if pid == 0:
                os._exit(_work(listening, agent, here))
            workers[pid] = time.monotonic()
        ended, status = os.wait()
        started = workers.pop(ended, 0.0)
        if _has_hung_up(agent) or os.waitstatus_to_exitcode(status) == _STALE:
            return 0  # the others end by themselves
        if time.monotonic() - started < 1:
            time.sleep(0.05)


def _has_hung_up(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


class Installation:
    """What this process has imported, and where it runs: what a call is compared with."""

    def __init__(self) -> None:
        self.lib = os.path.realpath(paths.LIB)
        self._files = self._identity()
        self.environment = _variables(os.environ.get("XPU_CONFIG", ""), os.environ.get("XPU_RUN_DIR", ""))
        self._namespaces = _namespaces("self")
        self._capabilities = _capabilities("self")

    def is_stale(self) -> bool:
        """Whether we have been installed anew, or removed."""
        return self._files != self._identity()

    def _identity(self) -> tuple[int, ...]:
        try:
            there = os.stat(version.__file__)
        except OSError:
            return ()
        return there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns

    def is_of(self, pid: int) -> bool:
        """Whether process `pid` sees and may do what this one does."""
        try:
            return _namespaces(pid) == self._namespaces and _capabilities(pid) == self._capabilities
        except OSError:
            return False  # it has ended

    def is_at_home(self) -> bool:
        """Whether this process is still in the namespaces that it was started in."""
        return _namespaces("self") == self._namespaces


def _namespaces(pid: int | str) -> list[tuple[int, int]]:
    found = [os.stat(f"/proc/{pid}/ns/{name}") for name in _NAMESPACES]
    found.append(os.stat(f"/proc/{pid}/root"))
    return [(each.st_dev, each.st_ino) for each in found]


def _capabilities(pid: int | str) -> int:
    """The effective ones (proc(5), CapEff)."""
    with open(f"/proc/{pid}/status", "rb") as lines:
        for line in lines:
            if line.startswith(b"CapEff:"):
                return int(line.split()[1], 16)
    return 0


def _variables(config: str, run_dir: str) -> dict[str, str]:
    given = {"XPU_CONFIG": config, "XPU_RUN_DIR": run_dir}
    return {name: value for name, value in given.items() if value}


def _work(listening: socket.socket, agent: int, here: Installation) -> int:
    """A worker's life: until the agent is gone, or a call has failed. Returns its exit status."""
    said = os.memfd_create("said", os.MFD_CLOEXEC)
    poll = select.poll()
    for fd in (listening.fileno(), agent):
        poll.register(fd, select.POLLIN)
    for _ in range(_MOST_CALLS):
        connection = None
        while connection is None:
            if agent in (fd for fd, _ in poll.poll()):
                return 0
            try:
                connection, _ = listening.accept()
            except BlockingIOError:
                pass  # another worker's
        with connection:
            if here.is_stale():
                _send(connection, _DECLINED)
                return _STALE
            try:
                if not _serve(connection, here, said):
                    return 1
            except OSError:
                continue  # the caller is gone, or has never said what it wants
    return 0


def _send(connection: socket.socket, message: bytes) -> None:
    try:
        connection.send(message)
    except OSError:
        pass


def _serve(connection: socket.socket, here: Installation, said: int) -> bool:
    """One call; whether this worker may take another. OSError where the caller is gone."""
    connection.settimeout(_CALLER_S)
    words = [os.fsdecode(word) for word in connection.recv(_MOST_BYTES).split(b"\0")[:-1]]
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    caller = _caller(words, pid, uid, here)
    if caller is None:
        connection.send(_DECLINED)
        return True
    connection.send(_READY)
    if connection.recv(len(_GO)) != _GO:
        return True
    os.ftruncate(said, 0)
    os.lseek(said, 0, os.SEEK_SET)
    stderr = os.dup(2)
    os.dup2(said, 2)
    try:
        status, program = _call(words[1], words[6:], caller)
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    if not here.is_at_home():
        os._exit(1)  # in a container's namespaces it must not answer anybody again
    texts = [b"done", str(status).encode(), os.pread(said, _MOST_TEXT, 0).replace(b"\0", b"?")]
    answer = b"".join(text + b"\0" for text in (*texts, *map(os.fsencode, program)))
    connection.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 2 * len(answer))
    connection.send(answer)
    return status == 0


def _caller(words: list[str], pid: int, uid: int, here: Installation) -> Caller | None:
    """The process that asks; None where its call is not ours to do."""
    if len(words) < 7 or words[0] != _PROTOCOL or words[1] not in ("shim", "hook") or uid != 0:
        return None
    lib, variables, folder = words[2], _variables(words[3], words[4]), words[5]
    if os.path.realpath(lib) != here.lib or variables != here.environment or not here.is_of(pid):
        return None
    started = proc.start_time(pid)
    return None if started is None else Caller(pid, started, variables, folder)


def _call(kind: str, words: list[str], caller: Caller) -> tuple[int, list[str]]:
    """Does it. Returns the exit status, and the program to become with its arguments, if any."""
    waiting.allow(waiting.START_S)
    if kind == "hook":
        return hook.call(words[:-1], lambda: os.fsencode(words[-1]), caller), []
    done = shim.call(words, caller)
    return (1, []) if done is None else (0, [done.program, *done.arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
