"""The driver with broken or hostile clients, and clients whose driver dies."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import GIB
from support.simulation import NVML_NOT_LOADED, SUCCESS, UNAVAILABLE, Start, Up, assert_driver_ends_well
from xpu_simulator import simulator
from xpu_simulator.simulator import SimState

#: The values of sim/protocol.h.
REQUEST, REPLY = struct.Struct("=IIQIIIIQQ"), struct.Struct("=QIIQQQ")
VERSION, HELLO, LAST_OPERATION, NO_MIG = 2, 1, 28, 0xFFFFFFFF
CREATE, ALLOCATE, QUEUE, LOOK, EVENT_CREATE, SYNC, QUERY = 9, 11, 13, 14, 15, 18, 19
#: A command of a context's queue: stamp, value, kind, channel, context, number, zero.
COMMAND = struct.Struct("=QQHHIII")
KERNEL, SPIN, RAISE, FAULT, RECORD, WAIT, WAIT_SHARED, MARK = range(1, 9)
COMMANDS_AT, RING = 512, 2048


def connect(state: SimState) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(30)
    connection.connect(f"{state.root}/run/nvidia-sim/socket")
    return connection


def request(
    operation: int,
    device: int = 0,
    mig: int = NO_MIG,
    context: int = 0,
    first: int = 0,
    second: int = 0,
) -> bytes:
    return REQUEST.pack(VERSION, operation, 7, device, mig, context, 0, first, second)


class Queue:
    """A context's queue of commands, which it shares with the driver."""

    def __init__(self, connection: socket.socket, context: int = 0) -> None:
        connection.sendall(request(QUEUE, context=context))
        _, received, _, _ = socket.recv_fds(connection, 1 << 16, 1)
        self.memory = mmap.mmap(received[0], COMMANDS_AT + RING * COMMAND.size)
        os.close(received[0])
        self.given = 0

    def put(self, command: bytes) -> None:
        place = COMMANDS_AT + self.given % RING * COMMAND.size
        self.memory[place : place + COMMAND.size] = command
        self.given += 1
        self.say(self.given)

    def say(self, head: int) -> None:
        """Says that this many commands were given."""
        self.memory[0:8] = struct.pack("=Q", head)


def command(kind: int, value: int = 0, channel: int = 0, number: int = 0, stamp: int = 0) -> bytes:
    return COMMAND.pack(stamp, value, kind, channel, 0, number, 0)


def ask(connection: socket.socket, message: bytes) -> tuple[int, int]:
    """The status and the first value of the reply."""
    connection.sendall(message)
    reply = connection.recv(1 << 16)
    _, status, _, value, *_ = REPLY.unpack_from(reply)
    return status, value


def is_well(state: SimState) -> bool:
    with connect(state) as connection:
        return ask(connection, request(HELLO)) == (0, 0)


