"""Makes the served pages in a process of its own, for a caller that must not wait (linux/deadline.py).

The process is started by the first question, and ended after a while without one, or after an hour: that
frees memory which a driver's library leaks. It makes one page after the other, each once for all waiting
clients, and a sample for the history when one is due. Independent of the pages' content.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from xpu_runtime.agent.history import SAMPLE, History
from xpu_runtime.http_message import Answer, text
from xpu_runtime.http_server import Reply
from xpu_runtime.linux.deadline import HelperProcess
from xpu_runtime.value import Value

#: Seconds without a question until it is ended; and its greatest age, after which the next answer is its
#: last.
_IDLE_S = 300.0
_OLDEST_S = 3600.0
#: Seconds for which an answer serves all clients.
_FRESH_S = 1.0

#: Called in the process; the returned function makes a page for a question.
Make = Callable[[], Callable[[bytes], bytes]]


class Page(Value):
    """A page that the process makes for `question`."""

    question: bytes
    content_type: str
    #: Turns the page into an answer; None: the page is the answer.
    taken: Callable[[bytes], bytes] | None = None
    #: The answer without a page, from the reason; None: the reason, with status 503.
    missing: Callable[[str], bytes] | None = None

    def answer(self, content: bytes, error: str) -> Answer:
        if not error:
            return Answer(200, self.content_type, self.taken(content) if self.taken else content)
        if self.missing is None:
            return text(503, error)
        return Answer(200, self.content_type, self.missing(error))


class Collector:
    """One process at a time, and its waiting clients."""

    #: Seconds for an answer. Prometheus itself waits for 10, and the answer without a page takes some time as
    #: well.
    longest_s = 7.0

    def __init__(self, make: Make, history: History) -> None:
        """`make` is called in the process, once, and the returned function for each question; both may raise
        XpuError."""
        self._process = HelperProcess(lambda: _pages(make))
        self._history = history
        self._started = 0.0
        #: The time at which an idle process is closed; None: it is at work, or there is none.
        self._idle_until: float | None = None
        self._is_asked = False
        #: The question that is being answered; None: none, or a sample.
        self._page: Page | None = None
        #: Waiting clients by question; the longest wait first.
        self._waiting: dict[Page, list[Reply]] = {}
        #: When it was made, and the answer.
        self._fresh: dict[Page, tuple[float, Answer]] = {}

    @property
    def until(self) -> float | None:
        """When there is something to do at the latest (time.monotonic); None: when somebody asks."""
        sample = None if self._is_asked else self._history.due
        due = (self._process.until, self._idle_until, sample)
        return min((each for each in due if each is not None), default=None)

    def fileno(self) -> int | None:
        """Readable when there is something to do; None: there is no process."""
        return self._process.fileno()

    def ask(self, page: Page, reply: Reply) -> None:
        """Answers now if the page was made a moment ago, otherwise once it is made."""
        found = self._fresh.get(page)
        if found is not None and time.monotonic() - found[0] < _FRESH_S:
            reply(found[1])
        else:
            self._waiting.setdefault(page, []).append(reply)
            self.step()

    def step(self) -> None:
        """One step of the work; waits for nothing."""
        if self._idle_until is not None and time.monotonic() >= self._idle_until:
            self.close()
        while self._is_asked or self._ask():
            answer = self._process.answer()
            if answer is None:
                return
            error = answer.why if answer.error else ""
            if answer.hung or answer.died:
                why = "the figures are not known:"
                if answer.hung:
                    why = "the figures are not known (does the driver answer?):"
                error = f"{why} {error}"
            self._answered(b"" if error else answer.values[0], error)

    def close(self) -> None:
        """Ends the process; one that hangs in the driver ends when that lets it."""
        self._idle_until = None
        self._process.close()

    def _ask(self) -> bool:
        """Asks for the page with the longest wait, or for a sample if one is due; returns whether there is
        any."""
        self._page = next(iter(self._waiting), None)
        due = self._history.due
        if self._page is None and (due is None or time.monotonic() < due):
            return False
        before = self._process.pid
        self._process.ask(self._page.question if self._page else SAMPLE, self.longest_s)
        if self._process.pid != before:
            self._started = time.monotonic()
        self._is_asked, self._idle_until = True, None
        return True

    def _answered(self, content: bytes, error: str) -> None:
        self._is_asked = False
        now = time.monotonic()
        if self.fileno() is not None and now - self._started > _OLDEST_S:
            self.close()
        self._idle_until = None if self.fileno() is None else now + _IDLE_S
        if self._page is not None:
            self._tell(self._page, content, error)
        elif error:
            self._history.missed()
        else:
            self._history.taken(content)
        if error and self.fileno() is None:  # clients of another page would wait as long
            for page in list(self._waiting):
                self._tell(page, b"", error)

    def _tell(self, page: Page, content: bytes, error: str) -> None:
        answer = page.answer(content, error)
        self._fresh[page] = time.monotonic(), answer
        for reply in self._waiting.pop(page):
            reply(answer)


def _pages(make: Make) -> Callable[[bytes], Iterator[bytes]]:
    page = make()
    return lambda question: iter([page(question)])
