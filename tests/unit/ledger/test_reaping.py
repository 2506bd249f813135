"""Which grants reaping takes, and that one start of a container makes one grant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from xpu_runtime.ledger.grants import MEMORY, Grant, Holding, Slice, Use
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import cgroups

from .granting import CAPACITY, GIB, Process, take, wanted


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """Two running processes, and one that has ended."""
    made = [Process() for _ in range(3)]
    made[2].end()
    yield made
    for process in made:
        process.end()


@pytest.fixture(autouse=True)
def one_cgroup_has_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    # A grant without a cgroup has no processes there: that is not asked.
    known = {"/populated": True, "/empty": False}
    monkeypatch.setattr(cgroups, "has_processes", known.__getitem__)


def grant(ledger: Ledger, of: Grant, memory: int = GIB) -> Grant | None:
    return ledger.grant(of, lambda uses: take(memory, uses))[0]


ALIVE, REUSED, DEAD = "alive", "number used again", "dead"


@pytest.mark.parametrize(
    ("process", "cgroup", "taken"),
    [
        (ALIVE, "", False),
        (ALIVE, "/empty", False),
        (ALIVE, "/populated", False),
        (REUSED, "", True),
        (REUSED, "/empty", True),
        # Process 1 of the container has ended, and others are left: the slice is in use.
        (REUSED, "/populated", False),
        (DEAD, "", True),
        (DEAD, "/empty", True),
        (DEAD, "/populated", False),
    ],
)
@pytest.mark.parametrize("state", ["pending", "running"])
def test_what_reaping_takes(
    ledger: Ledger, processes: list[Process], process: str, cgroup: str, taken: bool, state: str
) -> None:
    holder = processes[2] if process == DEAD else processes[0]
    started = holder.start_time - (process == REUSED)
    other = grant(ledger, wanted(processes[1], "other"))
    booked = grant(ledger, wanted(holder, state=state).replace(start_time=started, cgroup=cgroup))
    assert [each.id for each in ledger.reap()] == ([booked.id] if taken and booked else [])
    left = [other] if taken else [other, booked]
    assert ledger.grants() == left
    assert ledger.uses()["GPU-0"].memory_bytes == len(left) * GIB


@pytest.mark.parametrize(
    ("process", "memory", "reaped"), [(DEAD, GIB, ["c1"]), (REUSED, GIB, []), (REUSED, CAPACITY, ["c1"])]
)
def test_a_number_used_again_is_looked_into_where_the_request_would_be_refused(
    ledger: Ledger, processes: list[Process], process: str, memory: int, reaped: list[str]
) -> None:
    holder = processes[2] if process == DEAD else processes[0]
    grant(ledger, wanted(holder).replace(start_time=holder.start_time - (process == REUSED)))
    granted, dead = ledger.grant(wanted(processes[1], "c2"), lambda uses: take(memory, uses))
    assert granted is not None
    assert [each.container_id for each in dead] == reaped


def test_reaping_does_not_make_a_request_fit_that_is_larger(ledger: Ledger, processes: list[Process]) -> None:
    grant(ledger, wanted(processes[0], "stays"))
    grant(ledger, wanted(processes[0]).replace(start_time=processes[0].start_time - 1))
    grant(ledger, wanted(processes[2], "dead"))
    granted, dead = ledger.grant(wanted(processes[1], "c2"), lambda uses: take(CAPACITY, uses))
    assert (granted, [each.container_id for each in dead]) == (None, ["dead", "c1"])
    assert [each.container_id for each in ledger.grants()] == ["stays"]


def test_a_change_of_a_limit_reaps_first(ledger: Ledger, processes: list[Process]) -> None:
    gone = grant(ledger, wanted(processes[0], "c0").replace(start_time=processes[0].start_time - 1), 10 * GIB)
    grows = grant(ledger, wanted(processes[1]))
    assert gone is not None and grows is not None
    seen: list[int] = []

    def choose(now: Grant, uses: dict[str, Use]) -> dict[tuple[int, str], int]:
        seen.append(uses["GPU-0"].memory_bytes)
        return {(0, MEMORY): CAPACITY}

    after, dead = ledger.resize(grows.id, choose)
    assert after is not None and after.slices[0].memory_bytes == CAPACITY
    assert (seen, [each.id for each in dead]) == ([GIB], [gone.id])
    assert ledger.resize(gone.id, choose) == (None, [])


# ---- one start, one grant ----


def test_a_hook_beside_spec_mode_gets_the_grant_that_spec_mode_has_booked(
    ledger: Ledger, processes: list[Process]
) -> None:
    """An engine's own hooks.d may ask for a container for which the shim has asked already."""
    runtime, init = processes[:2]
    booked = grant(ledger, wanted(runtime, mode="spec"))
    assert grant(ledger, wanted(init)) == booked
    assert len(ledger.grants()) == 1


@pytest.mark.parametrize(
    ("mode", "state", "asks_in"),
    [("spec", "running", "hook"), ("hook", "pending", "hook"), ("spec", "pending", "spec")],
)
def test_another_start_of_a_container_of_that_name_is_granted_by_itself(
    ledger: Ledger, processes: list[Process], mode: str, state: str, asks_in: str
) -> None:
    first = grant(ledger, wanted(processes[0], mode=mode, state=state))
    second = grant(ledger, wanted(processes[1], mode=asks_in))
    assert first is not None and second is not None and first.id != second.id
    assert len(ledger.grants()) == 2


def test_the_grant_of_a_dead_runtime_is_not_taken_over(ledger: Ledger, processes: list[Process]) -> None:
    """Its cgroup's path may have processes again: those of the start that asks now."""
    last = wanted(processes[2], mode="spec").replace(cgroup="/populated")
    before = grant(ledger, last)
    granted, dead = ledger.grant(wanted(processes[1]), lambda uses: take(CAPACITY, uses))
    assert before is not None and granted is not None
    assert [each.id for each in dead] == [before.id]
    assert ledger.grants() == [granted]


def test_the_same_id_in_another_bundle_is_another_container(ledger: Ledger, processes: list[Process]) -> None:
    first = grant(ledger, wanted(processes[0]))
    second = grant(ledger, wanted(processes[0]).replace(bundle="/elsewhere"))
    assert first is not None and second is not None
    assert ledger.of_container("c1") == [first, second]
    assert ledger.of_container("c") == []


def test_of_a_device_for_itself_and_shared_cores_the_use_is_the_sum(
    ledger: Ledger, processes: list[Process]
) -> None:
    def parts(limited: bool, cores: int | None) -> tuple[Slice, ...]:
        return tuple(Slice(str(n), f"GPU-{n}", GIB, limited, cores, Holding()) for n in range(2))

    ledger.grant(wanted(processes[0], "a"), lambda uses: parts(True, 30))
    ledger.grant(wanted(processes[0], "b"), lambda uses: parts(True, None))
    assert ledger.uses() == {f"GPU-{n}": Use(2 * GIB, 30, 2, False) for n in range(2)}
    third, _ = ledger.grant(wanted(processes[0], "c"), lambda uses: parts(False, 5))
    assert ledger.uses() == {f"GPU-{n}": Use(3 * GIB, 35, 3, True, "c", 5) for n in range(2)}
    assert third is not None
    assert [[part.limited for part in each.slices] for each in ledger.grants()][1:] == [
        [True] * 2,
        [False] * 2,
    ]
    ledger.release([third])
    assert ledger.uses() == {f"GPU-{n}": Use(2 * GIB, 30, 2, False) for n in range(2)}
