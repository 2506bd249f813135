"""Threads whose end is the program's: one that dies alone would leave the others to decide by what was.

What a thread cannot go on with ends the program, and whoever started that starts it again; a fault of ours
does too. Knows nothing of what they do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from xpu_runtime.errors import XpuError
from xpu_runtime.messages import line_of


class Threads:
    """The threads of one program."""

    def __init__(self, what: str, end: Callable[[], None]) -> None:
        """`what` is the program's name for people; `end` has it end."""
        self._what = what
        self._end = end
        #: Why it ends; None: no thread has failed.
        self.failed: XpuError | None = None

    def start(self, run: Callable[[], None], name: str) -> threading.Thread:
        """Starts a thread. It may end; with an exception the program does."""
        thread = threading.Thread(target=self._run, args=(run,), name=name, daemon=True)
        thread.start()
        return thread

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except XpuError as error:
            self._fail(error)
        except Exception as error:
            self._fail(XpuError(f"{self._what} has failed: {line_of(error)}"))

    def _fail(self, error: XpuError) -> None:
        self.failed = self.failed or error
        self._end()
