"""The ledger on a real file, with real processes: whole grants or none, nothing twice, the dead reaped."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from xpu_runtime.ledger.grants import Holding, Slice, Use
from xpu_runtime.ledger.layout import VERSION
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.ledger.waiting import LedgerError

from .granting import GIB, Process, take, wanted


def test_a_grant_is_read_back_as_it_was_given(path: str, holder: Process) -> None:
    with Ledger(path) as ledger:
        granted, dead = ledger.grant(wanted(holder), lambda uses: take(4 * GIB, uses))
    assert granted is not None
    assert dead == []
    with Ledger(path) as ledger:
        assert ledger.grants() == [granted]
        assert ledger.uses() == {"GPU-0": Use(4 * GIB, 30, 1, False)}
    assert os.stat(path).st_mode & 0o777 == 0o600


def book(path: str, holder: Process, *changes: str) -> None:
    """One grant, and then these changes, as by another version of the runtime."""
    with Ledger(path) as ledger:
        ledger.grant(wanted(holder), lambda uses: take(GIB, uses))
        for change in changes:
            ledger._db.execute(change)


def test_a_missing_folder_is_made_and_a_link_in_the_ledgers_place_refused(path: str, tmp_path: Path) -> None:
    with Ledger(str(tmp_path / "run" / "xpu" / "ledger.db")):
        pass
    assert os.stat(tmp_path / "run" / "xpu").st_mode & 0o777 == 0o755
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(LedgerError, match="Too many levels of symbolic links"), Ledger(path):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_in_the_run_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    path = tmp_path / "run" / "ledger.db"
    with pytest.raises(LedgerError) as caught, Ledger(str(path)):
        pass
    assert str(caught.value) == f"cannot open the ledger {path}: {tmp_path}/run is not a directory"


def test_a_ledger_of_an_earlier_boot_is_not_shown_and_stays(path: str, holder: Process) -> None:
    book(path, holder, "UPDATE meta SET boot = 'earlier'")
    content = Path(path).read_bytes()
    with pytest.raises(LedgerError, match="is not of this boot"), Ledger(path, as_is=True):
        pass
    assert Path(path).read_bytes() == content


def test_a_container_that_asks_twice_is_given_once(path: str, holder: Process) -> None:
    with Ledger(path) as ledger:
        first, _ = ledger.grant(wanted(holder), lambda uses: take(4 * GIB, uses))
        second, _ = ledger.grant(wanted(holder), lambda uses: take(4 * GIB, uses))
        assert first == second
        assert len(ledger.grants()) == 1


def test_a_slice_without_a_cap_counts_to_a_quota_with_all_cores(path: str, holder: Process) -> None:
    slices = tuple(Slice("0", "GPU-0", GIB, True, cores, Holding()) for cores in (30, None))
    with Ledger(path) as ledger:
        ledger.grant(wanted(holder), lambda _: slices, ["a"])
        assert ledger.counted("a") == Use(2 * GIB, 130, 2)


@pytest.mark.parametrize("newer", [0, 1])
def test_another_boots_grants_are_forgotten(path: str, holder: Process, newer: int) -> None:
    book(path, holder, f"UPDATE meta SET boot = 'another boot', version = version + {newer}")
    with Ledger(path) as ledger:
        assert ledger.grants() == []
        # Events stay as long as the run folder does.
        assert [each.kind for each in ledger.history()] == ["granted"]


def assert_kept(path: str) -> None:
    with pytest.raises(LedgerError, match="was written by another version"), Ledger(path):
        pass
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT COUNT(*) FROM grants").fetchone() == (1,)


@pytest.mark.parametrize("layout", [str(VERSION - 1), str(VERSION + 1), str(1 << 62), "'x'"])
def test_another_layout_is_refused_and_kept(path: str, holder: Process, layout: str) -> None:
    book(path, holder, f"UPDATE meta SET version = {layout}")
    assert_kept(path)


@pytest.mark.parametrize("layout", [VERSION - 1, VERSION + 1])
def test_another_layout_whose_containers_have_ended_is_made_anew(
    path: str, holder: Process, layout: int
) -> None:
    column = "ALTER TABLE grants ADD COLUMN what_only_that_version_knows TEXT"
    book(path, holder, column, f"UPDATE meta SET version = {layout}")
    with pytest.raises(LedgerError, match="stop these containers"), Ledger(path):
        pass
    holder.end()
    with Ledger(path) as ledger:
        assert ledger.grants() == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE meta SET pid_namespace = pid_namespace + 1",
        "ALTER TABLE grants RENAME COLUMN pid TO process",
        "INSERT INTO meta SELECT * FROM meta",
    ],
)
def test_another_layout_whose_containers_cannot_be_asked_after_is_kept(
    path: str, holder: Process, change: str
) -> None:
    """They are another PID namespace's, or that version has written them down in another way."""
    book(path, holder, "UPDATE meta SET version = version + 1", change)
    holder.end()
    assert_kept(path)


