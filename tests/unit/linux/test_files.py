"""Files that are always whole, and locks that die with their holder."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.namespaces import own_mount_namespace
from xpu_runtime.linux import files, lock_holders, syscalls


@pytest.mark.parametrize("fsync", [False, True])
def test_a_file_is_made_and_replaced_with_its_mode(tmp_path: Path, fsync: bool) -> None:
    path = tmp_path / "file"
    old = os.umask(0o077)
    try:
        files.write_atomic(str(path), b"one", fsync=fsync)
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        files.write_atomic(str(path), b"two" * 100_000, 0o600, fsync=fsync)
    finally:
        os.umask(old)
    assert path.read_bytes() == b"two" * 100_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, in_child: Callable[..., None]) -> None:
    def fill() -> None:
        own_mount_namespace()
        syscalls.mount("tmpfs", str(tmp_path), "tmpfs", 0, "size=64k")
        path = tmp_path / "file"
        files.write_atomic(str(path), b"old")
        with pytest.raises(OSError) as caught:
            files.write_atomic(str(path), bytes(1 << 20))
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]

    in_child(fill)


def test_a_symlink_is_replaced_and_its_target_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("untouched")
    (tmp_path / "link").symlink_to("target")
    files.write_atomic(str(tmp_path / "link"), b"new")
    assert (tmp_path / "target").read_text() == "untouched"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_text() == "new"


def test_a_folder_in_the_way_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        files.write_atomic(str(tmp_path / "folder"), b"x")
    assert caught.value.filename == str(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_very_long_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    files.write_atomic(str(path), b"x")
    assert path.read_bytes() == b"x"


def test_a_reader_never_sees_a_half_of_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    contents = [bytes([letter]) * 50_000 for letter in b"ab"]
    files.write_atomic(path, contents[0])

    def write(content: bytes) -> None:
        for _ in range(100):
            files.write_atomic(path, content)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert files.read(path, 50_000) in contents
    for writer in writers:
        writer.join()
    assert os.listdir(tmp_path) == ["file"]


def test_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert files.read(str(tmp_path / "file"), 5) == b"12345"
    with pytest.raises(OSError) as caught:
        files.read(str(tmp_path / "file"), 4)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "file"))


def test_a_file_with_size_zero_is_read_up_to_the_limit() -> None:
    assert files.read("/proc/self/status", 1 << 16).startswith(b"Name:")
    with pytest.raises(OSError, match="more than 10 bytes"):
        files.read("/proc/self/status", 10)


@pytest.mark.timeout(20)
def test_something_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file") as caught:
            files.read(str(path), 10)
        assert caught.value.errno == errno.EINVAL


@pytest.mark.timeout(60)
def test_a_lock_is_held_by_one_thread_or_process_at_a_time(tmp_path: Path) -> None:
    path, counter = str(tmp_path / "lock"), tmp_path / "counter"
    counter.write_text("0")

    def count() -> None:
        for _ in range(100):
            with files.Lock(path):
                counter.write_text(str(int(counter.read_text()) + 1))

    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            try:
                count()
            finally:
                os._exit(0)
        children.append(child)
    threads = [threading.Thread(target=count) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for child in children:
        os.waitpid(child, 0)
    assert counter.read_text() == "400"


@pytest.mark.timeout(20)
def test_a_lock_is_free_when_its_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with opener(path, "fcntl.flock(f, 2)") as process:
        with pytest.raises(TimeoutError):
            wait(path, 0.1)
        process.kill()
        wait(path, 30.0)


@pytest.mark.timeout(20)
def test_a_lock_is_free_after_its_holder_left_it_though_a_child_lives_on(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with files.Lock(path):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
    try:
        wait(Path(path), 30.0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_is_free_after_its_file_system_refused_to_free_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock = str(tmp_path / "lock"), fcntl.flock

    def failing(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            raise OSError(errno.ENOLCK, "No locks available")
        flock(fd, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", failing)
        with pytest.raises(OSError, match="No locks available"), files.Lock(path):
            pass
    wait(Path(path), 0)


def test_a_symlink_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to("elsewhere")
    with pytest.raises(OSError, match="Too many levels"), files.Lock(str(tmp_path / "lock")):
        pass
    assert not (tmp_path / "elsewhere").exists()


# Waiting for a lock.


def held(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def wait(path: Path, seconds: float) -> None:
    with files.Lock(str(path), seconds):
        pass


def in_a_thread(function: Callable[..., None], *arguments: object) -> None:
    with ThreadPoolExecutor() as threads:
        threads.submit(function, *arguments).result()


@pytest.mark.parametrize("call", [lambda function, *rest: function(*rest), in_a_thread])
def test_a_wait_for_a_lock_ends_in_time_and_succeeds_when_it_is_free(
    tmp_path: Path, call: Callable[..., None]
) -> None:
    path = tmp_path / "lock"
    fd = held(path)
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"locked by another process.*lock"):
        call(wait, path, 0.3)
    assert 0.3 <= time.monotonic() - started < 5
    release = threading.Timer(0.2, os.close, [fd])
    release.start()
    call(wait, path, 30.0)
    release.join()


def test_waiting_leaves_the_alarm_as_it_was(tmp_path: Path) -> None:
    heard = []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    try:
        fd = held(tmp_path / "lock")
        with pytest.raises(TimeoutError):
            wait(tmp_path / "lock", 0.1)
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
        assert signal.SIGALRM in signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.raise_signal(signal.SIGALRM)
        assert heard == [1]
        os.close(fd)
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_a_lock_file_that_was_replaced_meanwhile_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    flock = files._flock
    locked: list[int] = []

    def replaced_first(fd: int, until: float) -> None:
        if not locked:
            path.unlink()
            path.touch()
        locked.append(os.fstat(fd).st_ino)
        flock(fd, until)

    monkeypatch.setattr(files, "_flock", replaced_first)
    with files.Lock(str(path)):
        assert locked[1:] == [path.stat().st_ino]


def opener(path: Path, then: str) -> subprocess.Popen[bytes]:
    """A process that has opened `path` as `f`, has done `then`, and ends with its standard input."""
    code = f"import fcntl, sys; f = open(sys.argv[1], 'w'); {then}; print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_the_holder_of_a_lock_is_named(tmp_path: Path) -> None:
    path, own = tmp_path / "lock", tmp_path / "own"
    fd = held(own)
    # A process that has the file open without a lock is no holder.
    with opener(path, "fcntl.flock(f, 2)") as process, opener(path, "pass"):
        (holder,) = lock_holders.of(str(path), str(own), str(tmp_path / "missing"))
        assert str(holder).startswith(f"process {process.pid} ({sys.executable} -c import fcntl")
    assert lock_holders.of(str(path)) == []
    os.close(fd)
