"""Makes pages in a process of its own, asked for by one that must not wait (linux/bounded.py).

It is started when it is first asked, and ended when nobody has asked for a while, or after an hour: what a
driver's library loses of its memory comes back. What it makes is not known here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from xpu_runtime.linux.bounded import Asked

#: It is ended when nobody has asked for so many seconds, and after the first answer when it is so old.
_IDLE_S = 300.0
_OLDEST_S = 3600.0

#: Called in the process; what it returns makes a page, of what is asked.
Make = Callable[[], Callable[[bytes], bytes]]


class Collector:
    """One process at a time, and what it has answered."""

    #: Seconds for an answer. Prometheus itself waits for 10, and what is told without one takes some as well.
    longest_s = 7.0

    def __init__(self, make: Make) -> None:
        """`make` is called in the process, once, and what it returns for each question: XpuError of both."""
        self._asked = Asked(lambda: _pages(make))
        self._started = 0.0
        #: When a process that nobody asks is to be closed; None: it is at work, or there is none.
        self.idle_until: float | None = None

    @property
    def until(self) -> float | None:
        """When an answer is given up (time.monotonic); None: nothing was asked."""
        return self._asked.until

    def fileno(self) -> int | None:
        """Readable when there is something to `answer`; None: there is no process."""
        return self._asked.fileno()

    def ask(self, question: bytes) -> int | None:
        """Asks, unless an answer is due already; as `fileno`, where None: it cannot be asked."""
        before = self._asked.pid
        self._asked.ask(question, self.longest_s)
        if self._asked.pid != before:
            self._started = time.monotonic()
        self.idle_until = None
        return self.fileno()

    def answer(self) -> tuple[bytes, str] | None:
        """The page, or why there is none; None: it is not there yet."""
        answer = self._asked.answer()
        if answer is None:
            return None
        now = time.monotonic()
        if self.fileno() is not None and now - self._started > _OLDEST_S:
            self.close()
        self.idle_until = None if self.fileno() is None else now + _IDLE_S
        if answer.hung:
            return b"", f"the figures are not known (does the driver answer?): {answer.why}"
        if answer.died:
            return b"", f"the figures are not known: {answer.why}"
        return (b"", answer.why) if answer.error else (answer.values[0], "")

    def close(self) -> None:
        """Ends the process; one that hangs in the driver ends when that lets it."""
        self.idle_until = None
        self._asked.close()


def _pages(make: Make) -> Callable[[bytes], Iterator[bytes]]:
    page = make()
    return lambda question: iter([page(question)])
