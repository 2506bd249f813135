"""The connection that a start worker keeps: never one to another file, or across a fork."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from xpu_runtime.ledger import database
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.sqlite import rows_if_any, sqlite
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import proc


@pytest.fixture(autouse=True)
def keeping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(database, "_keeper", 0)
    monkeypatch.setattr(database, "_kept", None)
    database.keep()
    yield
    if database._kept is not None:
        database._kept[0].close()


def connection(path: str) -> int:
    with Ledger(path) as ledger:
        return id(ledger._db)


def book(path: str, name: str = "c1") -> None:
    pid = os.getpid()
    wanted = Grant(0, name, "/b", pid, proc.start_time(pid) or 0, "", "pending", "hook", 0.0, ())
    with Ledger(path) as ledger:
        assert ledger.grant(wanted, lambda uses: ())[0] is not None


def names(path: str) -> list[str]:
    with Ledger(path) as ledger:
        return [grant.container_id for grant in ledger.grants()]


def test_a_kept_connection_is_used_again_and_sees_others_changes(path: str) -> None:
    book(path)
    first = connection(path)
    child = os.fork()
    if child == 0:
        book(path, "c2")  # by a connection of its own
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert names(path) == ["c1", "c2"]
    assert connection(path) == first


def test_another_file_at_the_path_has_one_of_its_own(path: str, tmp_path: Path) -> None:
    book(path)
    os.rename(path, tmp_path / "away")
    assert names(path) == []
    book(path, "c2")
    os.rename(tmp_path / "away", path)
    with Ledger(path) as ledger:
        assert "c1" in [grant.container_id for grant in ledger.grants()]


def test_a_removed_file_is_made_anew(path: str) -> None:
    book(path)
    os.unlink(path)
    assert names(path) == []
    os.truncate(path, 0)
    assert names(path) == []
    book(path)
    assert names(path) == ["c1"]


def test_none_is_kept_that_something_went_wrong_with_or_whose_file_was_removed_or_replaced(path: str) -> None:
    connection(path)
    with pytest.raises(ValueError, match="wrong"), Ledger(path):
        raise ValueError("wrong")
    assert database._kept is None
    with Ledger(path):
        os.unlink(path)
    assert database._kept is None
    with Ledger(path):
        os.unlink(path)
        Path(path).touch()  # another process makes the next one
    assert database._kept is None


def test_a_table_that_is_not_there_yet_has_no_rows_and_a_wrong_query_is_an_error(path: str) -> None:
    with Ledger(path) as ledger:
        assert rows_if_any(ledger._db, "SELECT * FROM none") == []
        with pytest.raises(sqlite.OperationalError, match="no such column"):
            rows_if_any(ledger._db, "SELECT none FROM meta")


def test_no_connection_is_kept_unless_asked_for(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_keeper", 0)
    connection(path)
    assert database._kept is None


def test_a_second_one_at_the_same_time_is_another(path: str) -> None:
    connection(path)
    with Ledger(path) as one, Ledger(path) as other:
        assert one._db is not other._db
    assert database._kept is not None


def test_it_has_no_lock(path: str) -> None:
    book(path)
    connection(path)
    child = os.fork()
    if child == 0:
        from xpu_runtime.ledger import waiting

        waiting.allow(0.0)
        book(path, "c2")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
