"""A terminal that is drawn on as a whole: lines of styled text, keys, and its size.

Plain escape sequences of ECMA-48, which every terminal of the last decades takes; the alternate screen and
the cursor are always put back. Independent of the drawing.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import sys
import termios
import tty
import unicodedata
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NamedTuple

from xpu_runtime import paths

STYLES = {
    "": "",
    "bold": "1",
    "dim": "2",
    "green": "32",
    "yellow": "33",
    "red": "31;1",
    "cyan": "36",
    "title": "7",
}

#: Keys that end repeated drawing: Escape and ^D, too.
ENDS = ("q", "Q", "\x1b", "\x04")

#: A line: texts, each with one of STYLES.
Line = list[tuple[str, str]]


class Size(NamedTuple):
    columns: int
    rows: int


def _members() -> tuple[int, bool] | None:
    """Columns of the terminal of the group's member for whom the agent runs this process, and whether it
    takes colours; None: the agent does not run it."""
    columns, _, coloured = os.environ.get(paths.TERMINAL_VARIABLE, "").partition(" ")
    return (int(columns), bool(coloured)) if columns.isdecimal() else None


def size() -> Size:
    """The window's size, and not COLUMNS: a shell exports that once, and windows change."""
    members = _members()
    columns, rows = (members[0], 0) if members else os.get_terminal_size(1)
    return Size(columns or 100, rows or 30)  # a serial line says 0


def is_terminal() -> bool:
    """Whether stdout is one, or is shown on one."""
    return _members() is not None or sys.stdout.isatty()


def can_watch() -> bool:
    """Whether a Screen can be had: keys come from a terminal, too, and some terminals only print."""
    return sys.stdout.isatty() and sys.stdin.isatty() and not _is_dumb()


def coloured() -> bool:
    """Whether stdout takes colours: it is a terminal, and NO_COLOR is not set (no-color.org)."""
    if (members := _members()) is not None:
        return members[1]
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and not _is_dumb()


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


def can_draw() -> bool:
    """Whether stdout can write block characters."""
    try:
        "█▏│●".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def columns_of(text: str) -> int:
    """How many columns of a terminal the text takes: a letter of East Asia two, a combining accent none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def fitting(text: str, width: int) -> str:
    """The longest beginning of the text that fits into this many columns."""
    if text.isascii():
        return text[: max(0, width)]
    ends = itertools.accumulate(map(_columns, text))
    return text[: sum(1 for _ in itertools.takewhile(lambda end: end <= width, ends))]


def text_of(line: Line, width: int | None, colours: bool) -> str:
    """The line, cut to `width` columns."""
    left = sum(columns_of(text) for text, _ in line) if width is None else width
    parts = []
    for text, style in line:
        shown = fitting(printable(text), left)
        left = left - columns_of(shown) if len(shown) == len(text) else 0
        code = STYLES[style]
        parts.append(f"\x1b[{code}m{shown}\x1b[0m" if code and colours and shown else shown)
    return "".join(parts) if colours else "".join(parts).rstrip()


def printable(text: str) -> str:
    """Others' text for a terminal: a `?` for each character that is not printed but obeyed."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


class Screen:
    """The whole terminal, while it is entered."""

    def __enter__(self) -> Screen:
        self._before = termios.tcgetattr(0)
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._resized = signal.signal(signal.SIGWINCH, _nothing)
        self._ended = signal.signal(signal.SIGTERM, _end)
        tty.setcbreak(0)
        self._write("\x1b[?1049h\x1b[?25l")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("\x1b[?25h\x1b[?1049l")
        termios.tcsetattr(0, termios.TCSADRAIN, self._before)
        signal.set_wakeup_fd(self._wakeup)
        signal.signal(signal.SIGWINCH, self._resized)
        signal.signal(signal.SIGTERM, self._ended)
        self._wake.close()
        self._woken.close()

    def draw(self, lines: list[Line]) -> None:
        """Draws over the old lines, without clearing first, so that nothing flickers."""
        here, colours = size(), coloured()
        shown = [text_of(line, here.columns, colours) + "\x1b[K" for line in lines[: here.rows]]
        self._write("\x1b[H" + "\n".join(shown) + "\x1b[J")

    def key(self, seconds: float) -> str:
        """The next key within that time; "" for none, or where the size has changed."""
        ready, _, _ = select.select([0, self._woken.fileno()], [], [], seconds)
        if self._woken.fileno() in ready:
            self._woken.recv(64)
        return os.read(0, 64).decode(errors="replace") if 0 in ready else ""

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def watch(page: Callable[[Size], list[Line]], interval_s: float) -> None:
    """Draws the page again and again, as large as the window is then, until somebody presses q or ^C."""
    try:
        with Screen() as terminal:
            while True:
                terminal.draw(page(size()))
                if terminal.key(interval_s) in ENDS:
                    return
    except KeyboardInterrupt:
        pass


def _nothing(_: int, __: FrameType | None) -> None:
    pass


def _end(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)
