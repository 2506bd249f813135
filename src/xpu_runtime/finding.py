"""A finding of a check of the node, with its remedy: `xpu doctor` prints one on a line.

Vendors and the areas of doctor/ make findings, so this module lies below them all.
"""

from __future__ import annotations

from xpu_runtime.value import Value

OK, WARNING, PROBLEM, UNKNOWN = STATES = ("ok", "warning", "problem", "unknown")


class Finding(Value):
    """One line: the check, one of STATES, the text, and the remedy (None: nothing to do).

    problem: something does not work. warning: it works, but not as it should or not for long. unknown: it
    could not be looked at.
    """

    check: str
    state: str
    text: str
    todo: str | None = None


def printable(text: str) -> str:
    """`text` as one line that any terminal and any encoding of Unicode can show: texts of engines and files
    can have escape sequences and lone surrogates in them."""
    return "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))


def ok(check: str, text: str) -> Finding:
    return Finding(check, OK, text)


def warning(check: str, text: str, todo: str | None = None) -> Finding:
    return Finding(check, WARNING, text, todo)


def problem(check: str, text: str, todo: str | None = None) -> Finding:
    return Finding(check, PROBLEM, text, todo)


def unknown(check: str, text: str, todo: str | None = None) -> Finding:
    return Finding(check, UNKNOWN, text, todo)
