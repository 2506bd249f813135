"""The dynamic loader's cache (/etc/ld.so.cache): parse it, merge our entries into it, build it.

With it the container's loader finds the driver libraries in any folder, and no program of the image, such as
its ldconfig, has to be run. The image controls the file that is parsed: every size in it is checked against
the size of the file. Format: glibc's sysdeps/generic/dl-cache.h; strings are file system text (fsdecode).
Works on bytes only: no file is opened here.
"""

from __future__ import annotations

import os
import struct

from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_OLD_MAGIC = b"ld.so-1.7.0\0"
_OLD_HEAD = struct.Struct("<12sI")
_OLD_ENTRY = struct.Struct("<iII")  # flags, soname, path
_MAGIC = b"glibc-ld.so.cache1.1"
_HEAD = struct.Struct("<20sIIBxxxI12x")  # magic, entries, length of strings, byte order, extensions
_ENTRY = struct.Struct("<iIIIQ")  # flags, soname, path, osversion, hwcap
_LITTLE_ENDIAN = 2
_EXTENSION_MAGIC = -358342284 & 0xFFFFFFFF
_EXTENSION_HWCAPS = 1
_SECTION = struct.Struct("<IIII")  # tag, flags, offset, size
# An entry below glibc-hwcaps/NAME has this bit, an ISA level (10 bits) above bit 32, and in its low half
# the index of NAME in the extension section.
_HWCAP_NAMED = 1 << 62
_HWCAP_HIGH = ~0xFFFFFFFF & (1 << 64) - 1
_HWCAP_ISA_LEVELS = 0x3FF << 32
# PATH_MAX: nothing longer can be opened.
_STRING_LIMIT = 4096
# Strings may overlap, so that a small file could stand for gigabytes of them. ldconfig shares only common
# tails, which is far below this many times the file's size.
_SHARING_LIMIT = 16
# Where the number of entries is limited, the average length of their names: the cost of sorting grows with
# it.
_LONGEST_NAMES = 64

#: The `flags` of a library for glibc 2 on each machine (as in `uname -m`).
_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03, "i386": 0x0003}


class Entry(Value):
    """One library: its name for programs, its path in the container, and the loaders that take it.

    `hwcaps` is the glibc-hwcaps subfolder's name (such as "x86-64-v3") of an entry that has one.
    """

    soname: str
    path: str
    flags: int
    osversion: int = 0
    hwcap: int = 0
    hwcaps: str = ""


def flags_for(machine: str) -> int:
    """The `flags` of a glibc 2 library for `machine` (x86_64, aarch64, i386); ValueError for another."""
    try:
        return _FLAGS[machine]
    except KeyError:
        raise ValueError(f"no ld cache flags are known for the machine {machine!r}") from None


class TooLarge(ValueError):
    """A cache that is well-formed as far as it was read, and larger than its reader wants."""


MAGIC_SIZE = len(_MAGIC)


def has_magic(start: bytes) -> bool:
    """Whether a file with this start is a cache for any loader."""
    return start.startswith((_MAGIC, _OLD_MAGIC))


def parse(data: bytes, most: int | None = None) -> list[Entry]:
    """The entries of a cache file, in its order; ValueError names the malformed part.

    TooLarge where there are more than `most` of them, or their names are so long that sorting takes as much
    time.

    Accepts the new format, the old one, and the new one behind the old one; of the latter only the new is
    used, as by the loader.
    """
    if data.startswith(_MAGIC):
        return _parse_new(data, 0, most)
    if not data.startswith(_OLD_MAGIC):
        raise ValueError("not an ld cache: it has neither format's magic")
    if len(data) < _OLD_HEAD.size:
        raise ValueError("ld cache is cut off in its header")
    count = _OLD_HEAD.unpack_from(data)[1]
    end = _table_end(data, _OLD_HEAD.size, count, _OLD_ENTRY.size)
    embedded = (end + 7) & ~7
    if data.startswith(_MAGIC, embedded):
        return _parse_new(data, embedded, most)
    string = _strings(data, end)
    names = _Names(count, most)
    table = memoryview(data)[_OLD_HEAD.size : end]
    return [
        Entry(names.counted(string(soname)), string(path), flags)
        for flags, soname, path in _OLD_ENTRY.iter_unpack(table)
    ]


