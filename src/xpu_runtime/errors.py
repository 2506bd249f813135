"""The errors that a user can cause, as values with the facts in them.

Each becomes one line for people: the problem, its place, and the remedy. The line is made at the entry point,
by `str(error)`; all other code raises the error with its facts. Knows nothing of logs and exit statuses
(messages.py).
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

_LONGEST = 3000
#: Longer words are no typing mistakes, and take long to compare.
_LONGEST_WORD = 100


class XpuError(Exception):
    """A problem that a person can fix: `what` names the problem, `todo` the remedy."""

    def __init__(self, what: str, todo: str = "") -> None:
        super().__init__(what, todo)
        self.what = what
        self.todo = todo

    def __str__(self) -> str:
        # Always one line: docker and containerd show only the last line of an error.
        text = f"{self.what}: {self.todo}" if self.todo else self.what
        # The text may contain an image's strings: no control characters, and a bounded length.
        text = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * _LONGEST]).split())
        return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


def did_you_mean(word: str, words: Iterable[str], otherwise: str = "") -> str:
    """`did you mean …?` for a word of `words` that is like `word`, or begins or ends with it; `otherwise` if
    there is none."""
    import difflib  # only ever on the way to an error
    from os.path import commonprefix

    word = word[:_LONGEST_WORD].lower()
    known = {each.lower(): each for each in words}
    # A beginning common to all words, such as XPU_, must not count as likeness.
    shared = commonprefix(list(known)) if len(known) > 1 else ""  # noqa: RUF071 - words, not paths
    if word.startswith(shared):
        word = word.removeprefix(shared)
        known = {each.removeprefix(shared): known[each] for each in known}
    found = [word] if word in known else []
    found += [each for each in known if word and len(shared + word) > 1 and each.startswith(word)]
    found += [each for each in known if len(word) > 2 and each.endswith(word)]
    found = found or difflib.get_close_matches(word, known, n=1)
    return f"did you mean {known[found[0]]}?" if found else otherwise


def incomplete_python(error: ImportError) -> tuple[str, str]:
    """The problem and its remedy if the interpreter lacks a module of the standard library."""
    version = ".".join(map(str, sys.version_info[:2]))
    what = f"{sys.executable or 'the interpreter'} (Python {version}) lacks a part of its standard library"
    todo = "install all of it: libpython3-stdlib on Debian and Ubuntu, python3-libs on Fedora and RHEL"
    return f"{what} ({error})", todo


class ConfigError(XpuError):
    """The configuration file (or a file made from it) cannot be used."""


class RequestError(XpuError):
    """A container's request is misspelt, out of range, contradictory or against the policy."""

    #: The code under which it is counted (ledger/refusal.py).
    code: Literal["wrong-request", "wrong-assignment"] = "wrong-request"


class SpecError(XpuError):
    """A bundle, its config.json or a container state cannot be read or does not make sense."""


class DeviceError(XpuError):
    """The devices or the driver cannot be queried, or are not as the request needs them."""


class RootlessError(XpuError):
    """A container of an engine that does not run with the host's root asks for a device."""

    WHAT = "rootless engines are not served: devices, limits and the ledger are of the host's root"
    TODO = "start it with an engine that runs as root (sudo podman; docker without rootless mode)"

    def __init__(self) -> None:
        super().__init__(self.WHAT, self.TODO)


class ApplyError(XpuError):
    """A step of a plan could not be carried out in the container."""