def test_a_process_with_a_replaced_ledger_of_another_layout_changes_nothing(
    path: str, holder: Process
) -> None:
    with Ledger(path) as old:
        old.grant(wanted(holder), lambda uses: take(GIB, uses))
        holder.end()
        old._db.execute("UPDATE meta SET version = version + 1")
        with Ledger(path) as ledger:
            assert ledger.grants() == []
            with pytest.raises(LedgerError, match="was removed while it was in use"):
                old.release(old.grants())


def test_a_damaged_ledger_grants_nothing_and_says_what_to_do(path: str) -> None:
    Path(path).write_bytes(b"not a database at all" * 100)
    with pytest.raises(LedgerError, match="remove the file"), Ledger(path):
        pass


def test_a_grant_is_bound_to_the_process_and_cgroup_of_its_container_until_it_is_released(
    path: str, holder: Process
) -> None:
    with Ledger(path) as ledger:
        first, _ = ledger.grant(wanted(holder), lambda uses: take(GIB, uses))
        other, _ = ledger.grant(wanted(holder, "c2"), lambda uses: take(GIB, uses))
        assert first is not None and other is not None
        bound = first.replace(pid=1, start_time=2, cgroup="/c", state="running")
        assert ledger.bind(bound)
        assert ledger.grants() == [bound, other]
        for _ in range(2):
            ledger.release([bound])
            assert ledger.grants() == [other]
        assert not ledger.bind(bound)


WRITER = """
import sys
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.ledger.store import Ledger
path, pid, started = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
number = 0
print("ready", flush=True)
while True:
    number += 1
    slices = tuple(Slice(str(n), f"GPU-{n}", 1, True, None, Holding()) for n in range(8))
    with Ledger(path) as ledger:
        wanted = Grant(0, f"c{number}", "/b", pid, started, "", "pending", "hook", 0.0, ())
        ledger.grant(wanted, lambda uses: slices)
"""


def test_kill_at_any_instant_leaves_whole_grants_only(path: str, holder: Process) -> None:
    for delay in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, path, str(holder.pid), str(holder.start_time)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": "src"},
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        # It writes without a pause: wherever the signal meets it is a different instant.
        with Ledger(path) as ledger:
            target = len(ledger.grants()) + delay
            while len(ledger.grants()) < target:
                pass
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        with Ledger(path) as ledger:
            assert all(len(grant.slices) == 8 for grant in ledger.grants())
            rows = ledger._query("SELECT COUNT(*) FROM slices")[0][0]
            assert rows == 8 * len(ledger.grants())
            assert ledger._query("PRAGMA integrity_check") == [("ok",)]


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path, holder: Process) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", small], check=True)
    try:
        path = str(small / "ledger.db")
        with Ledger(path) as ledger:
            ledger.grant(wanted(holder), lambda uses: take(GIB, uses))
        filler = small / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(4096))
        with pytest.raises(LedgerError, match="free space"), Ledger(path) as ledger:
            for number in range(100):
                ledger.grant(wanted(holder, f"x{number}"), lambda uses: take(1, uses))
        filler.unlink()
        with Ledger(path) as ledger:
            assert "c1" in [grant.container_id for grant in ledger.grants()]
            assert all(len(grant.slices) == 1 for grant in ledger.grants())
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_run_folder_that_cannot_be_made_is_told_with_the_variable() -> None:
    with pytest.raises(LedgerError, match="is XPU_RUN_DIR right"), Ledger("/proc/1/x/ledger.db"):
        pass


def test_a_user_other_than_root_is_told_who_may_read_the_ledger(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.db")
    with Ledger(path):
        pass
    program = (
        "import os, sys; from xpu_runtime.ledger.store import Ledger; os.setuid(65534)\n"
        "try: Ledger(sys.argv[1]).__enter__()\n"
        "except Exception as error: print(error)"
    )
    command = [sys.executable, "-c", program, path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == (f"cannot open the ledger {path}: Permission denied: run it as root\n")
