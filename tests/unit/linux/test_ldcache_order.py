"""The loader's cache in details that few images have: numbers, hardware, long names, other machines."""

from __future__ import annotations

import pytest

from xpu_runtime.linux import ldcache
from xpu_runtime.linux.ldcache import Entry

X86 = 0x0303


def names(*entries: Entry) -> list[str]:
    return [entry.soname for entry in ldcache.parse(ldcache.build(entries))]


@pytest.mark.parametrize(("machine", "flags"), [("x86_64", 0x0303), ("aarch64", 0x0A03), ("i386", 3)])
def test_what_a_machines_loader_takes(machine: str, flags: int) -> None:
    """FLAG_ELF_LIBC6 with the machine's bits (glibc's sysdeps/generic/ldconfig.h)."""
    assert ldcache.flags_for(machine) == flags


def test_numbers_in_names_are_numbers_however_large() -> None:
    versions = [2147483647, 131072, 65537, 65536, 65535, 10, 9, 0, 2147483648]  # the last is negative there
    made = [Entry(f"lib.so.{version}", f"/{version}", X86) for version in versions]
    assert names(*reversed(made)) == [entry.soname for entry in made]
    assert ldcache.merge(made, [Entry("lib.so.65536", "/ours", X86)])[1:] == [
        entry for entry in made if entry.path != "/65536"
    ]


def test_of_one_name_the_most_specific_hardware_is_first() -> None:
    """In the old way of subfolders, by how many features they ask for; of glibc-hwcaps all before those."""
    plain, one, two = (Entry("lib.so.1", f"/{bits:b}", X86, hwcap=bits) for bits in (0, 0b100, 0b11))
    third = Entry("lib.so.1", "/v3", X86, hwcaps="x86-64-v3")
    second = Entry("lib.so.1", "/v2", X86, hwcaps="x86-64-v2")
    other = Entry("liba.so.1", "/a", X86)
    for given in ([plain, third, one, other, two, second], [second, two, other, one, third, plain]):
        found = [entry.path for entry in ldcache.parse(ldcache.build(given))]
        assert found == ["/a", "/v2", "/v3", "/11", "/100", "/0"]


def test_the_longest_name_is_that_of_a_path() -> None:
    longest = "/" + "x" * 4094
    (entry,) = ldcache.parse(ldcache.build([Entry("lib.so.1", longest, X86)]))
    assert entry.path == longest
    with pytest.raises(ValueError, match="no ld cache can hold"):
        ldcache.build([Entry("lib.so.1", longest + "x", X86)])


def test_a_cache_is_known_by_its_start() -> None:
    assert ldcache.has_magic(ldcache.build([]))
    assert ldcache.has_magic(b"ld.so-1.7.0\0")
    assert not ldcache.has_magic(b"ld.so-1.7.0")
    assert not ldcache.has_magic(b"")
