"""The host's view of the pages: only live processes count, and nothing that a container writes is trusted."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from xpu_runtime.limits import pages, usage_page
from xpu_runtime.request.request import PRIORITIES, SCHEDS

from .accounts import lock_slots, write_slot

MIB, GIB = 1 << 20, 1 << 30
UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pages.create(str(tmp_path), "c1", (pages.Entry(UUID, 4 * GIB),))
    return tmp_path


def test_a_page_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []

    def looked(call: Callable[..., object]) -> Callable[..., object]:
        def call_and_look(*words: object) -> object:
            seen.append({each.name for each in tmp_path.iterdir()} & {pages.QUOTA, pages.USAGE})
            return call(*words)

        return call_and_look

    for each in ("ftruncate", "pwrite", "close"):
        monkeypatch.setattr(os, each, looked(getattr(os, each)))
    pages.create(str(tmp_path), "c1", (pages.Entry(UUID, 4 * GIB),))
    monkeypatch.undo()
    assert seen == [set()] * 3 + [{pages.USAGE}] * 3
    assert {each.name for each in tmp_path.iterdir()} == {pages.QUOTA, pages.USAGE}


def read(folder: Path) -> list[usage_page.ProcessUsage]:
    return [each for each in usage_page.slots(str(folder), 1) if not each.dead]


@pytest.mark.parametrize("other", ["GPU-00000000000000a1", "GPU-pci-0000-0b-00.0", "XPU-", ""])
def test_a_device_without_cudas_uuid_keeps_its_place_and_is_none_of_cudas(other: str) -> None:
    page = pages.quota_page("c1", (pages.Entry(other, None), pages.Entry(UUID, 4 * GIB)))
    first = 1024  # page.h: the devices' place, and 64 bytes each
    assert [page[at : at + 16].hex() for at in (first, first + 64)] == ["00" * 16, UUID[4:].replace("-", "")]


def test_pages_of_another_abi_are_neither_read_nor_changed(folder: Path) -> None:
    lock = lock_slots(folder, 7)
    write_slot(folder, 7, pid=12, name=b"train", used=GIB)
    quota = folder / pages.QUOTA
    page = bytearray(quota.read_bytes())
    page[8:12] = (pages.ABI + 1).to_bytes(4, "little")
    for content in (page, page[:2048], page + bytes(4096)):
        quota.write_bytes(content)
        assert pages.quota(str(folder)) == pages.Quota(pages.ABI + 1, valid=True, limits=())
        for use in (lambda: usage_page.slots(str(folder), 1), lambda: pages.OpenQuota(str(folder))):
            with pytest.raises(OSError, match="another version of this runtime"):
                use()
        assert quota.read_bytes() == content
    os.close(lock)


def test_a_slot_counts_as_long_as_its_lock_is_held(folder: Path) -> None:
    write_slot(folder, 7, pid=12, name=b"train", used=GIB, kinds={"linear": GIB - MIB, "overhead": MIB})
    lock = lock_slots(folder, 7)
    expected = usage_page.ProcessUsage(7, 12, "train", 0, GIB, {"linear": GIB - MIB, "overhead": MIB})
    assert read(folder) == [expected]
    os.close(lock)
    assert read(folder) == []
    assert usage_page.slots(str(folder), 1) == [expected.replace(dead=True)]


def test_a_lock_on_one_slot_says_nothing_of_its_neighbours(folder: Path) -> None:
    for slot in (6, 7, 8):
        write_slot(folder, slot, pid=slot, name=b"p", used=MIB)
    lock = lock_slots(folder, 7)
    assert [entry.slot for entry in read(folder)] == [7]
    os.close(lock)


def test_a_slot_without_a_mark_has_had_no_owner(folder: Path) -> None:
    lock = lock_slots(folder, 3)
    assert usage_page.slots(str(folder), 1) == []
    os.close(lock)


def test_a_killed_process_is_dead_at_once(folder: Path) -> None:
    write_slot(folder, 0, pid=1, name=b"p", used=MIB)
    program = (
        "import sys; from unit.limits.accounts import lock_slots; from pathlib import Path; "
        "lock_slots(Path(sys.argv[1]), 0); print('locked', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"locked\n"
    assert len(read(folder)) == 1
    child.kill()
    child.communicate()
    assert read(folder) == []


def test_memory_of_a_dead_process_that_a_living_one_has_open_is_in_use(folder: Path) -> None:
    write_slot(folder, 0, pid=1, name=b"maker", used=5 * MIB, exported=3 * MIB)
    write_slot(folder, 1, pid=2, name=b"user", used=MIB, imports=1)
    write_slot(folder, 2, pid=0, name=b"", used=2 * MIB, exported=2 * MIB, kinds={"freed_exported": 2 * MIB})
    lock = lock_slots(folder, 1)
    assert usage_page.held(usage_page.slots(str(folder), 1), 0) == {0: 3 * MIB, 1: MIB, 2: 2 * MIB}
    # No process has anything open any more, or only a dead one.
    write_slot(folder, 1, pid=2, name=b"user", used=MIB, imports=0)
    write_slot(folder, 3, pid=4, name=b"gone", used=MIB, imports=1)
    assert usage_page.held(usage_page.slots(str(folder), 1), 0) == {0: 0, 1: MIB, 2: 0, 3: 0}
    os.close(lock)


# Changes that a container may make to its usage page.


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4100, 4096 + 4095, 8256, 8400, 8500])
def test_a_page_that_is_cut_has_what_is_left(folder: Path, size: int) -> None:
    write_slot(folder, 0, pid=1, name=b"p", used=MIB)
    write_slot(folder, 4094, pid=2, name=b"q", used=MIB)
    lock = lock_slots(folder, 0, 4095)
    os.truncate(folder / pages.USAGE, size)
    assert [entry.pid for entry in read(folder)] == ([1] if size >= 8192 + 64 + 192 else [])
    os.close(lock)


def test_a_page_of_a_tebibyte_costs_what_a_page_costs(folder: Path) -> None:
    write_slot(folder, 1, pid=1, name=b"p", used=MIB)
    lock = lock_slots(folder, 1)
    with (folder / pages.USAGE).open("r+b") as file:
        file.truncate(1 << 40)
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    started = time.monotonic()
    assert [entry.pid for entry in read(folder)] == [1]
    assert time.monotonic() - started < 5
    os.close(lock)


@pytest.mark.parametrize("seed", range(8))
def test_noise_is_read_as_claims_and_no_more(folder: Path, seed: int) -> None:
    noise = random.Random(seed).randbytes(pages.usage_size(1))
    (folder / pages.USAGE).write_bytes(noise)
    lock = lock_slots(folder, 0, 4095)
    found = read(folder)
    assert 3900 < len(found) <= pages.SLOTS
    for entry in found:
        assert entry.name.isascii()
        assert entry.name.isprintable()
        assert 0 <= entry.used < 1 << 64
    os.close(lock)


def test_a_name_cannot_steer_a_terminal(folder: Path) -> None:
    write_slot(folder, 0, pid=1, name=b"\x1b]0;evil\x07\xff\n\0hidden", used=MIB)
    lock = lock_slots(folder, 0)
    assert read(folder)[0].name == "?]0;evil???"
    os.close(lock)


def _nothing(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("replace", "reason"),
    [
        (_nothing, errno.ENOENT),
        (_folder, errno.EISDIR),
        (_link, errno.ELOOP),
        (_pipe, errno.ESPIPE),
    ],
)
def test_a_page_that_is_no_file_is_an_error_and_never_a_wait(
    folder: Path, replace: Callable[[Path], None], reason: int
) -> None:
    replace(folder / pages.USAGE)
    with pytest.raises(OSError) as raised:
        usage_page.slots(str(folder), 1)
    assert raised.value.errno == reason


def _quota(folder: Path) -> pages.Quota:
    return pages.quota(str(folder))


@pytest.mark.parametrize(
    ("name", "mode", "look"),
    [(pages.USAGE, os.O_RDWR, read), (pages.QUOTA, os.O_RDONLY, _quota)],
    ids=["usage", "quota"],
)
def test_a_lease_on_a_page_makes_nobody_wait(
    folder: Path, name: str, mode: int, look: Callable[[Path], object]
) -> None:
    # fcntl(2): the file's owner can take a lease, and any other opener then waits for 45 seconds.
    program = (
        "import fcntl, os, signal, sys\n"
        "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        "fd = os.open(sys.argv[1], int(sys.argv[2]))\n"
        "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
        "print('leased', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, folder / name, str(mode)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"leased\n"
    started = time.monotonic()
    with pytest.raises(OSError) as raised:
        look(folder)
    assert raised.value.errno == errno.EWOULDBLOCK
    assert time.monotonic() - started < 5
    holder.communicate()
    assert look(folder) is not None


def test_locks_by_the_ten_thousand_do_not_keep_the_host_busy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel goes through all locks of a file for each question: 80,000 make 4095 of them 3 seconds long.
    asked = []

    def slow(_: int, slot: int) -> bool:
        asked.append(slot)
        time.sleep(0.1)
        return False

    monkeypatch.setattr(usage_page, "_is_locked", slow)
    for slot in range(100):
        write_slot(folder, slot, pid=slot + 1, name=b"p", used=MIB)
    found = usage_page.slots(str(folder), 1)
    assert len(asked) <= 11
    assert [entry.dead for entry in found] == [slot in asked for slot in range(100)]


# The quota page.


def test_a_quota_page_is_read_whole(folder: Path) -> None:
    assert pages.quota(str(folder)) == pages.Quota(
        pages.ABI, True, (4 * GIB,), cores=(None,), policies=(pages.Policy(),)
    )
    with pages.OpenQuota(str(folder)) as page:
        page.set_limit(0, 6 * GIB)
        page.set_cores(0, 35)
        page.set_policy(0, "burst", "high")
    assert pages.quota(str(folder)) == pages.Quota(
        pages.ABI, True, (6 * GIB,), cores=(35,), policies=(pages.Policy("burst", "high"),)
    )
    with pages.OpenQuota(str(folder)) as page:
        page.set_cores(0, None)
    assert pages.quota(str(folder)).cores == (None,)


def test_each_device_has_a_cap_and_a_policy_of_its_own(tmp_path: Path) -> None:
    entries = (
        pages.Entry(UUID, 4 * GIB),
        pages.Entry(UUID[:-1] + "e", None, cores=30, sched="weight", priority="low"),
    )
    pages.create(str(tmp_path), "c1", entries)
    with pages.OpenQuota(str(tmp_path)) as page:
        page.set_cores(0, 5)
    found = pages.quota(str(tmp_path))
    assert (found.limits, found.cores) == ((4 * GIB, None), (5, 30))
    assert found.policies == (pages.Policy(), pages.Policy("weight", "low"))


def test_a_policy_that_is_not_known_is_the_strictest(folder: Path) -> None:
    with (folder / pages.QUOTA).open("r+b") as file:
        file.seek(2048 + 24)
        file.write((0x909).to_bytes(8, "little"))
    assert pages.quota(str(folder)).policies == (pages.Policy("fixed", "normal"),)


def test_requests_and_pages_have_the_same_words() -> None:
    assert (set(pages.SCHEDS), set(pages.PRIORITIES)) == (set(SCHEDS), set(PRIORITIES))


def test_a_damaged_quota_page_is_told(folder: Path) -> None:
    with (folder / pages.QUOTA).open("r+b") as file:
        file.seek(1024)
        file.write(b"\xff")
    assert not pages.quota(str(folder)).valid
    (folder / pages.QUOTA).write_bytes(b"")
    with pytest.raises(ValueError, match="not a quota page"):
        pages.quota(str(folder))
    with pytest.raises(OSError, match="not a quota page"):
        pages.OpenQuota(str(folder))


def test_a_limit_is_one_store(folder: Path) -> None:
    fixed = (folder / pages.QUOTA).read_bytes()[:2048]
    with pages.OpenQuota(str(folder)) as page:
        for limit in (None, 0, 1, GIB, (1 << 64) - 2):
            page.set_limit(0, limit)
            assert list(pages.quota(str(folder)).limits) == [limit]
    assert (folder / pages.QUOTA).read_bytes()[:2048] == fixed  # of which the CRC is
