"""The line that says whose limit refused an allocation: once a process, and never to the program's harm."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import MIB

from .accounts import LINEAR, Account, Make, Process

LINE = (
    "xpu: out of memory by this container's limit, not the card's: 2.5 MiB requested, 1.5 MiB free of the "
    "2 MiB of its slice of GPU 0 (XPU_LOG=off hides this line)\n"
)
TEST_WAIT = 10


def ask(process: Process, *words: object) -> str:
    """`xpu_memory_refused(0, 2.5 MiB)` in a process that holds half a MiB of two."""
    return answer(process, *words, "refused", 0, 5 * MIB // 2)


def answer(process: Process, *words: object) -> str:
    """The answer to a command. A line may have stopped the process, or it may wait for a reader."""
    assert process.popen.stdin and process.popen.stdout
    process.popen.stdin.write(" ".join(map(str, words)) + "\n")
    assert select.select([process.popen.stdout], [], [], TEST_WAIT)[0], "no answer"
    return str(process.popen.stdout.readline()).rstrip("\n")


@pytest.fixture
def here(account: Make) -> Account:
    return account(2 * MIB)


def holder(here: Account, **options: Any) -> Process:
    process = here.start(**options)
    assert answer(process, "charge", 0, LINEAR, MIB // 2) == "1"
    return process


def told(process: Process) -> str:
    """The process's stderr, at its end."""
    assert process.popen.stdin and process.popen.stderr
    process.popen.stdin.close()
    text: str = process.popen.stderr.read()
    assert process.popen.wait(TEST_WAIT) == 0
    return text


@pytest.fixture(params=["pipe", "file", "socket"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, Callable[[], str]]]:
    """A stderr of each kind that engines give, and a function that reads it."""
    if request.param == "pipe":
        source, sink = os.pipe()
    elif request.param == "file":
        sink = os.open(tmp_path / "stderr", os.O_WRONLY | os.O_CREAT)
        source = os.open(tmp_path / "stderr", os.O_RDONLY)
    else:
        pair = socket.socketpair()
        source, sink = (end.detach() for end in pair)
    os.set_blocking(source, False)
    yield sink, lambda: os.read(source, 4096).decode()
    os.close(source)
    os.close(sink)


def test_the_limit_is_named_once_a_process(here: Account, output: tuple[int, Callable[[], str]]) -> None:
    sink, text = output
    process = holder(here, stderr=sink)
    assert [ask(process), ask(process)] == ["1", "1"]
    assert text() == LINE
    # A child prints its own line.
    assert ask(process, "fork") == "1"
    assert text() == LINE


def test_an_allocation_that_fits_is_not_refused_by_the_limit(here: Account) -> None:
    process = holder(here, stderr=subprocess.PIPE)
    process.ask("refused", 0, MIB)
    assert told(process) == ""


