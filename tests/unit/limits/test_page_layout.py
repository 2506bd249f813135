"""What surrounds the bytes of the pages: modes, the number of devices, open files.

tests/unit/native has the layout, from C."""

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


def test_every_user_of_the_container_writes_the_one_page_and_only_reads_the_other(folder: Path) -> None:
    modes = [(folder / name).stat().st_mode & 0o777 for name in ("usage", "quota")]
    assert modes == [0o666, 0o644]


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
