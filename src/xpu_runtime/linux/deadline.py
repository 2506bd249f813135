"""Calls that may never return, each in a process of its own, with a deadline.

A call into a stuck driver, a dead network file system or an engine that does not answer can hang where no
signal reaches it, and a damaged library can end its process. Then only that process is lost, and its answers
so far are kept. All callers share one policy:

- A question has a deadline. A process that misses it is killed with the programs that it has started.
- While a process hangs in the kernel, where it cannot be killed, no other is started in its place; an asker
  with `Backoff` leaves it alone for longer and longer besides.
- It ends with its asker, however that ends; it has none of the asker's descriptors, as locks and pages would
  stay open for as long as it hangs. It does not hear the Ctrl-C of the asker's terminal.
- Values are pickled, with their question's number: the answer to an interrupted question is dropped.

Each asker has its seconds beside its question: doctor/ (machine, examination, report, areas/docker), observe/
(driver_questions, samples, names), limits/separate_process (`xpu set`), agent/ (collector, questions) and
kubernetes/device_plugin/driver. An MPS daemon is a program: limits/mps_daemon asks it. Independent of the
questions.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
from functools import partial

from xpu_runtime.errors import XpuError
from xpu_runtime.linux import child
from xpu_runtime.messages import line_of
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    #: Called in the process, once. The returned function is called with each question, and yields values.
    Opener = Callable[[], Callable[[Any], Iterable[Any]]]

_HEAD = struct.Struct("=II")  # the number of the question, and the length of the rest
_MOST_BYTES = 64 << 20
#: Seconds for the end of a process that was killed: one that takes longer hangs.
END_S = 1.0
#: Seconds that a driver is left alone after it hung: twice as many each time, up to the last.
AGAIN_S, LONGEST_AGAIN_S = 60.0, 600.0

_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import main; main({parent})"


class Answer(Value):
    """The `values` so far, and why there are no more ("": they are complete)."""

    values: tuple[Any, ...]
    #: The problem, and its remedy.
    error: str = ""
    todo: str = ""
    #: There was no answer in time.
    hung: bool = False
    #: The process has died, or could not be started; `error` has the cause.
    died: bool = False

    @property
    def why(self) -> str:
        """The problem and its remedy, in one line."""
        return str(XpuError(self.error, self.todo))


class Backoff:
    """How long a driver that failed is left alone: meanwhile its last answer counts."""

    def __init__(self) -> None:
        self._pause = 0.0
        self._until = 0.0
        self._last = Answer(())

    def last(self) -> Answer | None:
        """The answer that counts instead of asking; None: it can be asked."""
        return self._last if time.monotonic() < self._until else None

    def take(self, answer: Answer) -> None:
        """Takes note of a failure; only one that hung is left alone longer than the time before."""
        self._pause = min(2 * self._pause, LONGEST_AGAIN_S) if answer.hung and self._pause else AGAIN_S
        self._until, self._last = time.monotonic() + self._pause, answer

    def reset(self) -> None:
        self._pause = 0.0


class HelperProcess:
    """A process that is asked again and again, started when it is asked first, and anew where it has ended.

    The thread that starts it must live as long as it: the kernel kills it when that thread ends (prctl(2)).
    """

    def __init__(self, opener: Opener, *, program: bool = False, waits: bool = True) -> None:
        """`program`: starts a new program, because an asker with threads must not fork: any lock could be
        taken. `opener` is then found by its name. `waits`: whether to wait, for `END_S` at most, for the end
        of a killed process; without the wait nothing can be asked until it has ended."""
        self._opener = opener
        self._program = program
        self._waits = waits
        #: The process id; the process may have been killed and not ended. 0: there is none.
        self.pid = 0
        self._killed_at = 0.0
        self._socket: socket.socket | None = None
        self._number = 0
        self._seconds = 0.0
        #: When an answer is given up (time.monotonic); None: nothing was asked.
        self.until: float | None = None
        self._failure: Answer | None = None
        self._received = bytearray()
        self._values: list[Any] = []
        #: Bytes of the answer so far.
        self._size = 0

    def fileno(self) -> int | None:
        """Readable when there is something to `answer`; None: there is no process."""
        return None if self._socket is None else self._socket.fileno()

    def is_overdue(self) -> bool:
        """Whether there is an answer (the process's failure) that `fileno` does not show."""
        return self._failure is not None or (self.until is not None and time.monotonic() >= self.until)

    def ask(self, question: Any, seconds: float) -> None:
        """Asks, unless an answer is due already; `answer` has it within `seconds`, or why there is none."""
        if self.until is not None:
            return
        self._number += 1
        self._seconds, self.until = seconds, time.monotonic() + seconds
        self._values, self._size = [], 0
        for _ in range(2):  # the one there is may have just ended
            try:
                if self._socket is None:
                    self._reap()
                    if self.pid and time.monotonic() < self._killed_at + END_S:
                        self.until = None
                        return
                    if self.pid:
                        said = f"process {self.pid}, which was asked before, hangs and cannot be ended"
                        self._failure = Answer((), said, hung=True)
                        return
                    self._start()
                assert self._socket is not None
                _send(self._socket, self._number, question)
            except OSError as error:
                self.end()
                self._failure = Answer((), f"its process cannot be started ({error.strerror})", died=True)
            else:
                self._failure = None
                return

    def answer(self) -> Answer | None:
        """The answer; None: it is not there yet, or nothing was asked. Never waits for it."""
        if self._failure is not None:
            return self._told(self._failure)
        if self._socket is None:
            return None
        has_ended = self._receive(self._socket)
        for number, value in self._messages():
            if number != self._number or self.until is None:
                continue
            if isinstance(value, Answer):
                return self._told(value)
            self._values.append(value)
        if has_ended:
            status = self.end()
            ended_by = f" ({child.signal_name(os.WTERMSIG(status))})" if os.WIFSIGNALED(status) else ""
            return self._told(Answer((), f"its process died{ended_by}", died=True))
        if self._size > _MOST_BYTES:
            self.end()
            return self._told(Answer((), f"it answered more than {_MOST_BYTES >> 20} MiB"))
        if self.until is not None and time.monotonic() >= self.until:
            self.kill()
            return self._told(Answer((), f"it did not end within {self._seconds:.0f} s", hung=True))
        return None

    def wait(self, seconds: float | None = None) -> Answer | None:
        """As `answer`, once it is there, or after `seconds` (None: by the question's deadline). A question
        that is interrupted here is forgotten."""
        until = None if seconds is None else time.monotonic() + seconds
        try:
            while (answer := self.answer()) is None and self._socket is not None and self.until is not None:
                last = self.until if until is None else min(until, self.until)
                if not select.select([self._socket], [], [], max(0.0, last - time.monotonic()))[0]:
                    return self.answer()
        except BaseException:
            self.until = None
            raise
        return answer

    def close(self) -> None:
        """Ends the process; its question is forgotten."""
        self.until = self._failure = None
        self.end()

    def kill(self) -> None:
        """Kills it, with the programs that it has started; one that hangs in the kernel ends when that lets
        it."""
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        self._received.clear()
        self._killed_at = time.monotonic()
        for kill in (os.killpg, os.kill):  # it may not have its own group yet
            try:
                kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def end(self) -> int:
        """Kills it, and waits for its end; returns its status (wait(2)), 0 if not known."""
        self.kill()
        return self._reap()

    def _reap(self) -> int:
        until = self._killed_at + (END_S if self._waits else 0.0)
        while self.pid:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                ended, status = self.pid, 0
            if ended:
                self.pid = 0
                return status
            if time.monotonic() >= until:
                break
            time.sleep(0.005)
        return 0

    def _told(self, answer: Answer) -> Answer:
        values, self._values = tuple(self._values), []
        self.until = self._failure = None
        return answer.replace(values=values)

    def _receive(self, ours: socket.socket) -> bool:
        """Reads the answers so far; returns whether the process has ended."""
        while self._size <= _MOST_BYTES:
            try:
                piece = ours.recv(1 << 20)
            except BlockingIOError:
                return False
            except OSError:
                return True
            if not piece:
                return True
            self._received += piece
            self._size += len(piece)
        return False

    def _messages(self) -> Iterator[tuple[int, Any]]:
        while len(self._received) >= _HEAD.size:
            number, length = _HEAD.unpack_from(self._received)
            end = _HEAD.size + length
            if len(self._received) < end:
                return
            content = bytes(self._received[_HEAD.size : end])
            del self._received[:end]
            yield number, pickle.loads(content)  # noqa: S301 - from our own process

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        with theirs:
            try:
                self.pid = _spawned(theirs, parent) if self._program else os.fork()
            except OSError:
                ours.close()
                raise
            if self.pid == 0:
                _serve(self._opener, theirs, parent)
        ours.setblocking(False)
        self._socket = ours
        if self._program:
            _send(ours, 0, self._opener)


def together(calls: Sequence[Callable[[], Iterable[Any]]], seconds: float) -> list[Answer]:
    """Makes all the calls at once; an answer each, in their order, after `seconds` and `END_S` at most.
    Nothing that they print is seen."""
    processes: list[HelperProcess] = []
    answers: dict[HelperProcess, Answer] = {}
    try:
        for call in calls:
            processes.append(HelperProcess(partial(_quiet, call)))
            processes[-1].ask(None, seconds)
        waiting = processes
        while waiting := [each for each in waiting if not _is_answered(each, answers)]:
            left = max(0.0, min(each.until or 0.0 for each in waiting) - time.monotonic())
            select.select([fd for each in waiting if (fd := each.fileno()) is not None], [], [], left)
    finally:  # Ctrl-C among the reasons
        for each in processes:
            each.kill()
        for each in processes:
            each.end()
    return [answers[each] for each in processes]


def _is_answered(process: HelperProcess, answers: dict[HelperProcess, Answer]) -> bool:
    answer = process.answer()
    if answer is not None:
        answers[process] = answer
    return answer is not None


def _quiet(call: Callable[[], Iterable[Any]]) -> Callable[[Any], Iterable[Any]]:
    child.silence()
    return lambda _: call()


def one(call: Callable[[], Any], seconds: float) -> Answer:
    """As `together`, for one call that returns one value."""
    (answer,) = together([lambda: iter([call()])], seconds)
    return answer


def main(parent: int) -> None:
    """The life of a process that is a program, begun by process `parent`: its socket is stdin."""
    theirs = socket.socket(fileno=os.dup(0))
    child.silence()
    _serve(None, theirs, parent)


def _spawned(theirs: socket.socket, parent: int) -> int:
    """A new program's process. posix_spawn(3), because code after a fork could need a lock of another
    thread."""
    program = _PROGRAM.format(path=sys.path, module=__name__, parent=parent)
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-IS", "-c", program],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
        setpgroup=0,
    )


def _serve(opener: Opener | None, requests: socket.socket, parent: int) -> None:
    """The process's whole life; never returns. Without `opener`, that comes first."""
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        child.end_with(parent)
        child.keep_only(requests.fileno())
        values_of: Callable[[Any], Iterable[Any]] | None = None
        reader = requests.makefile("rb")
        while len(head := reader.read(_HEAD.size)) == _HEAD.size:
            number, length = _HEAD.unpack(head)
            question = pickle.loads(reader.read(length))  # noqa: S301 - from the process that started this one
            if opener is None:
                opener = question
                continue
            answer = Answer(())
            try:
                if values_of is None:
                    values_of = opener()
                for value in values_of(question):
                    _send(requests, number, value)
            except XpuError as error:
                answer = Answer((), error.what, error.todo)
            except Exception as error:  # a driver's binding can raise anything
                answer = Answer((), line_of(error))
            _send(requests, number, answer)
    except OSError:
        pass  # the asker is gone
    finally:
        os._exit(0)


def _send(to: socket.socket, number: int, value: Any) -> None:
    data = pickle.dumps(value)
    to.sendall(_HEAD.pack(number, len(data)) + data)