def merge(existing: Iterable[Entry], ours: Iterable[Entry]) -> list[Entry]:
    """`existing`, with `ours` replacing the entries that the loader would find under the same names and
    flags."""
    ours = list(ours)
    letters = {_letters(entry.soname) for entry in ours}
    taken = {(entry.flags, _order(entry.soname)) for entry in ours}
    return ours + [
        entry
        for entry in existing
        if _letters(entry.soname) not in letters or (entry.flags, _order(entry.soname)) not in taken
    ]


def build(entries: Iterable[Entry]) -> bytes:
    """A cache file in the new format, sorted as the loader's binary search needs it.

    Of entries that differ only in their path, the loader takes the one that is given first.
    """
    ordered = sorted(dict.fromkeys(entries), key=_sort_key, reverse=True)
    if any(entry.hwcaps for entry in ordered):
        ordered = sorted(sorted(ordered, key=lambda entry: entry.hwcaps), key=_sort_key, reverse=True)
    names = sorted({entry.hwcaps for entry in ordered if entry.hwcaps})
    index = {name: number for number, name in enumerate(names)}
    start = _HEAD.size + _ENTRY.size * len(ordered)
    strings = bytearray()
    offsets: dict[str, int] = {}

    def offset(text: str) -> int:
        at = offsets.get(text)
        if at is None:
            raw = os.fsencode(text)
            if b"\0" in raw or len(raw) >= _STRING_LIMIT:
                raise ValueError(f"no ld cache can hold the name {text[:80]!r}")
            at = offsets[text] = start + len(strings)
            strings.extend(raw)
            strings.append(0)
        return at

    table = bytearray()
    for entry in ordered:
        hwcap = entry.hwcap
        if entry.hwcaps:
            hwcap = hwcap & _HWCAP_HIGH | _HWCAP_NAMED | index[entry.hwcaps]
        table += _ENTRY.pack(entry.flags, offset(entry.soname), offset(entry.path), entry.osversion, hwcap)
    name_offsets = [offset(name) for name in names]
    length = len(strings)
    if not names:
        return _HEAD.pack(_MAGIC, len(ordered), length, _LITTLE_ENDIAN, 0) + table + strings
    strings.extend(bytes(-len(strings) % 4))
    extension = start + len(strings)
    section = _SECTION.pack(_EXTENSION_HWCAPS, 0, extension + 8 + _SECTION.size, 4 * len(names))
    return (
        _HEAD.pack(_MAGIC, len(ordered), length, _LITTLE_ENDIAN, extension)
        + table
        + strings
        + struct.pack("<II", _EXTENSION_MAGIC, 1)
        + section
        + struct.pack(f"<{len(names)}I", *name_offsets)
    )


def _table_end(data: bytes, start: int, count: int, size: int) -> int:
    end = start + count * size
    if end > len(data):
        raise ValueError(
            f"ld cache says {count} entries and is long enough for {(len(data) - start) // size}"
        )
    return end


def _parse_new(data: bytes, base: int, most: int | None) -> list[Entry]:
    """The new format's entries; `base` is where its header is, which its strings are relative to."""
    if len(data) < base + _HEAD.size:
        raise ValueError("ld cache is cut off in its header")
    _, count, _, order, extensions = _HEAD.unpack_from(data, base)
    if order not in (0, _LITTLE_ENDIAN):
        raise ValueError("ld cache is of another byte order")
    start = base + _HEAD.size
    end = _table_end(data, start, count, _ENTRY.size)
    string = _strings(data, base)
    names = _hwcaps_names(data, extensions)
    sonames = _Names(count, most)
    entries = []
    for flags, soname, path, osversion, hwcap in _ENTRY.iter_unpack(memoryview(data)[start:end]):
        name = ""
        if hwcap & _HWCAP_HIGH & ~_HWCAP_ISA_LEVELS == _HWCAP_NAMED:
            number = hwcap & 0xFFFFFFFF
            name = string(names[number] - base) if number < len(names) else ""
            if not name:
                continue  # loaders skip such an entry as well
            hwcap &= _HWCAP_HIGH
        entries.append(Entry(sonames.counted(string(soname)), string(path), flags, osversion, hwcap, name))
    return entries


