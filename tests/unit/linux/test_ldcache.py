"""The loader's cache as glibc's own loader and ldconfig see it."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_runtime.linux import ldcache
from xpu_runtime.linux.ldcache import Entry

OURS = ldcache.flags_for(os.uname().machine)
ODD_FOLDER = "/odd/place"

ASK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        struct link_map *map;
        void *handle = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        if (handle && !dlinfo(handle, RTLD_DI_LINKMAP, &map))
            puts(map->l_name);
        else
            printf("none: %s\\n", dlerror());
    }
    return 0;
}
"""


class SmallRoot:
    """A root folder with the host's loader and libc, a program that dlopens its arguments, and libraries."""

    def __init__(self, path: Path, ask: Path, library: Path) -> None:
        self.path = path
        self._library = library
        needed = subprocess.run(["ldd", ask], check=True, capture_output=True, text=True).stdout
        for word in needed.split():
            if word.startswith("/"):
                self._copy(Path(word).resolve(), word)
        self._copy(ask, "/ask")
        (path / "etc").mkdir()

    def _copy(self, source: Path, place: str) -> None:
        target = self.path / place.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)

    def add_library(self, place: str, soname: str) -> None:
        """A library whose file has the SONAME's name (the SONAME in it is patched: its length is fixed)."""
        self._copy(self._library, f"{place}/{soname}")
        target = self.path / place.lstrip("/") / soname
        name = soname.encode()
        assert len(name) < len(PLACEHOLDER)
        content = target.read_bytes()
        assert content.count(PLACEHOLDER) == 1
        target.write_bytes(content.replace(PLACEHOLDER, name.ljust(len(PLACEHOLDER), b"\0")))

    def write_cache(self, data: bytes) -> None:
        (self.path / "etc/ld.so.cache").write_bytes(data)

    def ldconfig(self, folders: list[str], layout: str) -> bytes:
        """The cache that the real ldconfig makes."""
        (self.path / "etc/ld.so.conf").write_text("\n".join(folders) + "\n")
        subprocess.run(["ldconfig", "-X", "-c", layout, "-r", self.path], check=True, capture_output=True)
        return (self.path / "etc/ld.so.cache").read_bytes()

    def found(self, *sonames: str) -> list[str]:
        """Where the loader finds each, as seen inside."""
        asked = subprocess.run(
            ["/usr/sbin/chroot", self.path, "/ask", *sonames],
            check=True,
            capture_output=True,
            text=True,
            env={},
        )
        return asked.stdout.splitlines()


PLACEHOLDER = b"libplaceholder" + b"x" * 30 + b".so"


@pytest.fixture
def small_root(tmp_path: Path, compile_c: Callable[..., Path]) -> SmallRoot:
    ask = compile_c("ask", ASK)
    soname = PLACEHOLDER.decode()
    library = compile_c("library", "int one(void) { return 1; }", "-shared", f"-Wl,-soname,{soname}")
    root = tmp_path / "root"
    root.mkdir()
    return SmallRoot(root, ask, library)


def printed(cache: Path) -> list[str]:
    """The entries as `ldconfig -p` prints them, in the file's order."""
    shown = subprocess.run(["ldconfig", "-p", "-C", cache], check=True, capture_output=True, text=True)
    return [line for line in shown.stdout.splitlines() if line.startswith("\t")]


def test_the_loader_finds_a_library_in_an_odd_folder_only_through_our_cache(small_root: SmallRoot) -> None:
    small_root.add_library(ODD_FOLDER, "libfoo.so.1")
    assert small_root.found("libfoo.so.1")[0].startswith("none: ")
    small_root.write_cache(ldcache.build([Entry("libfoo.so.1", f"{ODD_FOLDER}/libfoo.so.1", OURS)]))
    assert small_root.found("libfoo.so.1") == [f"{ODD_FOLDER}/libfoo.so.1"]


# Names that a plain sort would put elsewhere than the loader's comparison does.
AWKWARD = [
    "libfoo.so.1",
    "libfoo.so.2",
    "libfoo.so.10",
    "libfoo-2.so",
    "libfoo2.so.1",
    "libfoo10.so.1",
    "libFoo.so.1",
    "lib1.so",
    "libz.so.99999999999",
    "lib_.so.1",
    "lib\xe9.so.1",
    "libfoobar.so.1",
    "libfo.so",
]


