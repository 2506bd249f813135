"""Imports the modules of a container's start from one file: finding and reading 50 files takes half of the
import time.

precompile.py writes the file on this machine, with the code of the modules by name. Modules that are missing
or damaged in it are imported from their own files, as usual; so are all modules if another version of the
interpreter or of our package wrote it (an upgrade that is unpacked and not yet configured). Damaged code may
crash the interpreter, because marshal checks nothing, so each checksum is compared before use.

The file has the interpreter's magic number (importlib.util.MAGIC_NUMBER), the checksum and the length of the
index, the index, and the modules' code. The index has for each name: whether it is a package, its file, where
its code begins and ends, and the checksum of the code.
"""

from __future__ import annotations

import marshal
import sys

#: xpu_runtime.version.BUILD; `make install` writes it here.
BUILD = ""
_HERE = __file__.rpartition("/")[0]
#: The version of this format and of the code; checksums depend on it.
_FORMAT = 2 + int(BUILD or "0", 16)
_HEAD, _SUM = 16, 8
#: The largest index in bytes; the usual one has 8 KiB.
_LARGEST = 1 << 20


class Bundle:
    """A finder and loader (importlib.abc) of the modules in the file."""

    def __init__(self, index, fd, begins):
        """`fd` stays open; `begins` is the offset of the code."""
        self._index = index
        self._fd = fd
        self._begins = begins
        self._codes = {}

    def find_spec(self, name, path=None, target=None):
        found = self._index.get(name)
        if found is None:
            return None
        is_package, file, begin, end, checksum = found
        # A start needs some of the modules: reading all of them took half a millisecond for each interpreter.
        code = sys.modules["posix"].pread(self._fd, end - begin, self._begins + begin)
        if _checksum(code) != checksum:
            return None
        self._codes[name] = code
        # The type is ModuleSpec (importlib.machinery); importing that module takes time.
        spec = type(sys.__spec__)(name, self, origin=f"{_HERE}/{file}", is_package=is_package)
        spec.has_location = True
        if is_package:
            # Submodules that are not in the bundle are found beside it.
            spec.submodule_search_locations.append(spec.origin.rpartition("/")[0])
        return spec

    def create_module(self, spec):
        return None

    def get_code(self, name):
        return marshal.loads(self._codes.pop(name))  # noqa: S302 - ours

    def exec_module(self, module):
        exec(self.get_code(module.__name__), module.__dict__)  # noqa: S102 - ours


def _checksum(content):
    # This is importlib.util.source_hash; importing that module takes as long as the bundle saves.
    return sys.modules["_imp"].source_hash(_FORMAT, content)


def _magic():
    return sys.modules["_frozen_importlib_external"].MAGIC_NUMBER


def whole(modules):
    """The content of a bundle; `modules` has (is a package, file, marshalled code) by name."""
    index, codes = {}, b""
    for name, (is_package, file, code) in modules.items():
        index[name] = (is_package, file, len(codes), len(codes) + len(code), _checksum(code))
        codes += code
    listed = marshal.dumps(index)
    return _magic() + _checksum(listed) + len(listed).to_bytes(_HEAD - 4 - _SUM, "little") + listed + codes


def install():
    """Puts the bundle in front of the other finders."""
    try:
        posix = sys.modules["posix"]
        path = f"{_HERE}/start.bundle"
        if posix.stat(path).st_mode >> 12 != 8:  # opening a FIFO would wait for its writer
            return
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
        head = posix.pread(fd, _HEAD, 0)
        size = int.from_bytes(head[4 + _SUM :], "little")
        listed = posix.pread(fd, size, _HEAD) if head[:4] == _magic() and size < _LARGEST else b""
        if listed and head[4 : 4 + _SUM] == _checksum(listed):
            index = marshal.loads(listed)  # noqa: S302 - written by precompile.py
            sys.meta_path.insert(0, Bundle(index, fd, _HEAD + size))
    except Exception:  # noqa: S110 - whatever it is, the modules are there one by one
        pass
