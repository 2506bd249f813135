"""A terminal for commands that draw on one, and its content."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence

from .conftest import Node


class Terminal:
    """A command of `xpu` on a terminal of its own, by default `xpu top`."""

    def __init__(
        self,
        node: Node,
        columns: int = 110,
        rows: int = 30,
        words: Sequence[str] = ("top", "--interval", "0.3"),
        environ: Mapping[str, str] | None = None,
        *,
        keys: bool = True,
        before: Sequence[str] = (),
    ) -> None:
        self._end, theirs = pty.openpty()
        self._before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self._set_size(columns, rows)
        self.process = subprocess.Popen(
            [*before, node.prefix / "bin" / "xpu", *words],
            # COLUMNS is another window's: a shell exports it once.
            env={**node.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", "NO_COLOR": "", "COLUMNS": "80"}
            | dict(environ or {}),
            stdin=theirs if keys else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self.text = ""

    def resize(self, columns: int, rows: int) -> None:
        """As a terminal's emulator does it: its programs are told."""
        self._set_size(columns, rows)
        self.process.send_signal(signal.SIGWINCH)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def read(self) -> str:
        """All its output so far."""
        while select.select([self._end], [], [], 0.05)[0]:
            self.text += os.read(self._end, 1 << 16).decode()
        return self.text

    def page(self) -> list[str]:
        """The screen: the last page that was drawn whole."""
        pages = self.read().split("\x1b[H")[1:]
        whole = [page for page in pages if "\x1b[J" in page]
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", whole[-1]).split("\r\n") if whole else []

    def press(self, key: str) -> None:
        os.write(self._end, key.encode())

    def ended(self) -> int:
        """Its exit status; the terminal is as it was before."""
        status = self.process.wait(10)
        self.read()
        assert termios.tcgetattr(self._theirs) == self._before
        return status

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)
        os.close(self._theirs)


def printed(node: Node, columns: int, *words: str, **environ: str) -> str:
    """A command's output on a terminal of this width, with colours."""
    with Terminal(node, columns, 24, words, environ) as terminal:
        while terminal.process.poll() is None:
            terminal.read()
        return terminal.read().replace("\r\n", "\n")


def plain(text: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
