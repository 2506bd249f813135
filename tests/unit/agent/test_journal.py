"""Events that the agent passes on: each once, with fields that no text of a container's can add to."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xpu_runtime import messages
from xpu_runtime.agent import journal
from xpu_runtime.ledger import events, vocabulary
from xpu_runtime.ledger.events import Part
from xpu_runtime.ledger.store import Ledger


@pytest.fixture
def journald(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket that listens in journald's place."""
    monkeypatch.setenv("XPU_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(journal, "_JOURNAL", str(tmp_path / "socket"))
    monkeypatch.setattr(journal, "_SYSLOG", str(tmp_path / "log"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.setblocking(False)
        yield listener


def told(listener: socket.socket) -> list[list[tuple[str, str]]]:
    """The fields of each entry that has come."""
    found: list[list[tuple[str, str]]] = []
    while True:
        try:
            entry = listener.recv(1 << 16).decode()
        except BlockingIOError:
            return found
        assert entry.endswith("\n")
        found.append([(line.partition("=")[0], line.partition("=")[2]) for line in entry.split("\n")[:-1]])


def passed_on(listener: socket.socket) -> list[tuple[str, str]]:
    """The fields of the one entry that an agent passes on."""
    journal.Journal(pytest.fail).look()
    (entry,) = told(listener)
    return entry


def containers(listener: socket.socket) -> list[str]:
    """The ids of containers in the entries that have come."""
    return [dict(entry)["XPU_CONTAINER_ID"] for entry in told(listener)]


def note(kind: str, container: str, *devices: Part, text: str = "", name: str | None = None) -> None:
    with Ledger() as ledger:
        ledger.note(kind, container, devices, text, name=name)


def reap(number: int) -> None:
    with Ledger() as ledger:
        for each in range(number):
            ledger.note(events.REAPED, str(each))


def test_events_while_nobody_listens_are_reported_later(journald: socket.socket, tmp_path: Path) -> None:
    service = journal.Journal(pytest.fail)
    (tmp_path / "socket").rename(tmp_path / "stopped")
    note(events.DRAINED, "", text="fan")
    service.look()
    # Its socket is there again, and it is not yet.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(tmp_path / "socket"))
    service.look()
    (tmp_path / "stopped").rename(tmp_path / "socket")
    service.look()
    assert [dict(entry)["XPU_REASON"] for entry in told(journald)] == ["fan"]


def test_a_containers_name_is_told(journald: socket.socket) -> None:
    note(events.REFUSED, "c" * 64, text="refused: full", name="web")
    entry = passed_on(journald)
    assert ("XPU_CONTAINER_NAME", "web") in entry
    assert dict(entry)["MESSAGE"] == "container cccccccccccc (web) refused: full"


@pytest.mark.parametrize("kept", ["[1e999,0]", "[99999999999999999999999,0]", "[-5,0]", "[]", "x"])
def test_a_broken_note_of_the_last_one_ends_no_agent(
    journald: socket.socket, tmp_path: Path, kept: str
) -> None:
    (tmp_path / "events.told").write_text(kept)
    note(events.GRANTED, "c" * 64)
    journal.Journal(pytest.fail).look()
    assert len(told(journald)) == 1


def test_each_event_is_told_once_also_by_the_next_agent(journald: socket.socket) -> None:
    service = journal.Journal(pytest.fail)
    service.look()
    assert told(journald) == []
    note(events.GRANTED, "c" * 64, Part("GPU-1", "0", 4 << 30, 30), Part("GPU-2", "1", None, None))
    service.look()
    service.look()
    (entry,) = told(journald)
    fields = dict(entry)
    assert fields["MESSAGE"] == "container cccccccccccc granted: GPU-1: 4G, 30% of the cores; GPU-2"
    assert (fields["PRIORITY"], fields["XPU_EVENT"], fields["XPU_CONTAINER_ID"]) == ("6", "granted", "c" * 64)
    assert [value for name, value in entry if name == "XPU_DEVICE"] == ["GPU-1", "GPU-2"]
    assert [value for name, value in entry if name == "XPU_MEMORY_BYTES"] == [str(4 << 30)]
    note(events.REFUSED, "d", text="refused: none left")
    service = journal.Journal(pytest.fail)
    service.look()
    (entry,) = told(journald)
    assert dict(entry)["PRIORITY"] == "4" and dict(entry)["XPU_REASON"] == "refused: none left"
    assert dict(entry)["MESSAGE"] == "container d refused: none left"


def test_an_entry_has_no_field_without_a_value_and_a_zero_is_one(journald: socket.socket) -> None:
    note(events.GRANTED, "c", Part("GPU-1", "0", 0, None), Part("GPU-2", "1", None, 0))
    entry = passed_on(journald)
    assert [
        (name, value) for name, value in entry if name.startswith(("XPU_CONT", "XPU_REAS", "XPU_DEV"))
    ] == [
        ("XPU_CONTAINER_ID", "c"),
        ("XPU_DEVICE", "GPU-1"),
        ("XPU_DEVICE", "GPU-2"),
    ]
    assert ("XPU_MEMORY_BYTES", "0") in entry and ("XPU_CORES", "0") in entry


def test_the_losses_and_the_wrongs_are_warnings(journald: socket.socket) -> None:
    service, priority = journal.Journal(pytest.fail), {}
    for kind in vocabulary.KINDS:
        note(kind, "c")
        service.look()
        (entry,) = told(journald)
        priority[kind] = dict(entry)["PRIORITY"]
    assert {kind for kind, of in priority.items() if of == "4"} == {"refused", "failed", "reaped", "held"}
    assert set(priority.values()) == {"4", "6"}


def test_a_ledger_that_is_made_anew_begins_anew(journald: socket.socket, tmp_path: Path) -> None:
    service = journal.Journal(pytest.fail)
    note(events.DRAINED, "", Part("GPU-1", "0", None, None), text="fan")
    service.look()
    (tmp_path / "ledger.db").unlink()
    note(events.UNDRAINED, "", Part("GPU-1", "0", None, None))
    service.look()
    assert [dict(entry)["MESSAGE"] for entry in told(journald)] == ["drained: GPU-1; fan", "undrained: GPU-1"]


def test_events_in_the_tick_of_a_look_are_reported_and_old_ones_not_read_again(
    journald: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = journal.Journal(pytest.fail)
    note(events.REAPED, "a")
    service.look()
    before = os.stat(tmp_path / "ledger.db")
    note(events.REAPED, "b")
    os.utime(tmp_path / "ledger.db", ns=(before.st_atime_ns, before.st_mtime_ns))
    now = os.stat(tmp_path / "ledger.db")
    assert (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    service.look()
    assert containers(journald) == ["a", "b"]
    os.utime(tmp_path / "ledger.db", (0, 0))
    service.look()
    monkeypatch.setattr(journal, "Ledger", lambda **_: pytest.fail("it is opened again"))
    service.look()


def test_a_text_of_a_container_begins_no_field(journald: socket.socket) -> None:
    note(events.REFUSED, "c\nPRIORITY=0", text="a\nXPU_EVENT=granted\x1b[2J\u2028b")
    entry = passed_on(journald)
    assert [value for name, value in entry if name in ("PRIORITY", "XPU_EVENT")] == ["4", "refused"]
    assert dict(entry)["XPU_REASON"] == "a?XPU_EVENT=granted?[2J?b"


def test_many_are_told_in_several_looks_and_none_is_lost_on_a_node_without_journald(
    journald: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[tuple[str, str]] = []
    monkeypatch.setattr(journal, "_JOURNAL", str(tmp_path / "missing"))
    monkeypatch.setattr(journal, "_SYSLOG", "/dev/null")  # it is there
    monkeypatch.setattr(journal, "send_to_system_log", lambda level, text: lines.append((level, text)))
    reap(450)
    service = journal.Journal(pytest.fail)
    for count in (200, 400, 450, 450):
        service.look()
        assert len(lines) == count
    assert lines[-1] == ("warning", "container 449 reaped")


def test_a_syslog_that_is_away_or_full_is_waited_for(
    journald: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_JOURNAL", str(tmp_path / "missing"))
    monkeypatch.setattr(messages, "_SYSTEM_LOG", str(tmp_path / "log"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(tmp_path / "log"))
    reap(50)
    service = journal.Journal(pytest.fail)
    service.look()
    (tmp_path / "log").unlink()
    found: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "log"))
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        while len(found) < 50:
            service.look()
            try:
                while True:
                    found.append(listener.recv(1 << 16))
            except BlockingIOError:
                pass
    assert [line.split()[-2] for line in found] == [str(number).encode() for number in range(50)]


def test_without_a_reader_of_events_the_ledger_is_read_ever_less_often(
    journald: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a syslog that reads a stream: no datagram reaches it."""
    monkeypatch.setattr(journal, "_JOURNAL", str(tmp_path / "missing"))
    for module, name in ((messages, "_SYSTEM_LOG"), (journal, "_SYSLOG")):
        monkeypatch.setattr(module, name, str(tmp_path / "stream"))
    note(events.REAPED, "a")
    read, clock, log = Ledger.history, [1000.0], list[str]()
    looks: list[float] = []

    def counted(ledger: Ledger, *args: Any, **options: Any) -> Any:
        looks.append(clock[0])
        return read(ledger, *args, **options)

    monkeypatch.setattr(Ledger, "history", counted)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    service = journal.Journal(log.append)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.bind(str(tmp_path / "stream"))
        for _ in range(1000):
            service.look()
            clock[0] += 0.2
    assert len(log) == 1 and "Protocol wrong type" in log[0]
    assert 5 < len(looks) < 15
    assert not (tmp_path / "events.told").exists()
    monkeypatch.setattr(journal, "_JOURNAL", str(tmp_path / "socket"))
    clock[0] += 30
    service.look()
    assert containers(journald) == ["a"]


def test_a_full_queue_is_waited_for(journald: socket.socket) -> None:
    journald.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    reap(600)
    service = journal.Journal(pytest.fail)
    found: list[str] = []
    while len(found) < 600:
        service.look()
        more = containers(journald)
        assert 0 < len(more) < 200
        found += more
    assert found == [str(number) for number in range(600)]


@pytest.mark.parametrize("devices", ["[[1, 2, 3, 4]]", '[{"uuid": "GPU-1"}]', "[[]]", "7", "not JSON"])
def test_a_row_that_cannot_be_read_is_said_once_and_keeps_none_back(
    journald: socket.socket, devices: str
) -> None:
    for name in "abc":
        note(events.REAPED, name)
    with Ledger() as ledger:
        ledger._db.execute("UPDATE events SET devices = ? WHERE container_id = 'b'", (devices,))
    said: list[str] = []
    service = journal.Journal(said.append)
    service.look()
    service.look()
    assert containers(journald) == ["a", "c"]
    assert said == ["event 2 is not passed on to the journal: another version has written it"]
    assert journal._read()[0] == 3


def test_events_lost_before_an_agent_ran_are_reported_once(
    journald: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(events, "MOST", 3)
    monkeypatch.setattr(events, "TRIMMED_EVERY", 1)
    journal.Journal(said.append).look()
    for name in "abcdefgh":
        note(events.REAPED, name)
    service = journal.Journal(said.append)
    service.look()
    assert said == ["5 events are not passed on to the journal: newer ones have taken their places"]
    for name in "ijklm":
        note(events.REAPED, name)
    journal.Journal(said.append).look()
    assert containers(journald) == list("fghklm")
    assert said[1:] == ["2 events are not passed on to the journal: newer ones have taken their places"]
    (tmp_path / "ledger.db").unlink()
    note(events.REAPED, "n")
    journal.Journal(said.append).look()
    assert len(told(journald)) == 1 and len(said) == 2
