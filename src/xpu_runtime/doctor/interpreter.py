"""The Python that the launcher and the hook start, which need not be the one that runs `xpu`."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache

from xpu_runtime import paths

_ANSWER_S = 10.0
#: The answer of `why_not` about a silent interpreter; on a busy node it may be sound all the same.
SILENT = f"which does not answer within {_ANSWER_S:.0f} s"
#: The modules that a container's start needs of it; its version; the magic number of its compiled code.
_ASK = (
    "import sys, sqlite3, ctypes, json;"
    "print(*sys.version_info[:2], sys.modules['_frozen_importlib_external'].MAGIC_NUMBER.hex())"
)
_OLDEST = (3, 9)
#: As it is compiled into a program in C.
_PYTHON = re.compile(rb"(/[!-~]*python[0-9.]*)\0")
_MOST_BYTES = 16 << 20


def of_program(path: str) -> str | None:
    """The interpreter that a program of ours starts: in its first line (pip's hook), or compiled in.

    None where there is none, or no program."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError:
        return None
    if content.startswith(b"#!"):
        return os.fsdecode((content[2:512].split() or [b""])[0])
    found = _PYTHON.findall(content)
    return os.fsdecode(found[0]) if found else None


def of_hook() -> str | None:
    return of_program(paths.HOOK)


@cache
def _answer(python: str) -> tuple[list[str], str] | None:
    """Its answer, and its last line on stderr; None: no answer in time. OSError."""
    words = [python, "-I", "-S", "-c", _ASK]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER_S)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.split(), (done.stderr.strip().splitlines() or ["it fails without a word"])[-1]


def why_not(python: str) -> str:
    """Why the interpreter cannot serve; "" if it can."""
    if not os.access(python, os.X_OK):
        return "which is missing or not executable"
    try:
        answer = _answer(python)
    except OSError as error:
        return f"which does not start ({error.strerror})"
    if answer is None:
        return SILENT
    words, last = answer
    if len(words) != 3:
        return f"which lacks what a start needs ({last})"
    version = (int(words[0]), int(words[1]))
    return "" if version >= _OLDEST else f"which is Python {words[0]}.{words[1]}, too old"


def magic(python: str) -> bytes | None:
    """The number that its compiled code begins with (importlib.util.MAGIC_NUMBER); None if it is not told."""
    try:
        words, _ = _answer(python) or ([], "")
    except OSError:
        return None
    return bytes.fromhex(words[2]) if len(words) == 3 else None
