"""The parent of the start workers, and its handling of workers that hang."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from xpu_runtime import paths, worker
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import proc


def test_workers_that_cannot_be_killed_are_replaced_once(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path
) -> None:
    monkeypatch.setattr(worker, "_ANSWER_S", 0.0)
    monkeypatch.setattr(worker, "_LOOK_S", 0.01)
    ours, theirs = socket.socketpair()
    forks, forked = os.pipe()
    said, saying = os.pipe()

    def fork(listening: socket.socket, agent: int, here: worker.Installation) -> worker._Worker:
        """One that has been at a call since ever."""
        call = worker._Call()
        call.begin(
            "hook",
            [
                "createRuntime",
                '{"id": "c", "bundle": "/b", "status": "creating", "pid": 1, "ociVersion": "1.0"}',
            ],
            "/",
        )
        monkeypatch.setattr(call, "began", lambda: 0.001)
        pid = os.fork()
        if pid == 0:
            select.select([agent], [], [])
            os._exit(0)
        os.write(forked, b".")
        return worker._Worker(pid, call)

    keeper = os.fork()
    if keeper == 0:
        os.dup2(saying, 2)
        ours.close()
        monkeypatch.setattr(worker, "_fork", fork)
        monkeypatch.setattr(os, "kill", lambda *_: None)  # as if they were deep in a driver
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            os._exit(worker.main([str(listening.detach()), str(theirs.fileno()), "2"]))
    theirs.close()
    os.close(forked)
    os.close(saying)
    try:
        lines = b""
        while lines.count(b"\n") < 4:
            lines += os.read(said, 1 << 16)
        assert lines.count(b"hangs and is killed in the middle of a call") == 4
        # A few more looks: those of the second round, which are said once each, get none in their places.
        assert not select.select([said], [], [], 0.3)[0]
    finally:
        ours.close()
        os.waitpid(keeper, 0)
    assert os.read(forks, 64) == b"...."
    with Ledger() as ledger:
        told = [(each.kind, each.container_id, each.text) for each in ledger.history()]
    what = "the process of xpu agent that gave it its slice did not end in 0 s and was killed"
    # Once, of one container.
    assert told == [("failed", "c", f"{what}: does the driver answer?: start the container again")]
    for each in (forks, said):
        os.close(each)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    """A worker's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as found:
        found.bind(str(tmp_path / "socket"))
        found.listen()
        yield found


def ask(listening: socket.socket, run_dir: Path) -> socket.socket:
    """The connection of a hook's process, which the worker has looked at."""
    words = [worker._PROTOCOL, "hook", str(paths.LIB), "", str(run_dir), "/", "poststop", "{}"]
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asking.connect(listening.getsockname())
    asking.send(b"".join(word.encode() + b"\0" for word in words))
    assert asking.recv(16) == worker._READY
    return asking


def test_a_call_needs_its_callers_own_confirmation(run_dir: Path, listening: socket.socket) -> None:
    """A process that only has the connection of the one that was looked at gets nothing."""
    for by_itself in (True, False):
        client = os.fork()
        if client == 0:
            with ask(listening, run_dir) as asking:
                if by_itself or os.fork() == 0:
                    asking.send(worker._GO)
                asking.recv(16)
            os._exit(0)
        connection, _ = listening.accept()
        with connection:
            asked = worker._asked(connection, worker.Installation())
        os.waitpid(client, 0)
        assert (asked and asked[2].pid) == (client if by_itself else None)


def test_a_caller_that_ends_after_its_confirmation_gets_nothing(
    run_dir: Path, listening: socket.socket
) -> None:
    """Another process may have its number by then."""
    looked, go_on = os.pipe()

    class Here(worker.Installation):
        def is_of(self, pid: int) -> bool:
            is_of = super().is_of(pid)
            os.write(go_on, b".")
            os.waitpid(pid, 0)  # it has said go, and ended
            return is_of

    if os.fork() == 0:
        os.close(go_on)
        with ask(listening, run_dir) as asking:
            os.read(looked, 1)
            asking.send(worker._GO)
        os._exit(0)
    connection, _ = listening.accept()
    with connection:
        assert worker._asked(connection, Here()) is None
    os.close(looked)
    os.close(go_on)


@pytest.mark.parametrize(
    ("run_folder", "word", "is_ours"),
    [
        ("/run/xpu", "/bundle", True),
        ("run", "/bundle", False),  # relative to the caller's folder
        ("/run/xpu", "--log=/proc/self/cwd/log", False),
        ("/run/xpu", "/dev/fd/3", False),
    ],
)
def test_paths_that_mean_something_else_to_a_worker_are_left_to_the_caller(
    run_folder: str, word: str, is_ours: bool
) -> None:
    here = worker.Installation()
    here.environment = {"XPU_RUN_DIR": run_folder}
    words = [worker._PROTOCOL, "shim", str(paths.LIB), "", run_folder, "/", word]
    found = worker._caller(words, os.getpid(), proc.start_time(os.getpid()), here)
    assert (found is not None) is is_ours
