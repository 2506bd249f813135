"""Calls into a shared library with numbers and buffers, through `_ctypes` as in syscalls.py.

For the few driver calls on the path of a container's start, where `import ctypes` is too slow. Code that
needs structures and many functions uses the library's own Python binding. Knows no library by name.
"""

from __future__ import annotations

import os

from xpu_runtime.linux.syscalls import Long, shared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    import _ctypes

    class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
        _type_ = "i"

    class _Text(_ctypes._SimpleCData):  # type: ignore[type-arg]
        _type_ = "z"

    def _open(path: str) -> Any:
        return _ctypes.dlopen(path, os.RTLD_NOW)

    def _function(handle: Any, name: str, result: Any) -> Any:
        class Function(_ctypes.CFuncPtr):
            _flags_ = _ctypes.FUNCFLAG_CDECL
            _restype_ = result

        try:
            return Function(_ctypes.dlsym(handle, name))
        except OSError as error:
            raise AttributeError(name) from error

except (ImportError, AttributeError, TypeError):  # as in syscalls.py
    import ctypes

    _Int, _Text = ctypes.c_int, ctypes.c_char_p  # type: ignore[assignment,misc]

    def _open(path: str) -> Any:
        return ctypes.CDLL(path)

    def _function(handle: Any, name: str, result: Any) -> Any:
        found = handle[name]
        found.restype = result
        return found


#: The files of all loaded libraries: by path, (device, inode, time).
_loaded: dict[str, tuple[int, int, int]] = {}


def has_changed() -> bool:
    """Whether the file at a loaded library's path is another by now: loading it again gives the old one."""
    return any(_identity(path) != was for path, was in _loaded.items())


def _identity(path: str) -> tuple[int, int, int]:
    try:
        there = os.stat(path)
    except OSError:
        return 0, 0, 0
    return there.st_dev, there.st_ino, there.st_mtime_ns


class Library:
    """A loaded library. OSError if it cannot be loaded; it stays loaded as long as the process."""

    def __init__(self, path: str) -> None:
        self._handle = _open(path)
        _loaded.setdefault(path, _identity(path))

    def call(self, name: str, *arguments: int | bytes | bytearray) -> int:
        """Calls an `int name(...)`: numbers go as a long, buffers as pointers (bytearrays may be written to).

        AttributeError where the library has no such function.
        """
        result = _function(self._handle, name, _Int)(*(_argument(value) for value in arguments))
        return int(result)

    def text(self, name: str, *arguments: int) -> str:
        """Calls a `const char *name(...)`."""
        found = _function(self._handle, name, _Text)(*(_argument(value) for value in arguments))
        return bytes(found or b"").decode("utf-8", "replace")


def _argument(value: int | bytes | bytearray) -> Any:
    if isinstance(value, int):
        return Long(value)
    return value if isinstance(value, bytes) else shared(value)
