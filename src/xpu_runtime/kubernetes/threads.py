"""Threads whose end ends the program: if one died alone, the others would decide by old data.

An error that stops a thread, a fault of ours too, ends the program, and the kubelet or systemd starts it
again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from xpu_runtime.errors import XpuError
from xpu_runtime.messages import line_of


class Threads:
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