@pytest.mark.parametrize("layout", ["new", "compat", "old"])
def test_libraries_listed_by_ldconfig_are_found_after_the_merge(small_root: SmallRoot, layout: str) -> None:
    for soname in AWKWARD:
        small_root.add_library("/libs", soname)
    small_root.add_library("/more/glibc-hwcaps/x86-64-v2", "libfast.so.1")
    small_root.add_library("/more/glibc-hwcaps/x86-64-v4", "libfast.so.1")
    small_root.add_library("/more", "libfast.so.1")
    small_root.add_library(ODD_FOLDER, "libnew.so.1")
    cache = small_root.path / "etc/ld.so.cache"
    theirs = ldcache.parse(small_root.ldconfig(["/libs", "/more"], layout))
    before = small_root.found(*AWKWARD, "libfast.so.1")
    # glibc's compat layout loses the names of glibc-hwcaps folders: no loader takes such an entry.
    lines = [line for line in printed(cache) if 'hwcap: ""' not in line]
    assert len(lines) == len(AWKWARD) + (2 if layout == "compat" else 4)
    assert not [path for path in before if path.startswith("none")]

    ours = Entry("libnew.so.1", f"{ODD_FOLDER}/libnew.so.1", OURS)
    small_root.write_cache(ldcache.build(ldcache.merge(theirs, [ours])))

    assert small_root.found(*AWKWARD, "libfast.so.1") == before
    assert small_root.found("libnew.so.1") == [f"{ODD_FOLDER}/libnew.so.1"]
    after = printed(cache)
    assert [line for line in after if "libnew" not in line] == lines
    assert len(after) == len(lines) + 1


def test_this_machines_own_cache_comes_back_entry_for_entry_in_its_order() -> None:
    theirs = ldcache.parse(Path("/etc/ld.so.cache").read_bytes())
    assert len(theirs) > 10
    assert ldcache.parse(ldcache.build(theirs)) == theirs


def test_ldconfig_reads_what_we_build(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_bytes(ldcache.build([Entry("libb.so.1", "/b/libb.so.1", OURS), Entry("liba.so", "/a", 3)]))
    assert [line.split(" => ")[1] for line in printed(cache)] == ["/b/libb.so.1", "/a"]


def test_ours_takes_the_place_of_the_images_own(small_root: SmallRoot) -> None:
    for place in ("/image", "/image/glibc-hwcaps/x86-64-v2", ODD_FOLDER):
        small_root.add_library(place, "libcuda.so.1")
    small_root.add_library("/image", "libcuda.so.01")  # the loader takes it for the same name
    theirs = ldcache.parse(small_root.ldconfig(["/image"], "new"))
    assert small_root.found("libcuda.so.1")[0].startswith("/image/")
    ours = Entry("libcuda.so.1", f"{ODD_FOLDER}/libcuda.so.1", OURS)
    merged = ldcache.merge(theirs, [ours])
    small_root.write_cache(ldcache.build(merged))
    assert small_root.found("libcuda.so.1") == [f"{ODD_FOLDER}/libcuda.so.1"]
    assert [entry for entry in merged if "cuda" in entry.soname] == [ours]


def test_a_library_of_another_machine_under_the_same_name_stays() -> None:
    other = Entry("libcuda.so.1", "/lib/i386/libcuda.so.1", ldcache.flags_for("i386"))
    ours = Entry("libcuda.so.1", "/x/libcuda.so.1", ldcache.flags_for("x86_64"))
    assert ldcache.merge([other], [ours]) == [ours, other]


def test_flags_of_an_unknown_machine_are_refused() -> None:
    with pytest.raises(ValueError, match="'vax'"):
        ldcache.flags_for("vax")


def glibc_compare(first: bytes, second: bytes) -> int:
    """The rule of _dl_cache_libcmp for ASCII names with numbers below 2**31, one character at a time."""
    one, two = list(first) + [0], list(second) + [0]
    while one[0]:
        numbers = []
        for text in (one, two):
            digits = 0
            while 48 <= text[digits] <= 57:
                digits += 1
            numbers.append(digits)
        if numbers[0] and numbers[1]:
            values = [int(bytes(text[:count])) for text, count in zip((one, two), numbers)]
            if values[0] != values[1]:
                return values[0] - values[1]
            one, two = one[numbers[0] :], two[numbers[1] :]
        elif numbers[0] or numbers[1]:
            return 1 if numbers[0] else -1
        elif one[0] != two[0]:
            return one[0] - two[0]
        else:
            one, two = one[1:], two[1:]
    return one[0] - two[0]


sonames = st.text("ab.-_019Z", max_size=9)
any_names = st.binary(max_size=20).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"")))
entry_values = st.builds(
    Entry,
    any_names,
    any_names,
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**61),
) | st.builds(
    Entry,
    sonames,
    sonames,
    st.just(OURS),
    st.just(0),
    st.integers(0, 1023).map(lambda level: 1 << 62 | level << 32),
    st.sampled_from(["x86-64-v2", "x86-64-v3", "z14"]),
)


