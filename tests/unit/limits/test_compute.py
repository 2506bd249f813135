"""The compute words of a grant's pages, as the agent reads and writes them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from xpu_runtime.limits import compute, pages
from xpu_runtime.limits.compute import GrantPages, unpack

UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"


def made(folder: Path, sched: str = "burst", priority: str = "low") -> GrantPages:
    entries = (
        pages.Entry(UUID, None, cores=30, sched=sched, priority=priority),
        pages.Entry(UUID.replace("0011", "1111"), None),
    )
    pages.create(str(folder), "box", entries)
    return GrantPages(str(folder))


def write(folder: Path, position: int, *words: int) -> None:
    """Writes as a process of the container: used, waits, guesses."""
    with open(folder / pages.USAGE, "r+b", buffering=0) as page:
        os.pwrite(page.fileno(), struct.pack(f"<{len(words)}Q", *words), 2048 + position * 128 + 16)


def test_caps_and_policies_are_read_as_they_were_written(tmp_path: Path) -> None:
    grant = made(tmp_path)
    assert grant.container == "box"
    first, second = grant.slices
    assert (first.cap, first.policy) == (3000, (1, 1))
    terms = first.terms()
    assert (second.cap, second.policy) == (0, (0, 0))
    assert first.uuid == pages.raw_uuid(UUID)
    with pages.OpenQuota(str(tmp_path)) as quota:
        quota.set_cores(0, 60)
        quota.set_policy(0, "weight", "high")
    assert (first.cap, first.policy) == (6000, (2, 2))
    assert terms != first.terms()
    grant.close()


def test_a_containers_values_are_seen_at_the_next_look(tmp_path: Path) -> None:
    grant = made(tmp_path)
    before = grant.slices[1].look()
    assert unpack(before) == (0, 0)
    write(tmp_path, 1, 7, 8, 9)
    assert unpack(grant.slices[1].look()) == (7, 8)
    assert grant.slices[0].look() == before
    grant.close()


def test_a_share_is_written_where_the_container_reads_it(tmp_path: Path) -> None:
    grant = made(tmp_path)
    grant.slices[1].adjust(5 << compute.ROUND_SHIFT | 2500)
    content = (tmp_path / pages.QUOTA).read_bytes()
    assert struct.unpack_from("<Q", content, 2048 + 64 + 16)[0] == 5 << 32 | 2500
    assert grant.slices[1].adjusted == (5, 2500)
    assert pages.quota(str(tmp_path)).valid
    grant.close()


def test_a_usage_page_that_was_cut_is_no_news_and_no_signal(tmp_path: Path) -> None:
    grant = made(tmp_path)
    os.truncate(tmp_path / pages.USAGE, 100)
    assert grant.slices[0].look() == b""
    with pytest.raises(ValueError, match="the usage page was cut"):
        unpack(grant.slices[0].look())
    grant.close()


def test_a_quota_page_that_was_cut_has_no_cap_and_is_no_signal(tmp_path: Path) -> None:
    grant = made(tmp_path)
    first = grant.slices[0]
    assert not grant.is_cut
    os.truncate(tmp_path / pages.QUOTA, 0)
    assert grant.is_cut
    first.adjust(5 << compute.ROUND_SHIFT | 2500)
    assert (first.terms(), first.cap, first.policy, first.adjusted) == ((0, 0), 0, (0, 0), (0, 0))
    grant.close()


def test_a_page_of_another_version_is_not_read(tmp_path: Path) -> None:
    made(tmp_path).close()
    with open(tmp_path / pages.QUOTA, "r+b", buffering=0) as page:
        os.pwrite(page.fileno(), struct.pack("<I", pages.ABI + 1), 8)
    with pytest.raises(ValueError, match="another version"):
        GrantPages(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"XPUQUOTA"], ids=["empty", "cut"])
def test_a_file_that_is_no_quota_page_is_not_read(tmp_path: Path, content: bytes) -> None:
    made(tmp_path).close()
    (tmp_path / pages.QUOTA).write_bytes(content)
    with pytest.raises(ValueError, match="is not a quota page"):
        GrantPages(str(tmp_path))
