"""The effects of a context's streams on each other, and kernels that spin, raise flags and fail."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.simulation import SUCCESS, Start, Up, Working, assert_check, build_sanitized
from xpu_simulator.simulator import SimState

ILLEGAL_ADDRESS = 700
CHECKS = (
    "share",
    "order",
    "idle-stream",
    "connections",
    "legacy",
    "full-queue",
    "graph",
    "pool",
    "contexts",
    "illegal-address",
    "assert",
)


@pytest.mark.parametrize("check", CHECKS)
def test_streams_and_contexts_are_in_the_order_that_cuda_gives_them(
    up: Up, tmp_path: Path, check: str
) -> None:
    kind = "address,undefined"
    state = up("2xT4", native=str(build_sanitized(kind)))
    connections = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if check == "connections" else {}
    assert_check(state, Path(__file__).with_name("streams.c"), tmp_path, check, kind, **connections)


@contextmanager
def stopped(state: SimState) -> Iterator[None]:
    """Stops the driver."""
    os.kill(state.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(state.pid, signal.SIGCONT)


def test_a_launch_needs_no_reply_and_counts_from_its_own_time(up: Up, process: Start) -> None:
    state = up("1xT4")
    one = process(state.root)
    one.start()
    begin, end, later = (one.event_create(0)[1] for _ in range(3))
    assert one.launch("busy_1us") == one.synchronize() == SUCCESS
    with stopped(state):
        assert one.event_record(begin) == one.launch("busy_1us", 500) == one.event_record(end) == SUCCESS
        time.sleep(0.1)
        assert one.event_record(later) == SUCCESS
    assert one.synchronize() == SUCCESS
    result, milliseconds = one.elapsed(begin, end)
    assert result == SUCCESS and 0.5 <= milliseconds < 100, "the kernels did not wait for the driver"
    assert one.elapsed(end, later)[1] > 90, "nor did what came later come earlier"


def test_a_failed_kernel_is_its_own_processes_problem(working: Working, process: Start) -> None:
    root, bad = working("1xT4")
    good = process(root)
    good.start()
    good.send("timed", "busy_1ms", 50)
    bad.launch("fault_illegal_address")
    bad.launch("busy_3600s")
    assert bad.synchronize() == ILLEGAL_ADDRESS
    assert bad.alloc(1)[0] == bad.synchronize() == bad.launch("busy_1ms") == ILLEGAL_ADDRESS
    assert good.result()[0] == SUCCESS
    assert good.timed("busy_1ms", 5) == [SUCCESS, 5.0], "the card is free of the other's work"
    assert process(root).start() == SUCCESS
