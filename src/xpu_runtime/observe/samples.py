"""The driver's samples of each process's use of each device, asked for in a process of its own.

The agent asks, goes on with its rounds, and takes the answer when it is there: a driver that hangs stops
nothing (linux/deadline.py). The vendors ask their drivers.
"""

from __future__ import annotations

from xpu_runtime.linux.deadline import Answer, Backoff, HelperProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Busy shares (0 to 1) by device UUID and process. Devices without a report are left out.
Utilization = dict[str, dict[int, float]]

#: Seconds until a process that does not answer is given up: cards without persistence mode start slowly.
ANSWER_S = 20.0


class Samples:
    """Asks for them; never blocks. `log` takes failures, once each."""

    def __init__(self, opener: Callable[[], Callable[[], Utilization]], log: Callable[[str], None]) -> None:
        """`opener` is called in the process, and may take long; the returned function is called for each
        question."""
        self._process = HelperProcess(lambda: _answers(opener), waits=False)
        self._backoff = Backoff()
        self._log = log
        self._told = ""

    def fileno(self) -> int | None:
        """Readable when there is an answer; None: there is no process."""
        return self._process.fileno()

    def ask(self) -> None:
        """Asks for samples, unless an answer is still due; `answer` will have them."""
        if self._process.until is None and self._backoff.last() is None:
            self._process.ask(None, ANSWER_S)
        if self._process.is_overdue():
            self.answer()

    def answer(self) -> Utilization | None:
        """The answer; None if there is none yet, or none at all."""
        return self._taken(self._process.answer())

    def wait(self, seconds: float) -> Utilization | None:
        """Asks, unless an answer is still due, and waits so long for the answer; as `answer`."""
        self.ask()
        return self._taken(self._process.wait(seconds))

    def close(self) -> None:
        self._process.close()

    def _taken(self, answer: Answer | None) -> Utilization | None:
        if answer is None:
            return None
        if not answer.error:
            self._backoff.reset()
            if self._told:
                self._told = ""
                self._log("the driver reports the use of each process again")
            return answer.values[0]  # type: ignore[no-any-return]
        self._process.close()
        self._backoff.take(answer)
        why = f"asking the driver failed: {answer.why}" if answer.died else answer.why
        if answer.hung:
            why = "the driver does not answer (see whether its own tools do)"
        if why != self._told:
            self._told = why
            self._log(f"the driver's samples do not check what containers report: {why}")
        return None


class InProcess:
    """The same, asked for in the calling process, for one that is given up itself where the driver hangs."""

    def __init__(self, opener: Callable[[], Callable[[], Utilization]]) -> None:
        self._opener = opener
        self._source: Callable[[], Utilization] | None = None

    def ask(self) -> None:
        """Nothing is asked before somebody wants the answer."""

    def answer(self) -> Utilization | None:
        """As Samples has it; it waits as long as the driver does."""
        try:
            if self._source is None:
                self._source = _opened(self._opener)
            return self._source()
        except Exception:  # a driver's binding can raise anything
            self.close()
            return None

    def wait(self, _seconds: float) -> Utilization | None:
        return self.answer()

    def close(self) -> None:
        self._source = None


def _opened(opener: Callable[[], Callable[[], Utilization]]) -> Callable[[], Utilization]:
    source = opener()
    source()  # of a time before anybody asked
    return source


def _answers(opener: Callable[[], Callable[[], Utilization]]) -> Callable[[object], Iterator[Utilization]]:
    source = _opened(opener)
    return lambda _: iter([source()])
