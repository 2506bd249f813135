"""The table of events: bounded, in order, and gone with a transaction that is taken back."""

from __future__ import annotations

import sqlite3

import pytest

from xpu_runtime.ledger import events
from xpu_runtime.ledger.events import Event, Part


@pytest.fixture
def db() -> sqlite3.Connection:
    ledger = sqlite3.connect(":memory:", isolation_level=None)
    ledger.execute("CREATE TABLE grants (container_id TEXT)")
    return ledger


def _keep(monkeypatch: pytest.MonkeyPatch, most: int, trimmed_every: int = 1) -> None:
    """So many events, and the names that these need."""
    for bound, number in (("MOST", most), ("TRIMMED_EVERY", trimmed_every), ("_NAMES_TRIMMED_EVERY", 1)):
        monkeypatch.setattr(events, bound, number)


def test_the_oldest_go_first(db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    _keep(monkeypatch, 5)
    assert events.read(db, 0, 0.0) == []  # there is no table yet
    for number in range(12):
        events.record(db, events.REFUSED, f"c{number}", text="x" * 10_000)
    found = events.read(db, 0, 0.0)
    assert [each.container_id for each in found] == [f"c{number}" for number in range(7, 12)]
    assert all(each.text == "x" * 7999 + "…" for each in found)
    assert events.read(db, found[-2].id, 0.0) == found[-1:]
    assert events.read(db, 0, found[-1].time + 1) == []


def test_an_event_that_is_rolled_back_has_not_happened(db: sqlite3.Connection) -> None:
    part = Part("GPU-1", "0", 1 << 30, 30)
    events.record(db, events.DRAINED, "", [part], "fan")
    db.execute("BEGIN")
    events.record(db, events.GRANTED, "c", [part])
    db.execute("ROLLBACK")
    (found,) = events.read(db, 0, 0.0)
    assert (found.kind, found.devices, found.text) == (events.DRAINED, (part,), "fan")


def test_rows_of_another_version_are_read_as_far_as_they_are_known(db: sqlite3.Connection) -> None:
    part = Part("GPU-1", "0", 1 << 30, 30)
    for name in "abc":
        events.record(db, events.GRANTED, name, [part])
    db.execute('UPDATE events SET devices = \'[["GPU-1", "0", 1073741824, 30, {}]]\' WHERE id = 2')
    db.execute("UPDATE events SET devices = '{\"GPU-1\": 30}' WHERE id = 3")
    found = [(each.devices, each.is_whole) for each in events.read(db, 0, 0.0)]
    assert found == [((part,), True), ((part,), True), ((), False)]


def test_a_follower_gets_each_event_once_and_all_of_a_new_ledger(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(last: Event | None, most: int = -1) -> list[str]:
        last_one = (last.id, last.time) if last else (0, 0.0)
        return [each.container_id for each in events.read_on(db, *last_one, most=most)]

    for name in "abcde":
        events.record(db, events.REAPED, name)
    *_, d, e = events.read(db, 0, 0.0)
    assert (names(None), names(d), names(e)) == (list("abcde"), ["e"], [])
    assert (names(None, 2), names(d, 1)) == (["a", "b"], ["e"])
    _keep(monkeypatch, 2)
    for name in "fgh":
        events.record(db, events.REAPED, name)
    assert (names(e), names(e, 1)) == (["g", "h"], ["g"])
    # Numbers begin again: below the last one that was read, and up to it.
    db.execute("DROP TABLE events")
    for name in "stuvwxyz":
        events.record(db, events.REAPED, name)
        assert names(e)[-1] == name and len(names(e)) <= 2


def test_totals_only_grow_whatever_becomes_of_the_rows(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert events.totals(db) == events.Totals({}, {}, {})
    _keep(monkeypatch, 5, trimmed_every=4)
    for number in range(30):
        events.record(db, events.GRANTED, "c")
        assert events.totals(db).kinds == {events.GRANTED: number + 1}
        assert len(events.read(db, 0, 0.0)) < 5 + 4
    for number in range(9):
        events.record(db, events.REFUSED, "c", code="in-use")
        db.execute("BEGIN")
        events.record(db, events.REFUSED, "c", code="in-use")
        db.execute("ROLLBACK")
        expected = {events.GRANTED: 30, events.REFUSED: number + 1}
        assert events.totals(db) == events.Totals(expected, {"in-use": number + 1}, {})


def test_events_of_an_earlier_version_are_counted(db: sqlite3.Connection) -> None:
    events.record(db, events.REFUSED, "c", code="in-use")
    db.execute("DROP TABLE event_totals")
    assert events.totals(db) == events.Totals({events.REFUSED: 1}, {}, {})
    events.record(db, events.REFUSED, "c", code="in-use")
    assert events.totals(db) == events.Totals({events.REFUSED: 2}, {"in-use": 1}, {})


def test_starts_are_counted_by_how_long_they_took(db: sqlite3.Connection) -> None:
    for seconds in (0.004, 0.005, 0.006, 0.0051, 25.0, 26.0):
        events.count_start(db, "hook", seconds)
    events.count_start(db, "spec", 0.2)
    db.execute("BEGIN")
    events.count_start(db, "spec", 0.2)
    db.execute("ROLLBACK")
    found = events.totals(db).starts
    assert found["hook"].numbers == (2, 2, *(0,) * 9, 1, 1)
    assert found["hook"].seconds == pytest.approx(51.0201)
    assert (found["spec"].numbers[5], sum(found["spec"].numbers), found["spec"].seconds) == (1, 1, 0.2)


def test_a_name_stays_as_long_as_an_event_or_a_grant_of_its_container(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    _keep(monkeypatch, 4)
    for name in ("lives", "gone"):
        events.record(db, events.GRANTED, name, name=f"the-{name}")
    db.execute("INSERT INTO grants VALUES ('lives')")
    for number in range(20):
        events.record(db, events.REFUSED, f"c{number}", name=f"n{number}")
    events.record(db, events.RELEASED, "lives")
    told = [(each.container_id, each.name) for each in events.read(db, 0, 0.0)]
    assert told == [("c17", "n17"), ("c18", "n18"), ("c19", "n19"), ("lives", "the-lives")]
    kept = db.execute("SELECT container_id FROM container_names ORDER BY name").fetchall()
    assert ("gone",) not in kept and len(kept) < 10


def test_each_event_has_the_name_of_its_time(db: sqlite3.Connection) -> None:

    def start_and_end(container: str, name: str) -> None:
        events.record(db, events.GRANTED, container, name=name)
        events.record(db, events.RELEASED, container)

    for name in ("web", "db", "db", ""):  # renamed, started again, and another one without a known name
        start_and_end("c", name)
    assert [each.name for each in events.read(db, 0, 0.0)] == ["web", "web", "db", "db", "db", "db", "", ""]
    assert [each.name for each in events.read(db, 3, 0.0, 2)] == ["db", "db"]
    assert len(db.execute("SELECT * FROM container_names").fetchall()) == 3
    start_and_end("plain", "")
    assert events.read(db, 8, 0.0)[0].name is None


def test_while_two_have_one_id_it_is_not_known_which_it_was(db: sqlite3.Connection) -> None:
    events.record(db, events.GRANTED, "one", name="a/one")
    db.execute("INSERT INTO grants VALUES ('one')")
    events.record(db, events.GRANTED, "one", name="b/one")
    events.record(db, events.RELEASED, "one")
    db.execute("DELETE FROM grants")
    events.record(db, events.GRANTED, "one", name="b/one")
    assert [each.name for each in events.read(db, 0, 0.0)] == ["a/one", "", "", "b/one"]


def test_events_of_a_container_with_a_grant_have_its_name(db: sqlite3.Connection) -> None:
    events.record(db, events.GRANTED, "one", name="web")
    db.execute("INSERT INTO grants VALUES ('one')")
    events.record(db, events.FAILED, "one", name="web")
    db.execute("DELETE FROM grants")
    events.record(db, events.RELEASED, "one")
    assert [each.name for each in events.read(db, 0, 0.0)] == ["web", "web", "web"]


def test_names_that_others_took_the_place_of_go_with_their_events(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    _keep(monkeypatch, 4)
    for number in range(20):
        events.record(db, events.GRANTED, "c", name=f"n{number}")
    assert [each.name for each in events.read(db, 0, 0.0)] == ["n16", "n17", "n18", "n19"]
    assert len(db.execute("SELECT * FROM container_names").fetchall()) <= 5


def test_a_ledger_that_an_earlier_version_made_has_events_without_names(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_NAMES_TRIMMED_EVERY", 2)
    for _ in range(3):
        events.record(db, events.RELEASED, "c")
    assert [each.name for each in events.read(db, 0, 0.0)] == [None] * 3
