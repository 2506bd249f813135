"""The pages byte for byte, as native/abi/page.h has them (tests/unit/native asks C)."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from xpu_runtime.limits import pages, usage_page

FIRST = "GPU-00112233-4455-6677-8899-aabbccddeeff"
SECOND = "MIG-ffeeddcc-bbaa-9988-7766-554433221100"
GIB = 1 << 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    entries = (pages.Entry(FIRST, 4 * GIB), pages.Entry(SECOND, None, is_partition=True))
    pages.create(str(tmp_path), "c1", entries)
    return tmp_path


def word(content: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(content[at : at + size], "little")


def test_the_quota_page_of_two_devices(folder: Path) -> None:
    page = (folder / "quota").read_bytes()
    assert len(page) == 4096
    assert page[:8] == b"XPUQUOTA"
    assert [word(page, at, 4) for at in (8, 16, 20)] == [2, 2, 4095]
    assert word(page, 24) == (folder / "usage").stat().st_size
    assert page[32:160] == b"c1".ljust(128, b"\0")
    for number, uuid in enumerate((FIRST, SECOND)):
        at = 1024 + 64 * number
        assert page[at : at + 16].hex() == uuid[4:].replace("-", "")
        assert page[at + 16 : at + 64] == bytes([number]) + bytes(47)
    assert page[1024 + 128 : 2048] == bytes(1024 - 128)
    assert [word(page, 2048), word(page, 2048 + 64)] == [4 * GIB, (1 << 64) - 1]


def test_the_usage_page_has_a_mark_and_a_place_for_each_slot(folder: Path) -> None:
    usage = (folder / "usage").read_bytes()
    assert usage[:8] == b"XPUUSAGE"
    assert word(usage, 8, 4) == 2
    assert len(usage) == 4096 + 4096 + 4095 * (64 + 2 * 192)
    assert not any(usage[12:])


def test_every_user_of_the_container_writes_the_one_page_and_only_reads_the_other(folder: Path) -> None:
    modes = [(folder / name).stat().st_mode & 0o777 for name in ("usage", "quota")]
    assert modes == [0o666, 0o644]


def test_a_slot_of_two_devices_is_read_from_its_place(folder: Path) -> None:
    place = 4096 + 4096 + 4094 * (64 + 2 * 192)
    with (folder / "usage").open("r+b") as page:
        for at, value in (
            (4096 + 4094, bytes([1])),
            (place, (77).to_bytes(4, "little")),
            (place + 4, (3).to_bytes(4, "little")),
            (place + 8, b"train"),
            (place + 64, (GIB).to_bytes(8, "little")),
            (place + 64 + 192, (5 * 512).to_bytes(8, "little")),
            (place + 64 + 192 + 40, (512).to_bytes(8, "little")),
            (place + 64 + 192 + 48 + 8 * 8, (4 * 512).to_bytes(8, "little")),
        ):
            page.seek(at)
            page.write(value)
    assert usage_page.slots(str(folder), 2) == [
        usage_page.ProcessUsage(4094, 77, "train", 0, GIB, {}, True, 0, 3),
        usage_page.ProcessUsage(4094, 77, "train", 1, 5 * 512, {"overhead": 4 * 512}, True, 512, 3),
    ]


def test_a_page_has_sixteen_devices_at_most(tmp_path: Path) -> None:
    entries = tuple(pages.Entry(f"{FIRST[:-2]}{number:02x}", GIB) for number in range(17))
    with pytest.raises(ValueError, match="16 devices, not 17"):
        pages.create(str(tmp_path), "c1", entries)
    assert list(tmp_path.iterdir()) == []
    pages.create(str(tmp_path), "c1", entries[:16])
    assert list(pages.quota(str(tmp_path)).limits) == [GIB] * 16
    with pages.OpenQuota(str(tmp_path)) as page:
        page.set_limit(15, 2 * GIB)
    assert list(pages.quota(str(tmp_path)).limits) == [GIB] * 15 + [2 * GIB]


def test_looking_keeps_nothing_open(folder: Path) -> None:
    gc.collect()  # earlier tests may have left some in cycles
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        usage_page.slots(str(folder), 2)
        pages.quota(str(folder))
        with pages.OpenQuota(str(folder)) as page:
            page.set_limit(0, GIB)
    assert os.listdir("/proc/self/fd") == before
    (folder / "quota").write_bytes(b"cut")
    for call in (lambda: pages.quota(str(folder)), lambda: pages.OpenQuota(str(folder))):
        with pytest.raises((OSError, ValueError)):
            call()
    assert os.listdir("/proc/self/fd") == before
