"""A ledger that was lost: removed, of another boot, made anew from strange records."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xpu_runtime.ledger import cgroup_records
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.ledger.waiting import LedgerError
from xpu_runtime.linux import cgroups, proc

GIB = 1 << 30
SLICES = (
    Slice("0", "GPU-0", 4 * GIB, True, 30, Holding("driver", "hard", "none", "unenforced")),
    Slice("1:0", "MIG-1", 5 * GIB, False, None, Holding("mig", "hard", "mig", "hard")),
)


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
        try:
            (cgroup / "cgroup.procs").write_text(str(process.pid))
            started = proc.start_time(process.pid) or 0
            wanted = Grant(0, "c1", "/b", process.pid, started, str(cgroup), "running", "hook", 0.0, ())
            with Ledger(path) as ledger:
                granted, _ = ledger.grant(wanted, lambda uses: SLICES)
                assert granted is not None
                cgroup_records.keep(granted, path, proc.this_process())
            yield granted
        finally:
            process.kill()
            process.wait()
            os.rmdir(cgroup)
            cgroup.mkdir()


def end(running: Grant, cgroup: Path) -> None:
    os.kill(running.pid, 9)
    while "populated 0" not in (cgroup / "cgroup.events").read_text():
        pass  # the test's own time limit ends this


def test_grants_of_running_containers_are_entered_again_as_they_were(path: str, running: Grant) -> None:
    os.unlink(path)
    with Ledger(path) as ledger:
        assert ledger.grants() == [running]
        other, _ = ledger.grant(running.replace(id=0, container_id="c2"), lambda uses: ())
        assert other is not None
        assert other.id > running.id


def test_a_record_has_the_grants_quotas_and_pod_until_it_is_given_up(path: str, running: Grant) -> None:
    pod = ("uid-1", "main")
    for quotas, of_pod in ((["team-a"], None), (["team-a"], pod), ([], pod)):
        cgroup_records.keep(running, path, proc.this_process(), quotas, of_pod)
        assert cgroup_records.counts_to(running) == (quotas, of_pod)
    for content in (b"pod:,team-a", b"pod:/main,team-a", b"pod:uid-1/,team-a", b"team-a,\xff"):
        os.setxattr(running.cgroup, f"trusted.xpu-quotas.{running.id}", content)
        assert cgroup_records.counts_to(running)[1] is None
    for _ in range(2):
        cgroup_records.forget(running)
        assert cgroup_records.counts_to(running) == ([], None)
        assert [name for name in os.listxattr(running.cgroup) if "xpu" in name] == []
    os.unlink(path)
    with Ledger(path) as ledger:
        assert ledger.grants() == []


def test_grants_of_ended_containers_are_not_entered_again(path: str, running: Grant, cgroup: Path) -> None:
    cgroup_records.keep(running.replace(id=7, start_time=running.start_time - 1), path, proc.this_process())
    os.unlink(path)
    with Ledger(path) as ledger:
        # As long as anybody is in the cgroup, both may be meant.
        assert [grant.id for grant in ledger.grants()] == [running.id, 7]
    end(running, cgroup)
    os.unlink(path)
    with Ledger(path) as ledger:
        assert ledger.grants() == []


@pytest.mark.parametrize("record", [b"", b"\xff", b"{", b"[]", b"[1,2,3,4,5]", b"[1,2,[]]", b'"a"', b"null"])
def test_a_record_that_is_not_ours_is_passed_over(
    path: str, running: Grant, cgroup: Path, record: bytes
) -> None:
    os.setxattr(cgroup, "trusted.xpu.8", record)
    os.setxattr(cgroup, "trusted.other", b"1")
    whole = os.getxattr(cgroup, f"trusted.xpu.{running.id}")
    for end in range(0, len(whole), 7):
        os.setxattr(cgroup, "trusted.xpu.9", whole[:end])
        assert cgroup_records.running(path, proc.pid_namespace()) == [running]


FORGED_GRANTS: list[tuple[Any, object]] = [
    *((0, [1]), (0, "x"), (0, 1 << 63), (0, -1), (3, "1"), (3, {}), (3, True)),
    *((4, 1 << 70), (5, 7), (8, "x")),
]
FORGED_SLICES: list[tuple[Any, object]] = [
    *((0, 0), (2, "1"), (2, 1 << 63), (2, -1), (3, 1), (4, 1.5), (5, 1)),
    (slice(5, None), []),  # it names no holder
]


@pytest.mark.parametrize(
    ("of_slice", "field", "value"),
    [*((False, *each) for each in FORGED_GRANTS), *((True, *each) for each in FORGED_SLICES)],
)
def test_a_forged_record_is_passed_over(
    path: str, running: Grant, cgroup: Path, of_slice: bool, field: Any, value: object
) -> None:
    record = json.loads(os.getxattr(cgroup, f"trusted.xpu.{running.id}"))
    grant = record[4]
    grant[0] = 8
    (grant[9][0] if of_slice else grant)[field] = value
    os.setxattr(cgroup, "trusted.xpu.8", json.dumps(record).encode())
    assert cgroup_records.running(path, proc.pid_namespace()) == [running]


@pytest.mark.parametrize("call", ["scandir", "listxattr", "getxattr"])
def test_a_ledger_is_not_made_anew_from_a_part_of_the_running_grants(
    path: str, running: Grant, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(folder: str, *_: str) -> object:
        raise OSError(errno.EMFILE, "Too many open files", folder)

    os.unlink(path)
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(LedgerError, match="Too many open files"), Ledger(path):
        pass
    monkeypatch.undo()
    with Ledger(path) as ledger:
        assert ledger.grants() == [running]


def test_records_of_another_ledger_are_passed_over(path: str, running: Grant, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert cgroup_records.running(str(tmp_path / "other" / "ledger.db"), proc.pid_namespace()) == []


def test_a_ledger_is_not_made_anew_if_another_version_has_started_running_containers(
    path: str, running: Grant, cgroup: Path, tmp_path: Path
) -> None:
    record = json.loads(os.getxattr(cgroup, f"trusted.xpu.{running.id}"))
    newer = [record[0] + 1, record[1], "what only that version knows"]
    os.setxattr(cgroup, f"trusted.xpu.{running.id}", json.dumps(newer).encode())
    os.unlink(path)
    with (
        pytest.raises(LedgerError, match=f"the container in {cgroup} got its slice from another"),
        Ledger(path),
    ):
        pass
    # Another ledger's, or of a container that has ended.
    (tmp_path / "other").mkdir()
    assert cgroup_records.running(str(tmp_path / "other" / "ledger.db"), proc.pid_namespace()) == []
    end(running, cgroup)
    with Ledger(path) as ledger:
        assert ledger.grants() == []


def test_a_ledger_is_not_made_anew_if_running_containers_were_granted_elsewhere(
    path: str, running: Grant, cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.unlink(path)
    monkeypatch.setattr(proc, "pid_namespace", lambda: 1)
    with (
        pytest.raises(LedgerError, match="container c1 got its slice from another PID namespace"),
        Ledger(path),
    ):
        pass
    # A folder of that name on another file system is another ledger's.
    name = f"trusted.xpu.{running.id}"
    whole = os.getxattr(cgroup, name)
    record = json.loads(whole)
    record[2] += 1
    os.setxattr(cgroup, name, json.dumps(record).encode())
    assert cgroup_records.running(path, 1) == []
    # Nothing is left of an ended container.
    os.setxattr(cgroup, name, whole)
    end(running, cgroup)
    assert cgroup_records.running(path, 1) == []


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("scandir", errno.ENOENT),
        ("listxattr", errno.ENODEV),
        ("listxattr", errno.ENOTSUP),
        ("getxattr", errno.ENODATA),
    ],
)
def test_a_container_that_ends_meanwhile_is_no_error(
    path: str, running: Grant, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def gone(folder: str, *_: str) -> object:
        raise OSError(number, "gone", folder)

    monkeypatch.setattr(os, call, gone)
    assert cgroup_records.running(path, proc.pid_namespace()) == []


@pytest.mark.parametrize(
    ("version", "controllers", "found"),
    [(2, (), True), (1, ("cpu", "devices"), True), (1, ("cpu", "memory"), False)],
)
def test_which_hierarchies_are_looked_through(
    path: str,
    running: Grant,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    controllers: tuple[str, ...],
    found: bool,
) -> None:
    there = cgroups.Hierarchy(version, controllers, "/", running.cgroup)
    monkeypatch.setattr(cgroups, "mounted", lambda: [there])
    assert cgroup_records.running(path, proc.pid_namespace()) == ([running] if found else [])


@pytest.mark.parametrize(("own", "written"), [("/engine", True), (None, True), ("same", False)])
def test_a_grant_is_not_recorded_on_the_granting_processs_cgroup(
    path: str,
    running: Grant,
    cgroup: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str | None,
    written: bool,
) -> None:
    """Where no limit names a folder it is that of the container's process, if that has one of its own."""
    folders = {running.pid: str(cgroup), os.getpid(): str(cgroup) if own == "same" else own}
    monkeypatch.setattr(cgroups, "devices_folder_v1", folders.__getitem__)
    cgroup_records.forget(running)
    cgroup_records.keep(running.replace(cgroup=""), path, proc.this_process())
    assert os.listxattr(cgroup) == [f"trusted.xpu.{running.id}"] * written
    cgroup_records.forget(running.replace(cgroup=""))
    assert os.listxattr(cgroup) == []


