"""Waiting for the ledger's lock: one deadline for all waits, and the name of its holder."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing

import pytest

from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.ledger.waiting import LedgerBusy, LedgerError
from xpu_runtime.linux import files, lock_holders


def test_all_waits_of_a_process_together_have_one_end(path: str, ledger: Ledger) -> None:
    with Ledger(path) as holder:
        waiting.allow(0.2)
        with holder._transaction():
            for _ in range(2):
                with pytest.raises(LedgerBusy, match=r"is locked: waited \d+ s for a process that cannot"):
                    ledger.reap()
        assert waiting.left() == 0
        assert ledger.reap() == []  # free: no wait


def test_a_caller_that_may_not_wait_does_not_look_for_the_holder_either(
    path: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_holders, "of", lambda *_: pytest.fail("all processes are looked through"))
    waiting.allow(0.0)
    with files.Lock(path + ".lock"), pytest.raises(LedgerBusy, match="is locked just now"):
        ledger.reap()


def test_only_the_time_waited_is_spent(ledger: Ledger) -> None:
    waiting.allow(1000)
    for _ in range(3):
        ledger.reap()
        # SQLite has what is left then, in milliseconds.
        assert 900_000 < ledger._query("PRAGMA busy_timeout")[0][0] < 1_000_000
    assert 900 < waiting.left() < 1000


def test_a_start_and_the_end_of_the_container_that_failed_take_less_than_a_minute() -> None:
    assert waiting.STOP_S < 10
    assert 2 * waiting.START_S + waiting.STOP_S < 60


def test_the_holder_of_the_lock_is_named(path: str, ledger: Ledger) -> None:
    code = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.flock(f, 2); print(flush=True); input()"
    command = [sys.executable, "-c", code, path + ".lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"\n"
        waiting.allow(0.1)
        with pytest.raises(LedgerBusy) as caught:
            ledger.reap()
        holder.kill()
    assert str(caught.value).startswith(f"the ledger {path} is locked: waited ")
    assert f" s for process {holder.pid} ({sys.executable} -c import fcntl" in str(caught.value)
    assert str(caught.value).endswith(f": if it hangs, end it: kill -9 {holder.pid}")


def test_a_program_that_does_not_know_the_lock_file_is_waited_for_too(path: str, ledger: Ledger) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting.allow(0.6)
        with pytest.raises(LedgerBusy, match=r"is locked: waited [1-9]\d* s"):
            ledger.reap()
        assert waiting.left() == 0
        assert ledger.grants() == []  # a reader does not wait
        other.execute("ROLLBACK")
    assert ledger.reap() == []


def test_a_reader_waits_for_a_change_that_is_being_written(path: str) -> None:
    waiting.allow(0.1)
    with Ledger(path) as ledger, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for read in (ledger.grants, ledger.uses, ledger.is_own):
            with pytest.raises(LedgerBusy, match="is locked"):
                read()
        other.execute("ROLLBACK")
        assert ledger.is_own()


GRANT = Grant(1, "c1", "/b", os.getpid(), 0, "", "running", "hook", 0.0, ())
CHANGES: list[Callable[[Ledger], object]] = [
    lambda ledger: ledger.grant(GRANT, lambda uses: ()),
    lambda ledger: ledger.bind(GRANT),
    lambda ledger: ledger.resize(1, lambda grant, uses: {}),
    lambda ledger: ledger.release([GRANT]),
    lambda ledger: ledger.reap(),
    lambda ledger: ledger.require_own(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_transaction_that_cannot_begin_leaves_the_lock_to_others(
    path: str, ledger: Ledger, change: Callable[[Ledger], object]
) -> None:
    ledger._db.execute("BEGIN")
    with pytest.raises(LedgerError) as caught:
        change(ledger)
    assert str(caught.value) == (
        f"cannot write the ledger {path}: cannot start a transaction within a transaction"
    )
    with open(path + ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_ledger_that_was_removed_leaves_the_lock_to_others(path: str, ledger: Ledger) -> None:
    os.unlink(path)
    with pytest.raises(LedgerError, match="was removed"):
        ledger.reap()
    with open(path + ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
