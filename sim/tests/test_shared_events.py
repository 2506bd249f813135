"""Events that several processes have: all of them see the latest record, of any process."""

from __future__ import annotations

import time

import pytest

from support import MIB
from support.simulation import NOT_READY, SUCCESS, Process, used

from .test_memory import INVALID

INVALID_CONTEXT, INVALID_HANDLE = 201, 400
DISABLE_TIMING, INTERPROCESS = 2, 4
SHARED = DISABLE_TIMING | INTERPROCESS
#: Longer than any test: other events end waits for it.
HOUR = "busy_3600s"


def share(owner: Process, other: Process) -> tuple[int, int]:
    """An event's numbers in its maker and in the process that has opened it."""
    result, number = owner.event_create(SHARED)
    assert result == SUCCESS
    result, handle = owner.event_ipc_get(number)
    assert result == SUCCESS
    result, opened = other.event_ipc_open(handle)
    assert result == SUCCESS
    return number, opened


@pytest.mark.parametrize("wait", ["event_synchronize", "event_await"])
def test_a_wait_for_another_processes_event_ends_after_the_work_before_it(
    owner: Process, other: Process, wait: str
) -> None:
    here, there = share(owner, other)
    assert getattr(other, wait)(there) == other.event_query(there) == SUCCESS, "never recorded"
    begun = time.monotonic()
    assert owner.launch("busy_300ms") == owner.event_record(here) == SUCCESS
    assert getattr(other, wait)(there) == SUCCESS
    assert other.launch("busy_1ms") == other.synchronize() == SUCCESS
    assert time.monotonic() - begun > 0.3
    assert owner.query() == owner.event_query(here) == other.event_query(there) == SUCCESS


def test_an_event_is_not_ready_in_any_process_while_the_work_before_it_runs(
    owner: Process, other: Process
) -> None:
    here, there = share(owner, other)
    assert owner.launch(HOUR) == owner.event_record(here) == SUCCESS
    assert owner.event_query(here) == other.event_query(there) == NOT_READY
    assert other.query() == SUCCESS, "it has no work of its own"


def test_an_event_recorded_before_its_handle_was_made_is_the_same_event(
    owner: Process, other: Process
) -> None:
    _, here = owner.event_create(SHARED)
    assert owner.launch(HOUR) == owner.event_record(here) == SUCCESS
    result, there = other.event_ipc_open(owner.event_ipc_get(here)[1])
    assert result == SUCCESS
    assert other.event_query(there) == NOT_READY


def test_the_latest_record_of_any_process_counts(owner: Process, other: Process) -> None:
    here, there = share(owner, other)
    assert other.launch(HOUR) == other.event_record(there) == SUCCESS
    assert owner.event_query(here) == other.event_query(there) == NOT_READY
    assert owner.event_record(here) == owner.event_synchronize(here) == SUCCESS
    assert other.event_query(there) == SUCCESS
    assert other.query() == NOT_READY, "what it recorded before goes on"
    assert other.event_record(there) == SUCCESS
    assert owner.event_query(here) == NOT_READY


def test_a_wait_ends_when_the_process_with_the_work_is_killed(owner: Process, other: Process) -> None:
    here, there = share(owner, other)
    assert owner.launch(HOUR) == owner.event_record(here) == SUCCESS
    assert other.event_query(there) == NOT_READY
    other.send("event_synchronize", there)
    owner.kill()
    assert other.result() == SUCCESS
    assert other.event_query(there) == SUCCESS
    assert other.launch(HOUR) == other.event_record(there) == SUCCESS
    assert other.event_query(there) == NOT_READY, "it is an event still"
    assert other.event_destroy(there) == SUCCESS


def test_a_wait_for_a_record_makes_a_pool_give_back_memory_freed_before_it(
    owner: Process, other: Process
) -> None:
    here, _ = share(owner, other)
    assert owner.free_async(owner.alloc_async(3 * MIB)[1]) == SUCCESS
    assert used(owner) == 32 * MIB, "the pool has it still"
    assert owner.event_record(here) == owner.event_synchronize(here) == SUCCESS
    assert used(owner) == 0


def test_a_killed_process_leaves_its_opened_event_to_the_maker(owner: Process, other: Process) -> None:
    here, there = share(owner, other)
    assert other.launch(HOUR) == other.event_record(there) == SUCCESS
    assert owner.event_query(here) == NOT_READY
    other.kill()
    assert owner.event_synchronize(here) == owner.event_query(here) == SUCCESS
    assert owner.event_record(here) == owner.event_destroy(here) == SUCCESS


def test_an_event_that_its_maker_destroys_stays_open_and_cannot_be_opened_again(
    owner: Process, other: Process
) -> None:
    here, there = share(owner, other)
    _, handle = owner.event_ipc_get(here)
    assert owner.launch(HOUR) == owner.event_record(here) == owner.event_destroy(here) == SUCCESS
    assert other.event_ipc_open(handle)[0] == INVALID_HANDLE
    assert other.event_query(there) == NOT_READY
    assert other.event_record(there) == other.event_synchronize(there) == SUCCESS
    assert other.event_destroy(there) == SUCCESS


def test_a_killed_processes_handle_opens_nothing(owner: Process, other: Process) -> None:
    _, here = owner.event_create(SHARED)
    _, handle = owner.event_ipc_get(here)
    owner.kill()
    assert other.event_ipc_open(handle)[0] == INVALID_HANDLE


def test_only_an_event_without_timing_that_was_made_for_it_is_shared(owner: Process, other: Process) -> None:
    assert owner.event_create(INTERPROCESS)[0] == INVALID, "it cannot have a time"
    for flags in (0, DISABLE_TIMING):
        assert owner.event_ipc_get(owner.event_create(flags)[1])[0] == INVALID_HANDLE
    assert other.event_ipc_open("00" * 64)[0] == INVALID_HANDLE


def test_an_event_is_opened_in_other_processes_only_and_has_no_time_there(
    owner: Process, other: Process
) -> None:
    here, there = share(owner, other)
    _, handle = owner.event_ipc_get(here)
    assert owner.event_ipc_open(handle)[0] == INVALID_CONTEXT
    assert other.event_ipc_get(there)[0] == INVALID_HANDLE, "its maker's handle is the one"
    assert other.event_record(there) == SUCCESS
    assert other.elapsed(there, there)[0] == owner.elapsed(here, here)[0] == INVALID_HANDLE


def test_an_event_that_is_opened_and_destroyed_leaves_nothing(owner: Process, other: Process) -> None:
    _, here = owner.event_create(SHARED)
    _, handle = owner.event_ipc_get(here)
    more_than_a_context_may_have = 5000
    assert other.event_ipc_reopen(handle, more_than_a_context_may_have) == SUCCESS
