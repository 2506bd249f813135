"""The standard streams of `xpu`, as its caller left them: some can be closed, or take no output.

Python keeps such output until the end, fails there with status 120 and lines of its own, and gives the number
of a closed stream to the next file that is opened.
"""

from __future__ import annotations

import os
import sys


def open_closed() -> None:
    """Opens closed streams on /dev/null, before another file gets their numbers: output would go into a
    ledger at 1."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    # Closing these at the end is the system's to do: none is closed under somebody who still writes.
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def log(text: str) -> None:
    """A line on stderr, of a service: for systemd's journal, or a container's log."""
    try:
        sys.stderr.write(f"xpu: {text}\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody reads it


def unwritten() -> str:
    """Why stdout accepts nothing any more, with a remedy; "" if everything is written."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return ""  # the reader has read enough
    except OSError as error:
        todo = "free space where it goes, or send it elsewhere"
        return f"cannot write to stdout: {error.strerror or error}: {todo}"
    return ""


def give_up() -> None:
    """Drops unwritten output, so that the end of the process does not try again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
