"""Start workers: processes that have all of shim and hook imported, and do their work for the C programs.

Starting three interpreters is most of the cost of a start with a slice. Launcher and hook
(native/launcher/agent.c, which has the messages) send their arguments to a worker of `xpu agent`, and the
worker calls the same functions, on the same ledger. Between two calls it keeps its connection to the ledger's
file, and nothing else. A worker takes one call at a time. It declines a call, before anything is done, unless
the result is certain to be the same as in the caller's own process; the caller then does the work itself.
After a failed call the worker ends, and another takes its place, so that no state of a failed start remains.

`xpu agent` starts one process (agent/start_workers.py), which imports everything and forks the workers.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import struct
import sys
import time

from xpu_runtime import hook, paths, shim, version
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger import database, events, waiting
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import library, proc, syscalls
from xpu_runtime.linux.child import signal_name
from xpu_runtime.linux.proc import Caller
from xpu_runtime.messages import line_of
from xpu_runtime.oci import argv as oci_argv
from xpu_runtime.oci import state as oci_state
from xpu_runtime.start import (  # noqa: F401 - imported once, before the fork, for all calls
    in_container,
    not_started,
    spec_mode,
)
from xpu_runtime.vendors import discovery

#: As in native/launcher/agent.c.
_PROTOCOL = "xpu-start-1"
_READY, _GO, _DECLINED = b"ready\0", b"go\0", b"declined\0"
#: Seconds that a caller may take to say what it wants, and to say go.
_CALLER_S, _GO_S = 1.0, 5.0
#: Seconds that a call may take, and between two looks at those that take so long. Together they are less than
#: the caller waits (agent.c: 300 from "go"): when it says that the start has failed, nothing goes on with it.
_ANSWER_S, _LOOK_S = 280.0, 10.0
#: Seconds for a look at the ledger before a lost start is written down.
_NOTE_S = 1.0
_UCRED_SIZE = struct.calcsize("3i")
_MOST_BYTES = 256 << 10
#: Most bytes of a call's stderr.
_MOST_TEXT = 16 << 10
#: Calls until a worker ends and another takes its place, so that leaks stay small.
_MOST_CALLS = 1000
#: asm-generic/socket.h; Python has no name for it.
_SO_SNDBUFFORCE = 32
#: Exit status of a worker after a new installation: its modules are older than those on the disk.
_STALE = 3


class _Call:
    """A worker's present call, in memory shared with the parent of the workers: a worker that was killed
    cannot tell any more which start it was doing."""

    #: The time of its beginning in seconds of the monotonic clock (0.0: there is no call); and the length of
    #: the text that follows, in bytes.
    _HEAD = struct.Struct("dI")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._HEAD.size + _MOST_BYTES)  # as much as is used

    def begin(self, kind: str, words: list[str], folder: str) -> None:
        said = b"\0".join(map(os.fsencode, (kind, folder, *words)))
        self._memory[self._HEAD.size : self._HEAD.size + len(said)] = said
        self._HEAD.pack_into(self._memory, 0, time.monotonic(), len(said))

    def end(self) -> None:
        self._HEAD.pack_into(self._memory, 0, 0.0, 0)

    def began(self) -> float:
        return float(self._HEAD.unpack_from(self._memory)[0])

    def container(self) -> tuple[str, str] | None:
        """The id and bundle of the container that it starts; None where it starts none."""
        _, length = self._HEAD.unpack_from(self._memory)
        said = self._memory[self._HEAD.size : self._HEAD.size + length]
        kind, folder, *words = map(os.fsdecode, said.split(b"\0"))
        if kind == "hook":
            state = oci_state.parse(os.fsencode(words[-1]))
            return (state.id, state.bundle) if words[0] in hook.STARTING else None
        invocation = oci_argv.read(words, folder)
        return (invocation.container_id, invocation.bundle) if invocation.creates else None


class _Worker:
    """A worker, for the process that has them."""

    def __init__(self, pid: int, call: _Call) -> None:
        self.pid = pid
        self.started = time.monotonic()
        self._call = call
        self.killed = False

    def began(self) -> float:
        """When its call began, in seconds of the monotonic clock; 0.0 while it has none."""
        return self._call.began()

    def note_lost(self, how: str) -> None:
        """Writes down that the container it starts did not start: it cannot any more, and the caller in C
        only tells the engine."""
        try:
            found = self._call.container() if self.began() else None
            waiting.allow(_NOTE_S)
            if found is not None and not self._is_told_of(found[0]):
                what = f"the process of xpu agent that gave it its slice {how}"
                not_started.note(*found, XpuError(what, "start the container again"))
        except Exception as error:  # the others go on
            _say(f"no event was written: {line_of(error)}")

    def _is_told_of(self, container_id: str) -> bool:
        """Whether its call had written that event already."""
        since = time.time() - (time.monotonic() - self.began())
        with Ledger() as ledger:
            return any(
                event.container_id == container_id and event.kind in (events.REFUSED, events.FAILED)
                for event in ledger.history(since=since)
            )

    def hangs(self) -> bool:
        began = self.began()
        return bool(began) and time.monotonic() - began > _ANSWER_S


def main(words: list[str]) -> int:
    """`words`: the descriptors of the listening socket and of the pipe to the agent; how many workers."""
    listening = socket.socket(fileno=int(words[0]))
    agent, count = int(words[1]), int(words[2])
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # a standard stream was closed
        pass
    os.close(fd)
    if nice := os.nice(0):
        os.nice(-nice)  # the agent's rounds are urgent; the programs that it starts are not
    ended, wake = socket.socketpair()
    for end in (ended, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        return _keep(listening, agent, count, ended)
    finally:
        # The sockets are closed here, and workers that end later are still told of.
        signal.set_wakeup_fd(-1)


def _keep(listening: socket.socket, agent: int, count: int, ended: socket.socket) -> int:
    """Keeps this many workers, until the agent and they have ended, or the runtime has been installed
    anew."""
    here = Installation()
    workers: list[_Worker] = []
    awaited = [ended.fileno(), agent]
    while True:
        # A worker that hangs where no signal reaches it is replaced, once: its successor may hang as well.
        while agent in awaited and sum(not w.killed for w in workers) < count and len(workers) < 2 * count:
            workers.append(_fork(listening, agent, here))
        if agent not in awaited and all(each.killed for each in workers):
            return 0
        ready, _, _ = select.select(awaited, [], [], _LOOK_S)
        if agent in ready:
            # They end by themselves, those at a call after it: how that ends is still to be seen.
            listening.close()
            awaited.remove(agent)
        if ended.fileno() in ready:
            ended.recv(64)
        for worker in list(workers):
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid:
                workers.remove(worker)
                code = os.waitstatus_to_exitcode(status)
                if code == _STALE:
                    return 0
                if code < 0 and not worker.killed:
                    how = f"was ended by {signal_name(-code)}"
                    _say(f"start worker {pid} {how}{_its_call(worker)}")
                    worker.note_lost(how)
                if time.monotonic() - worker.started < 1:
                    time.sleep(0.05)
            elif worker.hangs() and not worker.killed:
                worker.killed = True
                os.kill(worker.pid, signal.SIGKILL)
                _say(f"start worker {worker.pid} hangs and is killed{_its_call(worker)}")
                worker.note_lost(f"did not end in {_ANSWER_S:.0f} s and was killed: does the driver answer?")


def _its_call(worker: _Worker) -> str:
    return " in the middle of a call, which has failed" if worker.began() else ""


def _say(text: str) -> None:
    """To the agent's log: the container's engine has an error, and no event says why."""
    try:
        os.write(2, f"xpu: {text}\n".encode())
    except OSError:
        pass


def _fork(listening: socket.socket, agent: int, here: Installation) -> _Worker:
    call = _Call()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os._exit(_work(listening, agent, here, call))
    return _Worker(pid, call)


class Installation:
    """The code that this process has imported, and its namespaces; a call is compared with both."""

    def __init__(self) -> None:
        self.lib = _identity(paths.LIB)
        self._files = self._version()
        self.environment = _variables(os.environ.get("XPU_CONFIG", ""), os.environ.get("XPU_RUN_DIR", ""))
        self._view = proc.view()
        self._capabilities = syscalls.effective_capabilities(0)

    def is_stale(self) -> bool:
        """Whether the runtime was installed anew, or removed."""
        return self._files != self._version()

    def _version(self) -> tuple[int, ...]:
        try:
            there = os.stat(version.__file__)
        except OSError:
            return ()
        return there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns

    def is_of(self, pid: int) -> bool:
        """Whether process `pid` sees and may do what this one does."""
        try:
            may = syscalls.effective_capabilities(pid)
            return proc.view(pid) == self._view and may == self._capabilities
        except OSError:
            return False  # it has ended

    def is_at_home(self) -> bool:
        """Whether this process is still in the namespaces that it was started in."""
        return proc.view() == self._view


def _identity(folder: str) -> tuple[int, int]:
    """Device and inode of a folder; (0, 0) if it is missing."""
    try:
        there = os.stat(folder)
    except OSError:
        return 0, 0
    return there.st_dev, there.st_ino


def _variables(config: str, run_dir: str) -> dict[str, str]:
    given = {"XPU_CONFIG": config, "XPU_RUN_DIR": run_dir}
    return {name: value for name, value in given.items() if value}


def _work(listening: socket.socket, agent: int, here: Installation, call: _Call) -> int:
    """A worker's life: until the agent is gone, or a call has failed. Returns its exit status."""
    database.keep()
    said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    poll = select.epoll()
    poll.register(listening.fileno(), select.EPOLLIN | select.EPOLLEXCLUSIVE)  # one call wakes one worker
    poll.register(agent, select.EPOLLIN)
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
            if library.has_changed():  # another driver has been installed
                _send(connection, _DECLINED)
                return 1
            try:
                asked = _asked(connection, here)
            except OSError:
                continue  # the caller is gone, or never sent its request
            if asked is None:
                _send(connection, _DECLINED)
                continue
            kind, words, caller = asked
            call.begin(kind, words, caller.working_folder)
            if not _serve(connection, kind, words, caller, here, said, call):
                return 1
    return 0


