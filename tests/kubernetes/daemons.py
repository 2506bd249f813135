"""Programs in the background: started, stopped and killed by their pid; their output is in a file."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from integration.agent_http import free_port as free_port
from integration.conftest import Node

#: After a minute kube-scheduler 1.20 tries again a pod for which nothing has changed. It looks for such pods
#: every half minute (unschedulableQTimeInterval in its pkg/scheduler/internal/queue).
PATIENCE = 120
#: When a test fails, it shows this many characters of the end of a part's log.
_LOG_END = 4000


def until(
    condition: Callable[[], object],
    what: str,
    patience: float = PATIENCE,
    explain: Callable[[], object] = str,
) -> None:
    """Polls until `condition` holds; if that takes too long, the test fails with the text of `explain`."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {patience:.0f} s in vain until {what}\n{explain()}")
        time.sleep(0.02)


def answers(url: str) -> bool:
    """Whether the URL answers with status 200."""
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


class Daemon:
    """A program on a node, in the node's mount namespace; `ready` says whether it answers."""

    def __init__(self, node: Node, name: str, ready: Callable[[], bool], *command: str | Path) -> None:
        self.command: Sequence[str | Path] = command
        self._node = node
        self._name = name
        self._path = node.folder / f"{name}.log"
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        with self._path.open("ab") as log:
            # A view begins with nsenter, which becomes the program.
            self._process = subprocess.Popen(
                [*self._node.view, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._node.environ,
            )

    def wait(self) -> None:
        """Waits until it answers; the test fails if it ends before that."""

        def answers() -> bool:
            if not self.runs:
                pytest.fail(f"{self._name} ended:\n{self.log()}")
            return self._ready()

        until(answers, f"{self._name} answers", explain=self.log)

    def start(self) -> None:
        self.launch()
        self.wait()

    def ensure(self) -> None:
        """Starts it unless it runs: an earlier test may have ended it and failed before starting it again."""
        if not self.runs:
            self.start()

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE)
            self._process = None

    def log(self) -> str:
        """The end of its output, over all its runs."""
        return self._path.read_text(errors="replace")[-_LOG_END:] if self._path.exists() else ""

    def has_said(self, text: str) -> int:
        """How often the text is in its output, over all its runs."""
        return self._path.read_text(errors="replace").count(text)
