"""The errors that a user can cause, as values with the facts in them.

Each ends in one line for people: what is wrong, where, and what to do. The line is made at
the door (`str(error)`); code below the doors raises with the parts.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST = 3000
#: A longer word is no slip of the pen, and takes long to compare.
_LONGEST_WORD = 100


class XpuError(Exception):
    """Something a person can mend: `what` is wrong, and `todo` says how to mend it."""

    code = "error"

    def __init__(self, what: str, todo: str = "") -> None:
        super().__init__(what, todo)
        self.what = what
        self.todo = todo

    def __str__(self) -> str:
        # One line always: docker and containerd show only the last line of an error.
        text = f"{self.what}: {self.todo}" if self.todo else self.what
        # Parts of it can be an image's words: no control sequences, and no megabytes.
        text = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * _LONGEST]).split())
        return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of `words` that was probably meant, in whatever case; None where none is like it."""
    import difflib  # only ever on the way to an error

    known = {each.lower(): each for each in words}
    found = difflib.get_close_matches(word[:_LONGEST_WORD].lower(), known, n=1)
    return known[found[0]] if found else None


class ConfigError(XpuError):
    """The configuration file (or a file made from it) cannot be used."""

    code = "config"


class RequestError(XpuError):
    """A container's request is misspelt, out of range, contradictory or against the policy."""

    code = "request"


class SpecError(XpuError):
    """A bundle, its config.json or a container state cannot be read or does not make sense."""

    code = "spec"


class DeviceError(XpuError):
    """The devices or the driver cannot be asked, or are not as the request needs them."""

    code = "device"


class ApplyError(XpuError):
    """A step of a plan could not be carried out in the container."""

    code = "apply"