def test_nothing_is_written_on_the_cgroup_in_which_a_dead_process_is(
    path: str, running: Grant, cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On v1 that is the root, which always has processes: the grant would never end."""
    cgroup_records.forget(running)
    os.kill(running.pid, 9)
    while proc.is_alive(running.pid, running.start_time):
        pass  # the test's own time limit ends this
    monkeypatch.setattr(cgroups, "devices_folder_v1", {running.pid: str(cgroup), os.getpid(): "/e"}.get)
    cgroup_records.keep(running.replace(cgroup=""), path, proc.this_process(), ["team-a"])
    assert os.listxattr(cgroup) == []


def test_a_ledger_that_was_away_for_a_while_learns_of_later_grants(
    path: str, running: Grant, cgroup: Path
) -> None:
    os.rename(path, path + ".away")
    with Ledger(path) as ledger:
        wanted = running.replace(id=0, container_id="c2", bundle="/c")
        later, _ = ledger.grant(wanted, lambda uses: SLICES[:1])
        assert later is not None
        cgroup_records.keep(later, path, proc.this_process())
    os.replace(path + ".away", path)
    for _ in range(2):
        with Ledger(path) as ledger:
            assert ledger.grants() == [running, later]


def change(path: str, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def copy(path: str) -> None:
    shutil.copy(path, path + ".copy")
    os.rename(path + ".copy", path)


@pytest.mark.parametrize(
    "lose",
    [
        lambda path: None,
        os.unlink,
        copy,
        lambda path: os.truncate(path, 0),
        lambda path: os.truncate(path + ".lock", 0),
        lambda path: change(path, "DELETE FROM meta"),
        lambda path: change(path, "UPDATE meta SET boot = 'another boot'"),
    ],
)
def test_running_containers_are_searched_once_for_each_new_ledger(
    path: str, running: Grant, lose: Callable[[str], None]
) -> None:
    lose(path)
    with Ledger(path) as ledger:
        assert ledger.grants() == [running]
    cgroup_records.keep(running.replace(id=8), path, proc.this_process())
    with Ledger(path) as ledger:
        assert ledger.grants() == [running]


def test_a_reaped_grant_leaves_no_record(path: str, running: Grant, cgroup: Path) -> None:
    end(running, cgroup)
    with Ledger(path) as ledger:
        assert ledger.reap() == [running]
    assert os.listxattr(cgroup) == []


def test_the_grant_of_a_containers_earlier_life_leaves_no_record(
    path: str, running: Grant, cgroup: Path
) -> None:
    ended = running.replace(id=0, container_id="c2", start_time=running.start_time - 1)
    with Ledger(path) as ledger:
        first, _ = ledger.grant(ended, lambda uses: ())
        assert first is not None
        cgroup_records.keep(first, path, proc.this_process())
        second, dead = ledger.grant(running.replace(id=0, container_id="c2"), lambda uses: ())
        assert second is not None
        assert dead == [first]
    assert os.listxattr(cgroup) == [f"trusted.xpu.{running.id}"]


def test_entries_in_a_removed_ledger_do_not_count(path: str, running: Grant) -> None:
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


def test_a_cgroup_that_cannot_be_asked_is_named(
    path: str, cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = os.listxattr

    def fail(folder: str) -> list[str]:
        if folder == str(cgroup):
            raise OSError(errno.EIO, os.strerror(errno.EIO), folder)
        return ask(folder)

    monkeypatch.setattr(os, "listxattr", fail)
    with pytest.raises(LedgerError, match=f"cannot open the ledger {path}: {cgroup}: Input/output error"):
        Ledger(path).__enter__()
