"""Messages to the system's log: one datagram, and never a wait."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from xpu_runtime import messages
from xpu_runtime.ledger.waiting import LedgerError
from xpu_runtime.messages import to_system_log
from xpu_runtime.start import not_started

LINE = re.compile(r"<28>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d xpu-container-runtime\[\d+\]: xpu: (.*)")


@pytest.fixture
def system_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """A daemon's socket in /dev/log's place."""
    path = str(tmp_path / "log")
    monkeypatch.setattr(messages, "_SYSTEM_LOG", path)
    daemon = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    daemon.bind(path)
    daemon.settimeout(10)
    return daemon


def test_a_warning_is_one_line_as_syslog_daemons_read_it(system_log: socket.socket) -> None:
    to_system_log("warning", "container c1:\nits limit\x1b[2J is not enforced")
    match = LINE.fullmatch(system_log.recv(4096).decode())
    assert match
    assert match[1] == "container c1: its limit [2J is not enforced"


def test_a_message_is_no_longer_than_the_standard_allows(system_log: socket.socket) -> None:
    to_system_log("warning", "x" * 100_000)
    assert len(system_log.recv(1 << 20)) == 1024


def test_a_daemon_that_does_not_read_holds_nobody_up(system_log: socket.socket) -> None:
    for _ in range(2000):  # many more than any queue takes (net.unix.max_dgram_qlen)
        to_system_log("warning", "again")


def test_where_nobody_listens_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_SYSTEM_LOG", str(tmp_path / "none"))
    to_system_log("warning", "nobody hears it")


def test_an_error_of_the_ledger_is_in_the_systems_log(
    system_log: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the event of a container that was not started cannot be written."""
    monkeypatch.setenv("XPU_RUN_DIR", str(tmp_path / "run"))
    not_started.note("c" * 64, "/none", LedgerError("the ledger is damaged", "remove\nit"))
    told = system_log.recv(4096).decode()
    assert told.startswith("<27>") and told.endswith(
        "xpu: container cccccccccccc was not started: the ledger is damaged: remove it"
    )
    assert not (tmp_path / "run").exists()
