"""The keys of assignments, read again where their file is a new one: a Secret's volume is replaced as it is
changed.

A file that cannot be read any more changes nothing: the keys that were read last go on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from xpu_runtime.request import assignment

#: Seconds between two looks.
_LOOK_S = 5.0


class Keys:
    """The keys in a file by their ids, the signing one first."""

    def __init__(self, path: str, log: Callable[[str], None]) -> None:
        """AssignmentError where it has none."""
        self._path = path
        self._log = log
        self._stamp = self._now()
        self._looked_at = time.monotonic()
        self._keys = assignment.read_keys(path)

    def __call__(self) -> Mapping[str, bytes]:
        """Those that hold now."""
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self._looked_at = time.monotonic()
            stamp = self._now()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._keys = assignment.read_keys(self._path)
                    self._log(f"{self._path} is read again: {', '.join(self._keys)}")
                except assignment.AssignmentError as error:
                    self._log(f"{error}; the keys that were there before go on")
        return self._keys

    def _now(self) -> object:
        try:
            state = os.stat(self._path)
        except OSError:
            return None
        return state.st_ino, state.st_mtime_ns, state.st_size