def open_files(state: SimState) -> list[str]:
    """The targets of the driver's descriptors."""
    named = []
    for entry in Path(f"/proc/{state.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            named.append(os.readlink(entry))
    return named


def all_taken_and_then(state: SimState, settled: Callable[[list[str]], bool]) -> list[str]:
    """The driver's descriptors, once they are `settled`. Fails after 30 s.

    The driver takes connections in their order. So once it has answered a question, it has taken all earlier
    ones, and can only close descriptors.
    """
    assert is_well(state)
    deadline = time.monotonic() + 30
    while not settled(held := open_files(state)):
        assert time.monotonic() < deadline, held
        time.sleep(0.01)
    return held


@pytest.fixture
def sanitized_sim(up: Up, sanitized: Path) -> Iterator[SimState]:
    """A simulation whose driver would not survive a memory error."""
    state = up("2xA100-MIG", native=str(sanitized))
    yield state
    assert is_well(state)
    assert_driver_ends_well(state)


U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
SMALL = st.integers(0, 8)
MESSAGE = st.one_of(
    st.binary(max_size=200),
    st.binary(min_size=REQUEST.size, max_size=REQUEST.size),
    # Requests that the driver must check: each field likely, or anything.
    st.builds(
        lambda op, device, mig, context, first, second, tail: (
            REQUEST.pack(VERSION, op, 1, device, mig, context, 0, first, second) + tail
        ),
        st.integers(0, LAST_OPERATION + 2),
        SMALL | U32,
        SMALL | st.just(NO_MIG) | U32,
        SMALL | U32,
        SMALL | st.sampled_from([GIB, 1 << 63]) | U64,
        SMALL | U64,
        st.just(b"")
        | st.sampled_from([b"/sys/fs/cgroup\0", b"\0", b"x", b"/" * 4095 + b"\0"])
        | st.binary(max_size=80),
    ),
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(messages=st.lists(MESSAGE, max_size=30))
def test_no_message_brings_the_driver_down(sanitized_sim: SimState, messages: list[bytes]) -> None:
    with connect(sanitized_sim) as connection:
        try:
            for message in messages:
                connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            pass  # disconnected
    assert is_well(sanitized_sim)


KINDS = ("pipe", "file", "folder", "memory", "sealed", "socket", "device")


def descriptors(kinds: list[str], own: socket.socket, folder: Path) -> list[int]:
    """Open descriptors of these kinds."""
    made = []
    for kind in kinds:
        if kind == "pipe":
            reader, writer = os.pipe()
            os.close(reader)
            made.append(writer)
        elif kind in ("memory", "sealed"):
            made.append(os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.ftruncate(made[-1], 1 << 30)
            if kind == "sealed":
                fcntl.fcntl(made[-1], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        elif kind == "socket":
            made.append(os.dup(own.fileno()))
        else:
            paths = {"file": folder / "file", "folder": folder, "device": Path("/dev/zero")}
            (folder / "file").touch()
            made.append(os.open(paths[kind], os.O_RDONLY))
    return made


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    messages=st.lists(
        st.tuples(
            st.one_of(
                st.binary(max_size=60),
                st.builds(
                    lambda op, context, first, second: REQUEST.pack(
                        VERSION, op, 1, 0, 0, context, 0, first, second
                    ),
                    st.sampled_from([CREATE, ALLOCATE, *range(20, LAST_OPERATION + 1)]),
                    st.sampled_from([0, NO_MIG]),
                    st.sampled_from([1 << 32, 2 << 32, 1 << 32 | 1, 4096]),
                    st.sampled_from([0, 1]),
                ),
            ),
            st.lists(st.sampled_from(KINDS), max_size=3),
        ),
        max_size=12,
    )
)
def test_no_descriptor_that_comes_with_a_message_brings_the_driver_down_or_stays_open(
    sanitized_sim: SimState, tmp_path: Path, messages: list[tuple[bytes, list[str]]]
) -> None:
    # There is no client: the only socket is the listening one.
    before = all_taken_and_then(sanitized_sim, lambda held: str(held).count("socket:") == 1)
    with connect(sanitized_sim) as connection:
        for message, kinds in messages:
            passed = descriptors(kinds, connection, tmp_path)
            try:
                socket.send_fds(connection, [message], passed)
                _, received, _, _ = socket.recv_fds(connection, 1 << 16, 4)
            except (BrokenPipeError, ConnectionResetError, OSError):
                break  # disconnected
            finally:
                for descriptor in passed:
                    os.close(descriptor)
            for descriptor in received:
                os.close(descriptor)
    all_taken_and_then(sanitized_sim, lambda held: len(held) <= len(before))
    assert is_well(sanitized_sim)


def test_a_client_that_does_not_read_is_disconnected(up: Up) -> None:
    state = up("1xT4")
    with connect(state) as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        while True:
            connection.sendall(request(HELLO))
    assert is_well(state)


def test_a_client_that_only_connects_does_not_delay_others(up: Up) -> None:
    state = up("1xT4")
    with connect(state):
        assert is_well(state)


def test_one_process_gets_few_connections_and_others_still_get_theirs(up: Up, process: Start) -> None:
    state = up("1xT4")
    with_connection = []
    open_ones = [connect(state) for _ in range(64)]
    for connection in open_ones:
        try:
            with_connection.append(ask(connection, request(HELLO)))
        except (BrokenPipeError, ConnectionResetError, struct.error):
            pass  # refused: the connection ends without a reply
    assert len(with_connection) == 16
    assert process(state.root).start() == SUCCESS
    for connection in open_ones:
        connection.close()


def test_contexts_and_allocations_of_a_client_are_bounded(up: Up) -> None:
    state = up("1xT4")
    exhausted = 7
    with connect(state) as connection:
        results = [ask(connection, request(CREATE))[0] for _ in range(66)]
        assert results == [0] * 64 + [exhausted] * 2
        results = [ask(connection, request(ALLOCATE, first=1))[0] for _ in range(131074)]
        assert results == [0] * 131072 + [exhausted] * 2
    assert is_well(state)


def test_waits_of_a_client_are_bounded(up: Up) -> None:
    state = up("1xT4")
    with connect(state) as connection:
        ask(connection, request(CREATE))
        Queue(connection).put(command(KERNEL, 10**12))
        for _ in range(64):
            connection.sendall(request(SYNC, second=1))
        assert ask(connection, request(SYNC, second=1))[0] == 7
    assert is_well(state)


COMMANDS = st.one_of(
    st.binary(min_size=COMMAND.size, max_size=COMMAND.size),
    st.builds(
        COMMAND.pack,
        st.just(0) | U64,
        st.integers(0, 5000) | U64,
        st.integers(0, MARK + 1),
        st.integers(0, 48),
        st.sampled_from([0, 1, 64]),
        SMALL | st.sampled_from([10, 11, 47, 1023]),
        st.just(0),
    ),
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(commands=st.lists(COMMANDS, max_size=30), head=st.just(None) | U64)
def test_no_command_brings_the_driver_down(
    sanitized_sim: SimState, commands: list[bytes], head: int | None
) -> None:
    with connect(sanitized_sim) as connection:
        for mig in (0, 1):
            ask(connection, request(CREATE, mig=mig))
        queues = [Queue(connection, context) for context in (0, 1)]
        ask(connection, request(EVENT_CREATE))
        for number, one in enumerate(commands):
            queues[number % 2].put(one)
        if head is not None:
            queues[0].say(head)
        with suppress(BrokenPipeError, ConnectionResetError, struct.error):  # disconnected
            for context in (0, 1):
                ask(connection, request(LOOK, context=context))
    assert is_well(sanitized_sim)


@pytest.mark.parametrize(
    "wrong", ["a kind", "a channel", "a time", "more than there is space for", "too deep"]
)
def test_a_client_with_invalid_commands_is_disconnected(up: Up, wrong: str) -> None:
    state = up("1xT4")
    with connect(state) as connection:
        ask(connection, request(CREATE))
        queue = Queue(connection)
        assert ask(connection, request(LOOK))[0] == 0
        if wrong == "more than there is space for":
            queue.say(RING + 1)
        for one in {
            "a kind": [command(99)],
            "a channel": [command(KERNEL, channel=48)],
            "a time": [command(KERNEL, 1 << 60)],
            "too deep": [command(KERNEL, 10**12)] * 1025,
        }.get(wrong, []):
            queue.put(one)
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request(LOOK))
            assert connection.recv(1 << 16) == b"" or connection.recv(1 << 16) == b""
    assert is_well(state)


def test_a_killed_driver_is_an_error_for_its_clients_and_up_brings_another(up: Up, process: Start) -> None:
    state = up("1xT4")
    one = process(state.root)
    one.start()
    one.alloc(GIB)
    one.launch("busy_3600s")
    one.send("synchronize")
    os.kill(state.pid, signal.SIGKILL)
    assert one.result() == UNAVAILABLE
    assert one.alloc(GIB)[0] == UNAVAILABLE
    assert one.nvml("nvmlDeviceGetMemoryInfo") == {"error": NVML_NOT_LOADED}
    assert process(state.root).count() == {"error": NVML_NOT_LOADED}
    assert simulator.status() is None
    again = up("1xT4")
    assert again.pid != state.pid
    two = process(again.root)
    assert two.start() == SUCCESS
    assert two.nvml("nvmlDeviceGetMemoryInfo")["used"] == 0
