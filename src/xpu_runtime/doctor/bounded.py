"""Calls that each run in a process of their own, with an end.

A call into a stuck driver, a dead network file system or an engine that does not answer can hang where no
signal reaches it, and a damaged library can end the process. Then only that child is lost: what it had
found before has already been sent. What the calls do is not known here.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from xpu_runtime import messages
from xpu_runtime.errors import XpuError
from xpu_runtime.linux import child
from xpu_runtime.value import Value

_LENGTH = struct.Struct("=I")
_MOST_BYTES = 64 << 20
#: Seconds for the end of a child that was killed; one that hangs in the kernel ends when that lets it.
_END_S = 1.0


class Answer(Value):
    """What a call has yielded: `values` so far, and why there are no more ("": that is all)."""

    values: tuple[Any, ...]
    #: One line for people, and what to do.
    error: str = ""
    todo: str = ""
    #: It was ended at its time limit.
    hung: bool = False
    #: Its process has died; `error` says of what.
    died: bool = False


class _Child:
    """A call in a child process, whose values come through a pipe, each with its length before it."""

    def __init__(self, call: Callable[[], Iterable[Any]]) -> None:
        self.pipe, theirs = os.pipe()
        parent = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self.pipe)
            os.close(theirs)
            raise
        if self.pid == 0:
            _serve(call, theirs, parent)
        os.close(theirs)
        self.open = True
        self._received = bytearray()

    def receive(self) -> None:
        piece = os.read(self.pipe, 1 << 16)
        self._received += piece
        self.open = bool(piece) and len(self._received) < _MOST_BYTES

    def answer(self, seconds: float, status: int) -> Answer:
        """What it has said when it was given up, after `seconds`; `status`: how it ended (wait(2))."""
        values = list(self._values())
        if values and isinstance(values[-1], Answer):
            return values[-1].replace(values=tuple(values[:-1]))
        if self.open:
            return Answer(tuple(values), f"it did not end within {seconds:.0f} s", hung=True)
        ended_by = f" ({child.signal_name(os.WTERMSIG(status))})" if os.WIFSIGNALED(status) else ""
        return Answer(tuple(values), f"its process died{ended_by}", died=True)

    def _values(self) -> Iterator[Any]:
        at = 0
        while at + _LENGTH.size <= len(self._received):
            (length,) = _LENGTH.unpack_from(self._received, at)
            at += _LENGTH.size
            if at + length > len(self._received):
                return  # cut short
            yield pickle.loads(self._received[at : at + length])  # noqa: S301 - from our own child
            at += length


def together(calls: Sequence[Callable[[], Iterable[Any]]], seconds: float) -> list[Answer]:
    """Carries out all the calls at once; an answer each, in their order, after `seconds` and one more
    at the latest."""
    children: list[_Child] = []
    try:
        for call in calls:
            children.append(_Child(call))  # kept one by one: the next may fail
        until = time.monotonic() + seconds
        while running := {each.pipe: each for each in children if each.open}:
            ready, _, _ = select.select(list(running), [], [], max(0.0, until - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                running[pipe].receive()
    finally:  # Ctrl-C among the reasons
        statuses = _end(children)
    return [each.answer(seconds, status) for each, status in zip(children, statuses)]


def _end(children: Sequence[_Child]) -> list[int]:
    """Ends them, with the programs that they have started; how each has ended."""
    for each in children:
        os.close(each.pipe)
        with contextlib.suppress(OSError):  # it has not begun, or has ended
            os.killpg(each.pid, signal.SIGKILL)
    return child.end_all([each.pid for each in children], _END_S)


def one(call: Callable[[], Any], seconds: float) -> Answer:
    """As `together`, for one call that returns one value."""
    (answer,) = together([lambda: iter([call()])], seconds)
    return answer


def _serve(call: Callable[[], Iterable[Any]], pipe: int, parent: int) -> None:
    """The child's whole life; never returns."""
    try:
        # Apart from the terminal's Ctrl-C, so that `together` ends it, with the programs that it has started.
        os.setpgid(0, 0)
        child.end_with(parent)
        child.silence()
        answer = Answer(())
        try:
            for value in call():
                _send(pipe, value)
        except XpuError as error:
            answer = Answer((), error.what, error.todo)
        except Exception as error:  # whatever it is, it is one check's
            answer = Answer((), messages.line_of(error))
        _send(pipe, answer)
    finally:
        os._exit(0)


def _send(pipe: int, value: Any) -> None:
    data = pickle.dumps(value)
    left = memoryview(_LENGTH.pack(len(data)) + data)
    while left:
        left = left[os.write(pipe, left) :]
