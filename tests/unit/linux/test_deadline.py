"""A call that hangs, dies or fails is ended in time, and its earlier answers are kept."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from xpu_runtime.errors import DeviceError
from xpu_runtime.linux import deadline
from xpu_runtime.linux.deadline import Answer, Backoff, HelperProcess


def hangs() -> Iterator[int]:
    yield 1
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.Signals)
    time.sleep(1000)


def dies() -> Iterator[int]:
    yield 2
    os.kill(os.getpid(), signal.SIGKILL)


def fails() -> Iterator[int]:
    yield 3
    raise DeviceError("it is broken", "mend it")


def big() -> Iterator[bytes]:
    yield bytes(3 << 20)


def test_each_call_has_its_answer_and_none_waits_for_another() -> None:
    started = time.monotonic()
    answers = deadline.together([hangs, dies, fails, big, lambda: iter(())], 3)
    assert time.monotonic() - started < 20
    assert [answer.values for answer in answers] == [(1,), (2,), (3,), (bytes(3 << 20),), ()]
    assert [answer.error for answer in answers] == [
        "it did not end within 3 s", "its process died (SIGKILL)", "it is broken", "", "",
    ]  # fmt: skip
    assert [answer.hung for answer in answers] == [True, False, False, False, False]
    assert [answer.died for answer in answers] == [False, True, False, False, False]
    assert answers[2].todo == "mend it"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_call_ends_with_the_process_that_waits_for_it(number: signal.Signals, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "call")
    asker = os.fork()
    if asker == 0:

        def waits() -> Iterator[int]:
            writing = os.open(tmp_path / "call", os.O_WRONLY)
            os.write(writing, b"%d" % os.getpid())
            time.sleep(1000)
            yield 1

        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # other tests may have left a handler
            deadline.together([waits], 1000)
        finally:
            os._exit(1)
    reading = os.open(tmp_path / "call", os.O_RDONLY)
    call = int(os.read(reading, 100))
    # Python loses a Ctrl-C that comes while it runs what modules have registered for after a fork.
    while os.waitpid(asker, os.WNOHANG) == (0, 0):
        os.kill(asker, number)
        time.sleep(0.05)
    # The fifo is open in the call alone.
    has_ended = bool(select.select([reading], [], [], 10)[0])
    os.close(reading)
    if not has_ended:
        os.kill(call, signal.SIGKILL)
    assert has_ended


def test_of_several_that_cannot_be_ended_none_is_waited_for_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # They hang where no signal reaches them.
    kill_group, sent = os.killpg, list[int]()
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(pid))
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    started = time.monotonic()
    answers = deadline.together([hangs] * 8, 0.5)
    took = time.monotonic() - started
    for pid in sent:
        kill_group(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert len(sent) == 8
    assert [answer.hung for answer in answers] == [True] * 8
    assert took < 0.5 + 4 * deadline.END_S


def test_an_end_by_a_real_time_signal_is_told() -> None:
    def dies() -> None:
        os.kill(os.getpid(), 40)

    assert deadline.one(dies, 10).error == "its process died (signal 40)"


def test_processes_that_a_call_has_started_end_with_it(tmp_path: Path) -> None:
    def starts() -> Iterator[int]:
        child = subprocess.Popen(["sleep", "1000"])
        yield child.pid
        child.wait()

    (answer,) = deadline.together([starts], 3)
    until = time.monotonic() + 10
    while Path(f"/proc/{answer.values[0]}").exists() and time.monotonic() < until:
        if Path(f"/proc/{answer.values[0]}/stat").read_text().rpartition(") ")[2][0] == "Z":
            break
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{answer.values[0]}").exists()


def test_a_call_that_tells_too_much_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "_MOST_BYTES", 2 << 20)

    def talks() -> Iterator[bytes]:
        while True:
            yield bytes(1 << 20)

    (answer,) = deadline.together([talks], 60)
    assert answer.error == "it answered more than 2 MiB" and answer.values


# One that is asked again


def own_id() -> Callable[[object], Iterator[int]]:
    return lambda _: iter([os.getpid()])


def hang() -> Callable[[object], Iterator[int]]:
    return lambda _: hangs()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The ids of all processes that are forked."""
    made: list[int] = []
    fork = os.fork

    def counted() -> int:
        made.append(fork())
        return made[-1]

    monkeypatch.setattr(os, "fork", counted)
    yield made
    for pid in made:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def answer_of(process: HelperProcess, question: object = None, seconds: float = 20) -> Answer:
    process.ask(question, seconds)
    answer = process.wait()
    assert answer is not None
    return answer


@pytest.mark.parametrize("program", [False, True])
def test_one_process_answers_again_and_again(program: bool) -> None:
    process = HelperProcess(own_id, program=program)
    first = answer_of(process)
    assert first.error == "" and first.values != (os.getpid(),)
    assert answer_of(process) == first
    process.close()
    assert answer_of(process) != first
    process.close()


def test_it_has_its_own_process_group_as_ctrl_c_is_not_for_it() -> None:
    with closing(HelperProcess(own_id)) as process:
        assert answer_of(process).values == (os.getpgid(process.pid),)


