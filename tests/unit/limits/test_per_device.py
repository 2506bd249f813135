"""A backend's state for a device: ended after the last container that needs it, and by one process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from xpu_runtime.errors import ApplyError, DeviceError
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import per_device, registry
from xpu_runtime.limits.backend import Backend

UUID, OTHER = "GPU-0", "GPU-1"


class Keeper(Backend):
    """A backend that keeps a folder for each device."""

    NAME = "library"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = False

    def ended(self, uuid: str) -> None:
        self.asked.append(uuid)
        if self.fails:
            raise DeviceError("it does not end")
        os.rmdir(per_device.of(self.NAME, uuid))


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    monkeypatch.setenv("XPU_RUN_DIR", str(tmp_path))
    one = Keeper()
    monkeypatch.setattr(registry, "load", lambda name: one)
    for uuid in (UUID, OTHER):
        os.makedirs(per_device.of(one.NAME, uuid))
    yield one


def grant(container: str, uuid: str = UUID) -> Grant:
    holding = Holding("library", "soft", None, None)
    slices = (Slice("0", uuid, 1 << 30, True, None, holding),)
    return Grant(0, container, "/bundle", os.getpid(), 1, "", "running", "hook", 0.0, slices)


def book(wanted: Grant) -> Grant:
    with Ledger() as ledger:
        booked, _ = ledger.grant(wanted, lambda _: wanted.slices)
    assert booked is not None
    return booked


def release(booked: Grant) -> None:
    with Ledger() as ledger:
        ledger.release([booked])
    per_device.end_unused([booked])


def test_it_is_ended_after_the_last_container_on_that_device(keeper: Keeper) -> None:
    first, second = book(grant("a")), book(grant("b"))
    release(first)
    assert keeper.asked == []
    release(second)
    assert keeper.asked == [UUID]
    assert per_device.left() == [("library", OTHER)]
    release(second)
    assert keeper.asked == [UUID], "there is nothing any more"


def test_a_daemon_that_does_not_end_is_left_for_the_next_caller(keeper: Keeper) -> None:
    keeper.fails = True
    release(book(grant("a")))
    assert per_device.left() == [("library", UUID), ("library", OTHER)]
    keeper.fails = False
    per_device.end_all_unused()
    assert (keeper.asked, per_device.left()) == ([UUID, UUID, OTHER], [])


def test_what_a_container_needs_is_not_ended(keeper: Keeper) -> None:
    book(grant("a"))
    per_device.end_all_unused()
    assert (keeper.asked, per_device.left()) == ([OTHER], [("library", UUID)])


def test_a_newer_versions_state_is_left_to_it(keeper: Keeper) -> None:
    """As after a downgrade."""
    os.makedirs(per_device.of("newer", UUID))
    per_device.end_all_unused()
    assert (per_device.left(), sorted(keeper.asked)) == ([("newer", UUID)], [UUID, OTHER])


def test_an_end_waits_for_a_start_and_then_sees_its_container(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = book(grant("a"))
    with Ledger() as ledger:
        ledger.release([last])
    ending = threading.Thread(target=per_device.end_unused, args=([last],))
    with per_device.Locked("library", UUID):
        ending.start()
        book(grant("b"))
    ending.join()
    assert keeper.asked == []


def test_a_lock_that_is_kept_is_not_waited_for_for_ever(keeper: Keeper) -> None:
    lock = per_device.Locked("library", UUID)
    with (
        lock,
        pytest.raises(ApplyError, match=r"locked by another process") as caught,
        per_device.Locked("library", UUID, 0.05),
    ):
        pass
    assert caught.value.todo == f"find the process that has it: fuser {lock.path}"


def test_an_end_does_not_wait_for_a_start_that_hangs(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile the engine waits for the container's end."""
    last = book(grant("a"))
    started = time.monotonic()
    with per_device.Locked("library", UUID):
        release(last)
    assert 2 < time.monotonic() - started < 10
    assert (keeper.asked, per_device.left()) == ([], [("library", UUID), ("library", OTHER)])


def test_something_else_in_the_locks_place_is_named(keeper: Keeper, tmp_path: Path) -> None:
    with per_device.Locked("library", UUID):
        (lock,) = (each for each in (tmp_path / "devices").rglob("*") if each.is_file())
    lock.unlink()
    lock.mkdir()
    with pytest.raises(ApplyError, match=f"cannot lock {lock}: Is a directory"):
        per_device.Locked("library", UUID).__enter__()


def test_other_users_of_the_host_do_not_reach_it(keeper: Keeper, tmp_path: Path) -> None:
    (tmp_path / "devices").rename(tmp_path / "before")
    with per_device.Locked("library", UUID):
        assert (tmp_path / "devices").stat().st_mode & 0o777 == 0o700
