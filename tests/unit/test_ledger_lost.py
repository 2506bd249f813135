"""A ledger that is not what it was: removed, of an earlier layout, made anew from strange records."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from xpu_runtime.ledger import survivors, waiting
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.ledger.waiting import LedgerBusy, LedgerError
from xpu_runtime.linux import cgroups, proc

GIB = 1 << 30
SLICES = (
    Slice("0", "GPU-0", 4 * GIB, True, 30, Holding("driver", "hard", "none", "unenforced")),
    Slice("1:0", "MIG-1", 5 * GIB, False, None, Holding("mig", "hard", "mig", "hard")),
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of the test's own, v2."""
    (mountpoint,) = (each.mountpoint for each in cgroups.mounted() if each.version == 2)
    folder = Path(mountpoint, f"xpu-test-{uuid.uuid4().hex[:16]}")
    folder.mkdir()
    yield folder
    folder.rmdir()


@pytest.fixture
def running(path: str, cgroup: Path) -> Iterator[Grant]:
    """A grant whose process runs in that cgroup, and is written there."""
    with subprocess.Popen(["sleep", "600"]) as process:
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        started = proc.start_time(process.pid) or 0
        wanted = Grant(0, "c1", "/b", process.pid, started, str(cgroup), "running", "hook", 0.0, ())
        with Ledger(path) as ledger:
            granted, _ = ledger.grant(wanted, lambda uses: SLICES)
            assert granted is not None
            survivors.keep(granted, path)
        try:
            yield granted
        finally:
            process.kill()
            process.wait()
            os.rmdir(cgroup)
            cgroup.mkdir()


def test_what_runs_is_written_down_again_as_it_was(path: str, running: Grant) -> None:
    os.unlink(path)
    with Ledger(path) as ledger:
        assert ledger.grants() == [running]
        other, _ = ledger.grant(running.replace(id=0, container_id="c2"), lambda uses: ())
        assert other is not None
        assert other.id > running.id


def test_what_has_ended_is_not(path: str, running: Grant, cgroup: Path) -> None:
    survivors.keep(running.replace(id=7, start_time=running.start_time - 1), path)
    os.unlink(path)
    with Ledger(path) as ledger:
        # As long as anybody is in the cgroup, both may be meant.
        assert [grant.id for grant in ledger.grants()] == [running.id, 7]
    os.kill(running.pid, 9)
    while "populated 0" not in (cgroup / "cgroup.events").read_text():
        pass  # the test's own time limit ends this
    os.unlink(path)
    with Ledger(path) as ledger:
        assert ledger.grants() == []


@pytest.mark.parametrize("record", [b"", b"\xff", b"{", b"[]", b"[1,2,3,4,5]", b"[9]", b'"a"', b"null"])
def test_a_record_that_is_not_ours_is_passed_over(
    path: str, running: Grant, cgroup: Path, record: bytes
) -> None:
    os.setxattr(cgroup, "trusted.xpu.8", record)
    os.setxattr(cgroup, "trusted.other", b"1")
    whole = os.getxattr(cgroup, f"trusted.xpu.{running.id}")
    for end in range(0, len(whole), 7):
        os.setxattr(cgroup, "trusted.xpu.9", whole[:end])
        assert survivors.running(path, proc.pid_namespace()) == [running]


@pytest.mark.parametrize(
    ("field", "value"),
    [(0, [1]), (0, "x"), (0, 1 << 63), (0, -1), (3, "1"), (3, {}), (3, True), (4, 1 << 70), (5, 7), (8, "x")],
)
def test_a_forged_record_is_passed_over(
    path: str, running: Grant, cgroup: Path, field: int, value: object
) -> None:
    record = json.loads(os.getxattr(cgroup, f"trusted.xpu.{running.id}"))
    record[4][field] = value
    os.setxattr(cgroup, "trusted.xpu.8", json.dumps(record).encode())
    os.unlink(path)
    with Ledger(path) as ledger:
        assert ledger.grants() == [running]


@pytest.mark.parametrize(
    ("field", "value"), [(0, 0), (2, "1"), (2, 1 << 63), (2, -1), (3, 1), (4, 1.5), (5, 1)]
)
def test_a_forged_slice_is_passed_over(
    path: str, running: Grant, cgroup: Path, field: int, value: object
) -> None:
    record = json.loads(os.getxattr(cgroup, f"trusted.xpu.{running.id}"))
    record[4][0] = 8
    record[4][9][0][field] = value
    os.setxattr(cgroup, "trusted.xpu.8", json.dumps(record).encode())
    assert survivors.running(path, proc.pid_namespace()) == [running]


