"""The process that starts the one that serves metrics: it goes on, whatever fails."""

from __future__ import annotations

import errno
import os
import socket
from typing import NoReturn

import pytest

from xpu_runtime.agent import metrics_service
from xpu_runtime.config.defaults import DEFAULTS


def test_where_no_process_can_be_started_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    fork = os.fork
    failures = [OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)), OSError(errno.ENOMEM, "no memory")]

    def fail_first() -> int:
        if failures:
            raise failures.pop(0)
        return fork()

    def say(text: str) -> None:
        theirs.send(text.encode() + b"\n")

    def serve(*_: object) -> NoReturn:
        say("serves")
        os._exit(0)

    parent = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        monkeypatch.setattr(metrics_service, "_serve", serve)
        monkeypatch.setattr(metrics_service, "keep_only", lambda: None)
        monkeypatch.setattr(metrics_service, "_AGAIN_S", 0.0)
        monkeypatch.setattr(os, "fork", fail_first)
        ours.close()
        metrics_service._keep(DEFAULTS, lambda: lambda kind: kind, say, parent)
    theirs.close()
    lines = b""
    while b"has ended" not in lines:
        piece = ours.recv(1 << 16)
        assert piece, lines
        lines += piece
    os.kill(keeper, 9)
    os.waitpid(keeper, 0)
    told = [line.partition(";")[0] for line in lines.decode().splitlines()]
    assert told[:3] == [
        "what serves metrics cannot be started: Resource temporarily unavailable",
        "what serves metrics cannot be started: no memory",
        "serves",
    ]
    ours.close()
