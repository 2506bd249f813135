"""What a check of the node has found, and what to do about it: the value of which `xpu doctor` prints lines.

Made by whoever knows the matter, a vendor or an area of doctor/, so it lies below them all.
"""

from __future__ import annotations

from xpu_runtime.value import Value

OK, WARNING, PROBLEM, UNKNOWN = STATES = ("ok", "warning", "problem", "unknown")


class Finding(Value):
    """One line: which check, one of STATES, what is there and where, and what to do (None: nothing).

    problem: something does not work. warning: it works, but not as it should or not for long. unknown: it
    could not be looked at.
    """

    check: str
    state: str
    text: str
    todo: str | None = None


def printable(text: str) -> str:
    """One line of `text` that a terminal, and any encoding of Unicode, can take: what engines and files say
    of themselves can have escape sequences and lone surrogates in it."""
    return "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))


def ok(check: str, text: str) -> Finding:
    return Finding(check, OK, text)


def warning(check: str, text: str, todo: str | None = None) -> Finding:
    return Finding(check, WARNING, text, todo)


def problem(check: str, text: str, todo: str | None = None) -> Finding:
    return Finding(check, PROBLEM, text, todo)


def unknown(check: str, text: str, todo: str | None = None) -> Finding:
    return Finding(check, UNKNOWN, text, todo)
