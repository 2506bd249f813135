"""The event of a container that was not started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from xpu_runtime import messages
from xpu_runtime.ledger.waiting import LedgerError
from xpu_runtime.start import not_started


def test_an_error_of_the_ledger_is_in_the_systems_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XPU_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(messages, "_SYSTEM_LOG", str(tmp_path / "log"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(tmp_path / "log"))
        daemon.setblocking(False)
        not_started.note("c" * 64, "/none", LedgerError("the ledger is damaged", "remove\nit"))
        told = daemon.recv(4096).decode()
    assert told.startswith("<27>") and told.endswith(
        "xpu: container cccccccccccc was not started: the ledger is damaged: remove it"
    )
    assert not (tmp_path / "run").exists()
