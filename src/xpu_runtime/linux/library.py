"""Calls into a shared library with numbers and buffers, through `_ctypes` as in syscalls.py.

For the few driver calls on a container's start; whoever needs structures and many functions uses
the library's own binding.
"""

from __future__ import annotations

import os

from xpu_runtime.linux import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Library:
    """A loaded library. OSError if it cannot be loaded; it stays loaded as long as the process."""

    def __init__(self, path: str) -> None:
        self._handle = syscalls.dlopen(path, os.RTLD_NOW)

    def call(self, name: str, *arguments: int | bytes | bytearray) -> int:
        """Calls an `int name(...)`: numbers go as 64 bits, buffers as pointers (bytearrays may be written to).

        AttributeError where the library has no such function.
        """
        return int(self._function(name, syscalls.Int)(*(_argument(a) for a in arguments)))

    def text(self, name: str, *arguments: int) -> str:
        """Calls a `const char *name(...)`."""
        found = self._function(name, syscalls.Text)(*(_argument(a) for a in arguments))
        return bytes(found or b"").decode("utf-8", "replace")

    def _function(self, name: str, result: Any) -> Any:
        return syscalls.function(self._handle, name, result)


def _argument(value: int | bytes | bytearray) -> Any:
    if isinstance(value, int):
        return syscalls.long(value)
    return value if isinstance(value, bytes) else syscalls.shared(value)