def _send(connection: socket.socket, message: bytes) -> None:
    try:
        connection.send(message)
    except OSError:
        pass


def _asked(connection: socket.socket, here: Installation) -> tuple[str, list[str], Caller] | None:
    """The call, after its caller has confirmed it; None if another process must do it. OSError: the caller is
    gone."""
    connection.settimeout(_CALLER_S)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    words = [os.fsdecode(word) for word in connection.recv(_MOST_BYTES).split(b"\0")[:-1]]
    pid, uid, _ = _ucred(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED_SIZE))
    started = proc.start_time(pid)
    if len(words) < 7 or words[0] != _PROTOCOL or words[1] not in ("shim", "hook") or uid != 0:
        return None
    connection.send(_READY)  # it says go while it is looked at
    caller = _caller(words, pid, started, here)
    connection.settimeout(_GO_S)
    message, ancillary, _, _ = connection.recvmsg(len(_GO), socket.CMSG_SPACE(_UCRED_SIZE))
    # The credentials are of the process that confirms, not of the one that connected: that may have ended,
    # and its id be another's. The process was there before the check and is there after it, so it is the same
    # one.
    speakers = [_ucred(data)[0] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
    is_it = message == _GO and speakers == [pid] and proc.start_time(pid) == started
    return (words[1], words[6:], caller) if is_it and caller is not None else None


def _ucred(data: bytes) -> tuple[int, int, int]:
    pid, uid, gid = struct.unpack("3i", data[:_UCRED_SIZE])
    return pid, uid, gid


def _serve(
    connection: socket.socket,
    kind: str,
    words: list[str],
    caller: Caller,
    here: Installation,
    said: tuple[int, int],
    call: _Call,
) -> bool:
    """Does the call, and answers; whether this worker may take another."""
    stderr = os.dup(2)
    os.dup2(said[1], 2)
    try:
        done = _call(kind, words, caller)
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    try:
        text = os.read(said[0], _MOST_TEXT)
    except BlockingIOError:
        text = b""
    if done is None:
        answer = _DECLINED
    else:
        texts = [b"done", str(done[0]).encode(), text.replace(b"\0", b"?"), *map(os.fsencode, done[1])]
        answer = b"".join(each + b"\0" for each in texts)
    try:
        connection.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 2 * len(answer))
    except OSError:
        pass  # without CAP_NET_ADMIN; a request that has no room there is an error for the caller
    call.end()  # before the caller knows that it has started: no event is to say that it has not
    _send(connection, answer)
    # After it has entered other namespaces it must not answer anyone again; and drivers' libraries stay
    # loaded.
    return done is not None and done[0] == 0 and here.is_at_home() and not discovery.has_asked()


def _caller(words: list[str], pid: int, started: int | None, here: Installation) -> Caller | None:
    """The process that asks, and started then; None where its call is not ours to do."""
    lib, variables, folder = words[2], _variables(words[3], words[4]), words[5]
    if _identity(lib) != here.lib or variables != here.environment or not here.is_of(pid):
        return None
    if not all(map(os.path.isabs, variables.values())):
        return None
    # A path of a process's own files would lead to our own here.
    if any(path in word for word in (folder, *words[6:]) for path in ("/proc/", "/dev/fd", "/dev/std")):
        return None
    return None if started is None else Caller(pid, started, variables, folder, time.monotonic())


def _call(kind: str, words: list[str], caller: Caller) -> tuple[int, list[str]] | None:
    """Does it. Returns the exit status, and the program to become with its arguments, if any; None where
    nothing was done, and the caller may be able to."""
    waiting.allow(waiting.START_S)
    if kind == "hook":
        return hook.call(words[:-1], lambda: os.fsencode(words[-1]), caller), []
    done = shim.call(words, caller)
    if done is None:
        return 1, []
    return None if done.handed_over else (0, [done.program, *done.arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