def _hwcaps_names(data: bytes, extensions: int) -> tuple[int, ...]:
    """Offsets of the glibc-hwcaps names; malformed extensions are ignored, as by the loader.

    Offsets count from the start of the file, also in one that begins with the old format.
    """
    if not extensions or extensions % 4 or extensions + 8 > len(data):
        return ()
    magic, count = struct.unpack_from("<II", data, extensions)
    sections = extensions + 8
    if magic != _EXTENSION_MAGIC or sections + count * _SECTION.size > len(data):
        return ()
    for at in range(sections, sections + count * _SECTION.size, _SECTION.size):
        tag, _, offset, size = _SECTION.unpack_from(data, at)
        if tag == _EXTENSION_HWCAPS and size % 4 == 0 and offset + size <= len(data):
            return struct.unpack_from(f"<{size // 4}I", data, offset)
    return ()


class _Names:
    """Checks the number and the total length of names against the limit `most`."""

    def __init__(self, count: int, most: int | None) -> None:
        if most is not None and count > most:
            raise TooLarge(f"the image's has {count} entries, more than {most}")
        self._most = most
        self._left = (most or 0) * _LONGEST_NAMES

    def counted(self, name: str) -> str:
        self._left -= len(name)
        if self._left < 0 and self._most is not None:
            raise TooLarge(f"the image's has names of more than {self._most * _LONGEST_NAMES} bytes in all")
        return name


class _strings:
    """The strings of a cache by their offset from `base`, each read once, their total bounded."""

    def __init__(self, data: bytes, base: int) -> None:
        self._data = data
        self._base = base
        self._known: dict[int, str] = {}
        self._left = _SHARING_LIMIT * len(data)

    def __call__(self, offset: int) -> str:
        text = self._known.get(offset)
        if text is None:
            start = self._base + offset
            end = self._data.find(0, start, start + _STRING_LIMIT)
            if end < 0:
                raise ValueError("ld cache has a string that does not end")
            self._left -= end - start
            if self._left < 0:
                raise ValueError("ld cache's strings overlap too much")
            text = self._known[offset] = os.fsdecode(self._data[start:end])
        return text


# glibc compares `char`, which is signed on x86 and unsigned on ARM. With the top bit flipped, signed values,
# and the final NUL, sort like bytes.
_FLIP = 0x80 if os.uname().machine in ("x86_64", "i686") else 0
_SORTABLE = bytes(byte ^ _FLIP for byte in range(256))
_END = chr(_FLIP)
_DIGITS = bytes(range(48, 58))
_ONLY_DIGITS = bytes(byte if byte in _DIGITS else 32 for byte in range(256))


def _order(soname: str) -> str:
    """`soname` as a key that sorts as in glibc's _dl_cache_libcmp: a run of digits is one number, and sorts
    above letters. glibc keeps the number in an int, which wraps.
    """
    rest = os.fsencode(soname)
    key = ""
    for run in rest.translate(_ONLY_DIGITS).split():
        before, _, rest = rest.partition(run)
        number = int(run) & 0xFFFFFFFF ^ 0x80000000
        key += before.translate(_SORTABLE).decode("latin-1")
        key += chr(0x100 + (number >> 16)) + chr(0x100 + (number & 0xFFFF))
    return key + rest.translate(_SORTABLE).decode("latin-1") + _END


def _letters(soname: str) -> bytes:
    """A cheap key that is the same for all names that `_order` finds equal."""
    return os.fsencode(soname).translate(None, _DIGITS)


def _sort_key(entry: Entry) -> tuple[object, ...]:
    """The order of ldconfig's compare(): name, flags, then hardware; the table is sorted in descending
    order."""
    hwcap = 0 if entry.hwcaps else entry.hwcap
    bits = bin(hwcap).count("1")
    return (
        _order(entry.soname),
        entry.flags,
        bool(entry.hwcaps),
        bits,
        hwcap,
        entry.osversion,
    )
