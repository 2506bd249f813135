"""A ledger that is opened in another PID namespace than that of the processes that it names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest

from xpu_runtime.ledger.grants import Grant, Holding, Slice, Use
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.ledger.waiting import LedgerError
from xpu_runtime.linux import proc

from . import granting

#: The number of the host's PID namespace, and of two others.
HOST, ONE, OTHER = 4026531836, 4026532000, 4026532001
SLICES = (Slice("0", "GPU-0", 1 << 30, True, None, Holding()),)

Move = Callable[[int], None]


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Move:
    """From here on this process says that it is in that PID namespace."""
    return lambda number: monkeypatch.setattr(proc, "pid_namespace", lambda: number)


@pytest.fixture
def wanted(holder: granting.Process) -> Grant:
    return granting.wanted(holder, state="running")


def take(uses: dict[str, Use]) -> tuple[Slice, ...]:
    return SLICES


def unused(*_: object) -> dict[tuple[int, str], int]:
    raise AssertionError("nothing is changed from here")


CHANGES: list[Callable[[Ledger, Grant], object]] = [
    lambda ledger, grant: ledger.grant(grant.replace(id=0, container_id="c2"), take),
    lambda ledger, grant: ledger.bind(grant.replace(pid=1)),
    lambda ledger, grant: ledger.resize(grant.id, unused),
    lambda ledger, grant: ledger.reap(),
    lambda ledger, grant: ledger.require_own(),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("theirs", "todo"),
    [
        (HOST, "do this on the host itself; in a pod, with hostPID: true"),
        (
            ONE,
            "do this in the namespace where they were started; "
            "if that has ended, and the containers with it, remove {}: it is made anew",
        ),
    ],
)
def test_a_process_that_does_not_see_the_others_changes_nothing(
    path: str, wanted: Grant, move: Move, theirs: int, todo: str, change: Callable[[Ledger, Grant], object]
) -> None:
    move(theirs)
    with Ledger(path) as ledger:
        granted, _ = ledger.grant(wanted, take)
        assert granted is not None
        assert ledger.is_own()
    move(OTHER)
    with Ledger(path) as ledger:
        assert not ledger.is_own()
        with pytest.raises(LedgerError) as caught:
            change(ledger, granted)
        assert ledger.grants() == [granted]
    assert str(caught.value) == (
        f"the ledger {path} belongs to another PID namespace (pid:[{theirs}]; this is pid:[{OTHER}]), "
        f"so its running containers cannot be seen from here: {todo.format(path)}"
    )


def test_a_container_that_is_known_to_have_ended_is_released_from_anywhere(
    path: str, wanted: Grant, move: Move
) -> None:
    move(ONE)
    with Ledger(path) as ledger:
        granted, _ = ledger.grant(wanted, take)
        assert granted is not None
    move(OTHER)
    with Ledger(path) as ledger:
        ledger.release([granted])
        assert ledger.grants() == []


def test_a_ledger_without_grants_belongs_to_the_first_to_grant_from_it(
    path: str, wanted: Grant, move: Move
) -> None:
    move(ONE)
    with Ledger(path):
        pass
    move(OTHER)
    with Ledger(path) as ledger:
        assert not ledger.is_own()
        ledger.require_own()
        assert ledger.is_own()
        ledger.grant(wanted, take)
    with Ledger(path) as ledger:
        assert ledger.is_own()
    move(ONE)
    with Ledger(path) as ledger, pytest.raises(LedgerError, match="belongs to another PID namespace"):
        ledger.reap()


@pytest.mark.parametrize("has_grant", [True, False])
def test_a_ledger_that_was_copied_is_whose_its_grants_are(
    path: str, wanted: Grant, move: Move, has_grant: bool
) -> None:
    move(ONE)
    with Ledger(path) as ledger:
        granted = [ledger.grant(wanted, take)[0]] if has_grant else []
    shutil.copy(path, path + ".copy")
    os.rename(path + ".copy", path)
    move(OTHER)
    with Ledger(path) as ledger:
        assert ledger.is_own() is not has_grant
        assert ledger.grants() == granted