@pytest.mark.parametrize("program", [False, True])
def test_it_keeps_no_descriptor_of_the_asker(program: bool) -> None:
    high = fcntl.fcntl(0, fcntl.F_DUPFD, 900)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))  # open descriptors beyond it stay open
    try:
        with closing(HelperProcess(descriptors, program=program)) as process:
            (kept,) = answer_of(process).values
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(high)
    # The standard ones, its socket, and that of the listing.
    assert len(kept) <= 5 and max(kept) < high


def descriptors() -> Callable[[object], Iterator[list[int]]]:
    return lambda _: iter([[int(fd) for fd in os.listdir("/proc/self/fd")]])


def test_one_that_cannot_be_ended_is_the_only_one(
    started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = HelperProcess(hang)
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda *_: None)  # as if it were deep in the driver
        patch.setattr(os, "killpg", lambda *_: None)
        answer = answer_of(process, seconds=0.3)
        assert answer.hung and answer.values == (1,) and answer.error == "it did not end within 0 s"
        for _ in range(3):
            answer = answer_of(process)
            assert answer.hung
            assert answer.error == f"process {started[0]}, which was asked before, hangs and cannot be ended"
    assert len(started) == 1
    os.kill(started[0], signal.SIGKILL)
    assert os.waitid(os.P_PID, started[0], os.WEXITED | os.WNOWAIT)
    assert answer_of(process, seconds=0.3).error == "it did not end within 0 s"
    assert len(started) == 2
    process.close()


def test_a_failure_is_reported_and_the_next_question_may_succeed(started: list[int]) -> None:
    def fails_once(question: object) -> Iterator[int]:
        if question == "fail":
            raise DeviceError("it is broken", "mend it")
        if question == "die":
            os._exit(1)
        return iter([7])

    with closing(HelperProcess(lambda: fails_once)) as process:
        assert answer_of(process, "fail") == Answer((), "it is broken", "mend it")
        assert answer_of(process).values == (7,)
        assert len(started) == 1
        assert answer_of(process, "die") == Answer((), "its process died", died=True)
        assert answer_of(process).values == (7,)
        assert len(started) == 2


def test_an_asker_that_must_not_wait_does_not_take_an_end_for_a_hang(
    started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was just killed takes a moment."""
    process = HelperProcess(hang, waits=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda *_: None)
        patch.setattr(os, "killpg", lambda *_: None)
        assert answer_of(process, seconds=0.3).hung
        process.ask(None, 20)
        assert process.until is None and process.answer() is None
        process._killed_at -= deadline.END_S
        assert "cannot be ended" in answer_of(process).error
    os.kill(started[0], signal.SIGKILL)
    assert os.waitid(os.P_PID, started[0], os.WEXITED | os.WNOWAIT)
    assert answer_of(process, seconds=0.3).error == "it did not end within 0 s"
    process.close()


def test_one_that_cannot_be_opened_is_opened_by_the_next_question(tmp_path: Path) -> None:
    def opener() -> Callable[[object], Iterator[int]]:
        if not (tmp_path / "driver").exists():
            raise DeviceError("there is no driver")
        return lambda _: iter([7])

    with closing(HelperProcess(opener)) as process:
        assert answer_of(process).error == "there is no driver"
        (tmp_path / "driver").touch()
        assert answer_of(process).values == (7,)


def test_one_that_has_died_unasked_is_replaced() -> None:
    with closing(HelperProcess(own_id)) as process:
        first = answer_of(process)
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert answer_of(process).values not in (first.values, ())


def test_one_that_dies_with_a_question_unread_is_told() -> None:
    with closing(HelperProcess(own_id)) as process:
        answer_of(process)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        process.ask(None, 20)
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.wait() == Answer((), "its process died (SIGKILL)", died=True)


def test_a_question_after_ctrl_c_gets_its_own_answer() -> None:
    def slow(question: object) -> Iterator[object]:
        yield question
        time.sleep(0.3)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with closing(HelperProcess(lambda: slow)) as process:
            process.ask("first", 20)
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                process.wait()
            assert answer_of(process, "second").values == ("second",)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_where_no_process_can_be_started_nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    gc.collect()  # earlier tests may have left some in cycles
    before = os.listdir("/proc/self/fd")
    process = HelperProcess(own_id)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", none_left)
        error = "its process cannot be started (Resource temporarily unavailable)"
        assert answer_of(process).error == error
    assert os.listdir("/proc/self/fd") == before
    assert answer_of(process).values
    process.close()


# Backoff


def test_a_driver_that_hangs_is_left_alone_for_longer_and_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    backoff, hung = Backoff(), Answer((), "it did not end", hung=True)
    for pause in (60, 120, 240, 480, 600, 600):
        assert backoff.last() is None
        backoff.take(hung)
        now += pause - 1
        assert backoff.last() == hung
        now += 1
    backoff.reset()
    for answer in (hung, Answer((), "no driver"), Answer((), "no driver")):
        backoff.take(answer)
        now += 60
        assert backoff.last() is None