def test_a_ledger_is_not_made_anew_from_a_part_of_what_runs(
    path: str, running: Grant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scandir(folder: str) -> object:
        raise OSError(errno.EMFILE, "Too many open files", folder)

    os.unlink(path)
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(LedgerError, match="Too many open files"), Ledger(path):
        pass
    monkeypatch.undo()
    with Ledger(path) as ledger:
        assert ledger.grants() == [running]


def test_a_ledger_that_was_away_for_a_while_learns_what_was_granted_meanwhile(
    path: str, running: Grant, cgroup: Path
) -> None:
    os.rename(path, path + ".away")
    with Ledger(path) as ledger:
        wanted = running.replace(id=0, container_id="c2", bundle="/c")
        later, _ = ledger.grant(wanted, lambda uses: SLICES[:1])
        assert later is not None
        survivors.keep(later, path)
    os.replace(path + ".away", path)
    for _ in range(2):
        with Ledger(path) as ledger:
            assert ledger.grants() == [running, later]


def test_what_was_reaped_is_not_written_any_more(path: str, running: Grant, cgroup: Path) -> None:
    os.kill(running.pid, 9)
    while "populated 0" not in (cgroup / "cgroup.events").read_text():
        pass  # the test's own time limit ends this
    with Ledger(path) as ledger:
        assert ledger.reap() == [running]
    assert os.listxattr(cgroup) == []


def test_what_an_earlier_life_of_a_container_had_is_not_written_any_more(
    path: str, running: Grant, cgroup: Path
) -> None:
    ended = running.replace(id=0, container_id="c2", start_time=running.start_time - 1)
    with Ledger(path) as ledger:
        first, _ = ledger.grant(ended, lambda uses: ())
        assert first is not None
        survivors.keep(first, path)
        second, dead = ledger.grant(running.replace(id=0, container_id="c2"), lambda uses: ())
        assert second is not None
        assert dead == [first]
    assert os.listxattr(cgroup) == [f"trusted.xpu.{running.id}"]


def test_a_grant_that_was_given_up_is_not_written_any_more(path: str, running: Grant) -> None:
    survivors.forget(running)
    survivors.forget(running)
    os.unlink(path)
    with Ledger(path) as ledger:
        assert ledger.grants() == []


def test_what_is_written_into_a_removed_ledger_counts_for_nothing(path: str, running: Grant) -> None:
    with Ledger(path) as ledger:
        os.unlink(path)
        with pytest.raises(LedgerError, match="was removed while it was in use: try again"):
            ledger.grant(running.replace(id=0, container_id="c2"), lambda uses: SLICES)
        with Ledger(path) as anew:
            assert [grant.container_id for grant in anew.grants()] == ["c1"]
            with pytest.raises(LedgerError, match="was removed while it was in use"):
                ledger.bind(running)


def test_a_number_that_is_another_containers_by_now_binds_nothing(path: str, running: Grant) -> None:
    with Ledger(path) as ledger:
        assert not ledger.bind(running.replace(container_id="c2", pid=1))
        assert ledger.grants() == [running]


def test_a_ledger_of_the_first_layout_keeps_its_grants(path: str, running: Grant) -> None:
    survivors.forget(running)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE meta")
        db.execute("CREATE TABLE meta (boot TEXT NOT NULL, version INTEGER NOT NULL)")
        db.execute("INSERT INTO meta VALUES (?, 1)", (proc.boot_id(),))
    db.close()
    for _ in range(2):
        with Ledger(path) as ledger:
            assert ledger.grants() == [running]


def test_all_waits_of_a_process_together_have_one_end(
    path: str, running: Grant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_left", None)
    with Ledger(path) as holder, Ledger(path) as ledger:
        waiting.allow(0.4)
        with holder._transaction():
            for _ in range(2):
                with pytest.raises(LedgerBusy, match="is locked: waited 0 s for a process that cannot be"):
                    ledger.reap()
        assert waiting.left() == 0
        assert ledger.reap() == []  # free: no wait