@given(st.lists(entry_values))
def test_a_built_cache_is_read_back(entries: list[Entry]) -> None:
    data = ldcache.build(entries)
    assert set(ldcache.parse(data)) == set(entries)
    assert len(ldcache.parse(data)) == len(set(entries))


@given(st.lists(sonames, max_size=30))
def test_names_are_in_the_loaders_descending_order(names: list[str]) -> None:
    built = [e.soname.encode() for e in ldcache.parse(ldcache.build([Entry(n, "/x", OURS) for n in names]))]
    for before, after in zip(built, built[1:]):
        assert glibc_compare(before, after) >= 0


def test_of_two_paths_for_one_name_the_first_given_is_first() -> None:
    entries = [Entry("liba.so", path, OURS) for path in ("/b", "/c", "/a", "/b")]
    assert [entry.path for entry in ldcache.parse(ldcache.build(entries))] == ["/b", "/c", "/a"]


def test_names_that_no_cache_can_hold_are_refused() -> None:
    for name in ("a\0b", "a" * 5000):
        with pytest.raises(ValueError, match="no ld cache can hold"):
            ldcache.build([Entry(name, "/x", OURS)])


WITH_HWCAPS = ldcache.build(
    [Entry(f"lib{n}.so", f"/{n}", OURS) for n in range(5)]
    + [Entry("lib1.so", "/fast", OURS, 0, 1 << 62, "x86-64-v3")]
)


def test_a_cache_cut_off_anywhere_is_an_error_or_loses_extensions_only() -> None:
    whole = ldcache.parse(WITH_HWCAPS)
    outcomes = set()
    for length in range(len(WITH_HWCAPS)):
        try:
            entries = ldcache.parse(WITH_HWCAPS[:length])
        except ValueError:
            outcomes.add("refused")
        else:
            assert entries == [entry for entry in whole if not entry.hwcaps]
            outcomes.add("without")
    assert outcomes == {"refused", "without"}


@given(
    st.integers(0, len(WITH_HWCAPS) // 4 - 1),
    st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 48]) | st.integers(0, 2**32 - 1),
)
def test_a_cache_with_any_word_changed_is_read_or_refused(word: int, value: int) -> None:
    data = bytearray(WITH_HWCAPS)
    struct.pack_into("<I", data, 4 * word, value)
    with suppress(ValueError):
        ldcache.parse(bytes(data))


@given(st.sampled_from([b"", b"ld.so-1.7.0\0", b"glibc-ld.so.cache1.1"]), st.binary(max_size=200))
def test_garbage_is_read_or_refused(magic: bytes, rest: bytes) -> None:
    with suppress(ValueError):
        ldcache.parse(magic + rest)


def test_a_small_file_cannot_claim_many_entries() -> None:
    head = b"glibc-ld.so.cache1.1" + struct.pack("<II", 0xFFFFFFFF, 0) + bytes(20)
    with pytest.raises(ValueError, match="says 4294967295 entries and is long enough for 0"):
        ldcache.parse(head)


def test_a_small_file_cannot_name_gigabytes_by_strings_that_overlap() -> None:
    count, text = 90, 4000
    strings = 48 + 24 * count
    data = b"glibc-ld.so.cache1.1" + struct.pack("<II", count, text + 1) + bytes(20)
    for number in range(count):
        data += struct.pack("<iIIIQ", OURS, strings + number, strings + count + number, 0, 0)
    data += b"a" * text + b"\0"
    with pytest.raises(ValueError, match="overlap too much"):
        ldcache.parse(data)


def test_a_cache_of_a_big_endian_machine_is_refused() -> None:
    data = bytearray(WITH_HWCAPS)
    data[28] = 3
    with pytest.raises(ValueError, match="byte order"):
        ldcache.parse(bytes(data))


def test_a_reader_with_a_limit_gets_no_cache_that_takes_long_to_sort() -> None:
    entries = [Entry(f"lib{number}.so", "/x", OURS) for number in range(100)]
    assert len(ldcache.parse(ldcache.build(entries), 100)) == 100
    with pytest.raises(ldcache.TooLarge, match="100 entries, more than 99"):
        ldcache.parse(ldcache.build(entries), 99)
    long = [Entry("1a" * 64 + str(number), "/x", OURS) for number in range(60)]
    with pytest.raises(ldcache.TooLarge, match="names of more than 6400 bytes"):
        ldcache.parse(ldcache.build(long), 100)
    assert len(ldcache.parse(ldcache.build(long))) == 60


def test_the_old_format_has_the_same_limit() -> None:
    head = struct.pack("<12sI", b"ld.so-1.7.0\0", 3)
    old = head + struct.pack("<iII", 1, 0, 5) * 3 + b"libx\0/x\0"
    assert len(ldcache.parse(old, 3)) == 3
    with pytest.raises(ldcache.TooLarge):
        ldcache.parse(old, 2)
