"""The keys of assignments, read again and again: a Secret's volume is replaced as it is changed.

A file that cannot be read any more changes nothing: the keys that were read last go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from xpu_runtime.request import assignment

#: Seconds between two looks.
_LOOK_S = 5.0


class Keys:
    """The keys in a file by their ids, the signing one first."""

    def __init__(self, path: str, log: Callable[[str], None]) -> None:
        """AssignmentError if the file has no key."""
        self._path = path
        self._log = log
        self._keys = assignment.read_keys(path)
        self._looked_at = time.monotonic()
        self._problem = ""

    def __call__(self) -> Mapping[str, bytes]:
        """Those that hold now."""
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self._looked_at = time.monotonic()
            before, problem = self._keys, ""
            try:
                self._keys = assignment.read_keys(self._path)
            except assignment.AssignmentError as error:
                problem = f"{error}; the earlier keys stay in use"
            if list(self._keys.items()) != list(before.items()):  # the first one signs
                self._log(f"{self._path} is read again: {', '.join(self._keys)}")
            if problem not in ("", self._problem):
                self._log(problem)
            self._problem = problem
        return self._keys