@pytest.mark.parametrize("size", [0, 1])
def test_the_line_also_comes_for_an_account_above_its_limit(here: Account, size: int) -> None:
    """A module's size is not known before it is loaded. After `xpu set --force` nothing fits."""
    process = holder(here, stderr=subprocess.PIPE)
    here.set_limit(MIB // 4)
    process.ask("refused", 0, size)
    assert "0 MiB free of the 0.2 MiB of its slice" in told(process)


def test_the_line_can_be_hidden(here: Account, tmp_path: Path) -> None:
    silent = holder(here, stderr=subprocess.PIPE, env={"XPU_LOG": "off"})
    assert ask(silent) == "1"
    assert told(silent) == ""


def test_the_same_line_is_not_printed_twice(here: Account, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = holder(here, stderr=subprocess.PIPE, env={"XPU_LOG": "debug"})
    assert [ask(process), ask(process)] == ["1", "1"]
    text = told(process)
    assert "out of memory" not in text
    lines = [line for line in text.splitlines() if "refused" in line]
    assert lines == [f"xpu[{process.popen.pid}]: device 0: refused 2.5 MiB: 1.5 MiB free of 2 MiB"] * 2
    process.kill()
    filed = holder(here, stderr=subprocess.PIPE, env={"XPU_LOG": f"debug:{log}"})
    ask(filed)
    assert f"xpu[{filed.popen.pid}]: device 0: refused 2.5 MiB: 1 MiB free of 2 MiB" in log.read_text()
    assert told(filed).startswith("xpu: out of memory by this container's limit")


def test_a_closed_reader_does_not_end_the_program(here: Account) -> None:
    process = holder(here, stderr=subprocess.PIPE)
    assert process.popen.stderr
    process.popen.stderr.close()
    assert ask(process) == "1"
    # The quota page's line and the debug log do not end it either, and the signal is not left pending.
    answer(process, "refuse", "because")
    assert answer(process, "used", 0) == str(MIB // 2)
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    pending = [line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    assert pending == ["0" * 16] * 2


@pytest.mark.parametrize("kind", ["pipe", "socket", "fifo"])
def test_a_reader_that_has_stopped_does_not_stop_the_program(
    here: Account, kind: str, tmp_path: Path
) -> None:
    if kind == "socket":
        source, sink = (end.detach() for end in socket.socketpair())
    else:
        source, sink = os.pipe()
    os.set_blocking(sink, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(sink, b"x" * 4096)
    os.set_blocking(sink, True)
    log = {}
    if kind == "fifo":  # a log without a reader
        os.mkfifo(tmp_path / "log")
        log = {"XPU_LOG": f"debug:{tmp_path / 'log'}"}
    process = holder(here, stderr=sink, env=log)
    assert ask(process) == "1"
    answer(process, "refuse", "because")
    assert answer(process, "used", 0) == str(MIB // 2)
    os.close(source)
    os.close(sink)


@pytest.mark.parametrize("way", ["data", "append", "close-on-exec"])
def test_a_file_of_the_programs_own_with_number_2_gets_no_line(
    here: Account, tmp_path: Path, way: str
) -> None:
    process = holder(here, stderr=subprocess.PIPE)
    data = tmp_path / "data"
    assert process.ask("stderr", way, data) == "2"
    assert ask(process) == "1"
    answer(process, "refuse", "because")
    lines = [LINE, "xpu: the device is refused: because\n"] if way == "append" else []
    assert data.read_text() == "".join(lines)


def test_a_pipe_of_the_programs_own_gets_no_line(here: Account, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    source = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    process = holder(here, stderr=subprocess.PIPE)
    assert process.ask("stderr", "data", tmp_path / "pipe") == "2"
    assert ask(process) == "1"
    with pytest.raises(BlockingIOError):
        os.read(source, 100)
    os.close(source)


def test_a_file_or_connection_that_had_number_2_before_the_library_was_loaded_gets_no_line(
    here: Account, tmp_path: Path
) -> None:
    with (
        (tmp_path / "data").open("w+") as file,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as peer,
    ):
        for opened in (file, client):
            process = holder(here, stderr=opened)
            assert ask(process) == "1"
            answer(process, "refuse", "because")
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.recv(100)
    assert (tmp_path / "data").read_text() == ""


def test_a_closed_stderr_is_no_error(here: Account) -> None:
    process = holder(here, preexec_fn=lambda: os.close(2))
    assert [ask(process), answer(process, "refuse", "because")] == ["1", "ok"]


def test_a_background_program_is_not_stopped_by_its_terminal(here: Account) -> None:
    """With `stty tostop` a write from the background sends SIGTTOU, which stops all of the job."""
    master, slave = os.openpty()
    subprocess.run(["stty", "tostop"], stdin=slave, check=True)
    code = (
        "import fcntl, os, sys, termios\n"
        "fcntl.ioctl(2, termios.TIOCSCTTY, 0)\n"
        "if os.fork(): os.wait(); sys.exit()\n"
        "os.setpgid(0, 0); os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    process = here.start("/usr/bin/python3", "-c", code, stderr=slave)
    assert answer(process, "charge", 0, LINEAR, MIB // 2) == "1"
    assert ask(process) == "1"
    assert select.select([master], [], [], TEST_WAIT)[0], "no line"
    assert os.read(master, 4096).decode().replace("\r", "") == LINE
    os.close(slave)
    os.close(master)


@pytest.mark.parametrize("of", ["thread", "process"])
def test_pending_signals_of_the_program_stay_pending(here: Account, of: str) -> None:
    """The kernel adds the write's own signal to those of the thread, of which one can pend for each
    number."""
    process = holder(here, stderr=subprocess.PIPE, preexec_fn=_sigpipe_pending if of == "thread" else _block)
    assert process.popen.stderr
    process.popen.stderr.close()
    if of == "process":
        process.popen.send_signal(signal.SIGPIPE)
    assert ask(process) == "1"
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    name = "SigPnd" if of == "thread" else "ShdPnd"
    (pending,) = (line.split()[1] for line in status.splitlines() if line.startswith(name))
    assert int(pending, 16) == 1 << (signal.SIGPIPE - 1)


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})


def _sigpipe_pending() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # an ignored signal is not pending, and Python ignores it
    _block()
    signal.raise_signal(signal.SIGPIPE)
