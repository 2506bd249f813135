"""Allocations of pods, on a real file: a pod holds the larger of its allocation and its containers'
slices."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xpu_runtime.ledger import cgroup_records
from xpu_runtime.ledger.allocations import Allocation, Reserved
from xpu_runtime.ledger.events import POD_RESERVED, POD_UNRESERVED, Part
from xpu_runtime.ledger.grants import Grant, Holding, Slice, Use
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import proc
from xpu_runtime.request.amounts import Amount
from xpu_runtime.request.assignment import Share

GIB = 1 << 30
INDEXES = {f"GPU-{number}": str(number) for number in range(3)}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[PodLedger]:
    with PodLedger(str(tmp_path / "ledger.db")) as found:
        yield found


def share(memory: int | None, cores: int | None = None, device: int = 0) -> Share:
    return Share(f"GPU-{device}", None if memory is None else memory * GIB, cores)


def allocation(uid: str = "u1", made: float = 1.5, **containers: Share) -> Allocation:
    return Allocation(
        uid, "default", f"pod-{uid}", made, {name: (each,) for name, each in containers.items()}
    )


def enter(ledger: PodLedger, *wanted: Allocation) -> None:
    for each in wanted:
        assert ledger.allocate(each.uid, chooser(each), INDEXES)[0] == each


def chooser(chosen: Allocation) -> Callable[[dict[str, Use], Allocation | None], Allocation]:
    return lambda uses, now: chosen


def run(ledger: Ledger, name: str, *parts: Share, of: tuple[str, str] | None = None, pid: int = 0) -> Grant:
    """Grants it to a container that lives as long as the test."""
    pid = pid or os.getpid()
    started = proc.start_time(pid) or 0
    slices = tuple(
        Slice(
            "0",
            each.device_uuid,
            each.memory_bytes or 16 * GIB,
            each.memory_bytes is not None,
            each.cores,
            Holding(),
        )
        for each in parts
    )
    wanted = Grant(0, name, f"/{name}", pid, started, "", "pending", "hook", 0.0, ())
    granted, _ = ledger.grant(wanted, lambda uses: slices, (), of)
    assert granted is not None
    return granted


def test_a_reservation_is_read_back_as_it_was_made(ledger: PodLedger) -> None:
    wanted = Allocation(
        "u1",
        "default",
        "web",
        1_700_000_000.123,
        {"a": (share(4, 30), share(4, 30, 1)), "b": (share(None, None, 2),)},
        {"i": (share(1),)},
        {"s": (share(1, 5),)},
    )
    assert ledger.allocations() == [] and ledger.allocation("u1") is None and ledger.uses() == {}
    enter(ledger, wanted)
    with PodLedger(ledger.path) as another:
        assert another.allocations() == [another.allocation("u1")] == [wanted]
    assert wanted.of("i") == (share(1),) and wanted.of("nobody") == ()
    (event,) = ledger.history()
    assert (event.kind, event.text) == (POD_RESERVED, "for pod default/web")
    parts = (
        Part("GPU-0", "0", 5 * GIB, 35),
        Part("GPU-1", "1", 4 * GIB, 30),
        Part("GPU-2", "2", None, None),
    )
    assert event.devices == parts
    assert ledger.deallocate(["u1", "u2", "u1"]) == [wanted]
    assert ledger.allocations() == [] and ledger.uses() == {}
    assert [(each.kind, each.devices) for each in ledger.history()] == [
        (POD_RESERVED, parts),
        (POD_UNRESERVED, parts),
    ]


def test_the_most_at_one_time_is_reserved_of_a_device() -> None:
    """The larger of two sums: all containers with the sidecars, or one init container with them."""
    wanted = Allocation(
        "u1",
        "d",
        "p",
        1.0,
        {"a": (share(2, 10),), "b": (share(3, 20),)},
        {"i": (share(7, 5),), "j": (share(1, 60, 1),), "k": (share(None, None, 2),)},
        {"s": (share(1, 5),), "t": (share(1, None, 1),)},
    )
    assert wanted.amounts() == {
        "GPU-0": Amount(8 * GIB, 35),
        "GPU-1": Amount(2 * GIB, 60),
        "GPU-2": Amount(0, 0, True),
    }


def test_all_of_a_device_and_a_share_of_it_at_one_time_clash() -> None:
    half, whole = (share(2),), (share(None),)
    at_once = Allocation("u", "d", "p", 1.0, {"a": half, "b": whole})
    assert at_once.amounts() == {"GPU-0": Amount(0, 0, True, True)}
    beside = Allocation("u", "d", "p", 1.0, {}, {"i": whole}, {"s": half})
    assert beside.amounts()["GPU-0"].clash
    one_after_the_other = Allocation("u", "d", "p", 1.0, {"a": half, "b": half}, {"i": whole})
    assert one_after_the_other.amounts() == {"GPU-0": Amount(0, 0, True, False)}


def test_a_device_that_an_init_container_has_whole_stays_the_pod_s(ledger: PodLedger) -> None:
    wanted = Allocation("u1", "default", "web", 1.0, {"a": (share(2),)}, {"i": (share(None),)})
    enter(ledger, wanted)
    run(ledger, "c1", share(2), of=("u1", "a"))
    use = ledger.uses()["GPU-0"]
    assert (use.exclusive, use.holder_pod, use.booked(16 * GIB)) == (True, "default/web", 16 * GIB)
    assert use.reserved(16 * GIB) == 14 * GIB
    assert ledger.reserved() == [Reserved("default/web", "0", "GPU-0", 0, 0, True, False)]


def test_running_containers_count_once_and_waiting_ones_count(ledger: PodLedger) -> None:
    enter(ledger, allocation(a=share(4, 30), b=share(2, 10)))
    waiting = Use(6 * GIB, 40, 1, reserved_memory=6 * GIB, reserved_cores=40)
    assert ledger.uses() == {"GPU-0": waiting}
    assert ledger.reserved() == [Reserved("default/pod-u1", "0", "GPU-0", 6 * GIB, 40, False, True)]
    first = run(ledger, "c1", share(4, 30), of=("u1", "a"))
    assert ledger.uses() == {"GPU-0": Use(6 * GIB, 40, 1, reserved_memory=2 * GIB, reserved_cores=10)}
    assert ledger.pods_of_grants() == {first.id: ("u1", "a")}
    second = run(ledger, "c2", share(2, 10), of=("u1", "b"))
    assert ledger.uses() == {"GPU-0": Use(6 * GIB, 40, 2)}
    assert ledger.reserved() == []
    ledger.release([first, second])  # the end of a container has no other effect
    assert ledger.uses() == {"GPU-0": waiting}


def test_others_slices_count_beside_it(ledger: PodLedger) -> None:
    enter(ledger, allocation("u1", a=share(4, 30)), allocation("u2", a=share(3)))
    run(ledger, "c1", share(1, 5))
    run(ledger, "c2", share(4, 30), of=("u1", "a"))
    assert ledger.uses() == {"GPU-0": Use(8 * GIB, 35, 3, reserved_memory=3 * GIB)}
    assert ledger.uses_without("u1") == {"GPU-0": Use(4 * GIB, 5, 2, reserved_memory=3 * GIB)}
    assert ledger.uses_for_pod("u1") == {"GPU-0": Use(8 * GIB, 35, 3, reserved_memory=3 * GIB)}
    assert ledger.uses_for_pod("u2") == {"GPU-0": Use(5 * GIB, 35, 2)}


def test_a_pod_that_runs_with_more_than_is_reserved_holds_that(ledger: PodLedger) -> None:
    run(ledger, "c1", share(4, 30), of=("u1", "a"))
    enter(ledger, allocation(a=share(2, 50)))
    assert ledger.uses() == {"GPU-0": Use(4 * GIB, 50, 1, reserved_cores=20)}


def test_a_whole_device_is_reserved_for_one_pod(ledger: PodLedger) -> None:
    enter(ledger, allocation(a=share(None)))
    assert ledger.uses() == {"GPU-0": Use(0, 0, 1, True, holder_pod="default/pod-u1")}
    use = ledger.uses()["GPU-0"]
    assert (use.booked(16 * GIB), use.reserved(16 * GIB)) == (16 * GIB, 16 * GIB)
    assert ledger.uses_without("u1") == {}
    run(ledger, "c1", share(None), of=("u1", "a"))
    assert ledger.uses() == {"GPU-0": Use(16 * GIB, 0, 1, True, "c1")}
    assert ledger.uses_without("u1") == {"GPU-0": Use()}
    assert ledger.uses_for_pod("u1") == {"GPU-0": Use(16 * GIB, 0, 1, True, "c1")}


def test_a_refusal_leaves_the_reservations_as_they_were(ledger: PodLedger) -> None:
    first = allocation(a=share(4))
    enter(ledger, first)
    seen = []

    def refuse(uses: dict[str, Use], now: Allocation | None) -> Refusal:
        seen.append((uses, now))
        return Refusal("not-enough-memory", "no")

    assert ledger.allocate("u1", refuse, INDEXES)[0] == Refusal("not-enough-memory", "no")
    assert ledger.allocate("u2", refuse, INDEXES)[0] == Refusal("not-enough-memory", "no")
    with pytest.raises(ZeroDivisionError):
        ledger.allocate("u2", lambda uses, now: 1 / 0, INDEXES)  # type: ignore[return-value, arg-type]
    assert ledger.allocations() == [first]
    assert seen == [({}, first), ({"GPU-0": Use(4 * GIB, 0, 1, reserved_memory=4 * GIB)}, None)]


def test_the_dead_make_place_for_a_pod(ledger: PodLedger) -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # a zombie: it has a start time
    run(ledger, "c1", share(4), pid=child)
    os.waitpid(child, 0)
    chosen, dead = ledger.allocate("u1", lambda uses, now: allocation(a=share(1 if uses else 8)), INDEXES)
    assert chosen == allocation(a=share(8))
    assert [each.container_id for each in dead] == ["c1"]


def test_the_same_again_is_no_event_and_a_later_one_takes_its_place(ledger: PodLedger) -> None:
    enter(ledger, allocation(a=share(4)), allocation(a=share(4)))
    enter(ledger, allocation(made=2.5, a=share(2, None, 1)))
    assert ledger.uses() == {"GPU-1": Use(2 * GIB, 0, 1, reserved_memory=2 * GIB)}
    assert [each.kind for each in ledger.history()] == [POD_RESERVED, POD_RESERVED]


def test_a_grant_and_its_pod_s_reservation_are_entered_together_or_not_at_all(ledger: PodLedger) -> None:
    wanted = Grant(0, "c1", "/c1", os.getpid(), 0, "", "pending", "hook", 0.0, ())

    def cut_short(uses: dict[str, Use]) -> tuple[Slice, ...]:
        ledger.enter(allocation(a=share(4)), INDEXES)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ledger.grant(wanted, cut_short, (), ("u1", "a"))
    assert ledger.allocations() == [] and ledger.grants() == []


def test_a_ledger_that_is_made_anew_has_no_reservations_and_knows_the_pods_of_grants(
    ledger: PodLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(ledger, allocation(a=share(4, 30)))
    granted = run(ledger, "c1", share(4, 30), of=("u1", "a"))
    monkeypatch.setattr(cgroup_records, "running", lambda path, namespace: [granted])
    monkeypatch.setattr(cgroup_records, "counts_to", lambda grant: (["team"], ("u1", "a")))
    os.unlink(ledger.path)
    with PodLedger(ledger.path) as anew:
        assert anew.grants() == [granted] and anew.allocations() == []
        enter(anew, allocation(a=share(4, 30), b=share(1)))
        assert anew.uses() == {"GPU-0": Use(5 * GIB, 30, 1, reserved_memory=GIB)}
        assert anew.quotas_of(granted) == ["team"]


def test_reservations_from_before_a_reboot_are_gone(ledger: PodLedger) -> None:
    enter(ledger, allocation(a=share(4, 30)))
    with sqlite3.connect(ledger.path) as db:
        db.execute("UPDATE meta SET boot = 'another boot'")
    with PodLedger(ledger.path) as anew:
        assert anew.allocations() == [] and anew.uses() == {} and anew.pods_of_grants() == {}
    with sqlite3.connect(ledger.path) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        filled = {name for name in tables if db.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0]}
    assert filled - {"sqlite_sequence"} == {"meta", "events"}


def test_a_number_that_a_later_grant_has_again_is_not_the_pod_s(ledger: PodLedger) -> None:
    """As an earlier version, which knows nothing of the table, leaves it."""
    first = run(ledger, "c1", share(4), of=("u1", "a"))
    with sqlite3.connect(ledger.path) as db:
        for statement in ("DELETE FROM slices", "DELETE FROM grants", "DELETE FROM sqlite_sequence"):
            db.execute(statement)
    again = run(ledger, "c2", share(2))
    assert again.id == first.id
    enter(ledger, allocation(a=share(3)))
    assert ledger.pods_of_grants() == {}
    assert ledger.uses()["GPU-0"].memory_bytes == 5 * GIB


def test_a_pod_s_container_grows_into_its_own_reservation_and_no_other(ledger: PodLedger) -> None:
    enter(ledger, allocation(a=share(4, 30), b=share(2, 20)))
    granted = run(ledger, "c1", share(1, 10), of=("u1", "a"))
    other = run(ledger, "c2", share(3, 5))
    seen = []
    for grant in (granted, other):
        ledger.resize(grant.id, lambda now, uses: seen.append(uses["GPU-0"]) or {})  # type: ignore[func-returns-value]
    # 6G for the pod, 3G for the other: of the pod's, 3G are its own to grow into.
    assert seen == [
        Use(6 * GIB, 35, 2, reserved_memory=2 * GIB, reserved_cores=20),
        Use(9 * GIB, 55, 2, reserved_memory=5 * GIB, reserved_cores=40),
    ]


AMOUNTS = st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 4), st.integers(1, 20))


@settings(max_examples=60)
@given(st.lists(AMOUNTS, max_size=8), st.lists(AMOUNTS, max_size=8))
def test_each_pod_holds_the_larger_of_its_reservation_and_its_running_slices(
    tmp_path_factory: pytest.TempPathFactory,
    reserved: list[tuple[int, int, int, int]],
    running: list[tuple[int, int, int, int]],
) -> None:
    """(pod, device, GiB, percent) each; pod 0 is no pod."""
    expected: dict[str, list[int]] = {}
    with PodLedger(str(tmp_path_factory.mktemp("ledger") / "ledger.db")) as ledger:
        for uid in {pod for pod, *_ in reserved} - {0}:
            parts: dict[str, tuple[Share, ...]] = {
                f"c{n}": (share(memory + 1, cores, device),)
                for n, (pod, device, memory, cores) in enumerate(reserved)
                if pod == uid
            }
            enter(ledger, Allocation(str(uid), "d", str(uid), 1.0, parts))
        for n, (pod, device, memory, cores) in enumerate(running):
            run(ledger, f"r{n}", share(memory + 1, cores, device), of=(str(pod), f"c{n}") if pod else None)
        for device in range(3):
            total = [0, 0]
            for uid in range(4):
                has, may = (
                    [sum(each[at] + (at == 2) for each in rows if each[:2] == (uid, device)) for at in (2, 3)]
                    for rows in (running, reserved)
                )
                held = [max(has[at], may[at]) if uid else has[at] for at in (0, 1)]
                total = [total[at] + held[at] for at in (0, 1)]
            if any(total):
                expected[f"GPU-{device}"] = total
        found = {uuid: [use.memory_bytes // GIB, use.cores] for uuid, use in ledger.uses().items()}
    assert found == expected
