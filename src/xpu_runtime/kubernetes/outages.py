"""Outages of following the API, for a log: each once, and once its end.

A client that has lost a right may see its watch begun and refused in turns, twice a second, for hours. So an
end is logged only for a watch that has lasted a while, and the same reason not again within a minute. For
logs only: followers know the present state at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Seconds that a watch must stand for an outage to be over, and in which a reason is said once.
_STANDS_S, _AGAIN_S = 3.0, 60.0


class Outages:
    """Takes the problems of `Api.follow`, from one thread."""

    def __init__(self, began: Callable[[str], None], ended: Callable[[], None], first: str = "") -> None:
        """`began` is told the reason of an outage. `first`: why nothing was followed before, without being
        said."""
        self._began = began
        self._ended = ended
        self._lock = threading.Lock()
        #: The reason that was said last, and not its end.
        self._said = first
        #: Reasons that were said, and when (time.monotonic).
        self._said_at: dict[str, float] = {}
        self._end: threading.Timer | None = None

    def told(self, problem: str) -> None:
        """`problem` "": a watch has begun."""
        with self._lock:
            if problem:
                self._cancel()
                if problem != self._said and self._is_news(problem):
                    self._said = problem
                    self._began(problem)
            elif self._said and self._end is None:
                self._end = threading.Timer(_STANDS_S, self._stands)
                self._end.daemon = True
                self._end.start()

    def _cancel(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None

    def _is_news(self, problem: str) -> bool:
        now = time.monotonic()
        self._said_at = {each: at for each, at in self._said_at.items() if now - at < _AGAIN_S}
        if problem in self._said_at:
            return False
        self._said_at[problem] = now
        return True

    def _stands(self) -> None:
        with self._lock:
            # Cancelled too late, when it waited for the lock: that watch has broken off.
            if self._end is not threading.current_thread():
                return
            self._end, self._said = None, ""
            self._ended()
