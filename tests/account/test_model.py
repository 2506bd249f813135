"""Random charges, releases, moves, exports, imports and kills: the account equals a simple model."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from support import MIB

from .accounts import FREED_EXPORTED, GRAIN, Account, Make, Process

LIMIT = MIB

sizes = st.one_of(
    st.sampled_from([0, 1, GRAIN, GRAIN + 1, LIMIT // 2, LIMIT, LIMIT + 1, (1 << 63), (1 << 64) - 1]),
    st.integers(0, LIMIT // 2),
)
kinds = st.integers(0, 8).filter(lambda kind: kind != FREED_EXPORTED)
who = st.integers(0, 2)
steps = st.one_of(
    st.tuples(st.just("charge"), who, kinds, sizes),
    st.tuples(st.just("charge"), who, kinds, sizes),
    st.tuples(st.just("anyway"), who, kinds, st.integers(0, LIMIT)),
    st.tuples(st.just("give"), who, kinds, sizes),
    st.tuples(st.just("move"), who, kinds, kinds, sizes),
    st.tuples(st.just("kill"), who),
    st.tuples(st.just("limit"), st.sampled_from([0, LIMIT // 4, LIMIT, None])),
)


def rounded(size: int) -> int:
    return -(-size // GRAIN) * GRAIN


class Model:
    """The bytes of each process, by kind."""

    def __init__(self) -> None:
        self.held: list[dict[int, int]] = [{}, {}, {}]
        self.limit: int | None = LIMIT

    def used(self) -> int:
        return sum(sum(held.values()) for held in self.held)

    def add(self, one: int, kind: int, size: int) -> None:
        self.held[one][kind] = self.held[one].get(kind, 0) + size

    def charge(self, one: int, kind: int, size: int) -> bool:
        fits = size == 0 or self.used() + rounded(size) <= (1 << 42 if self.limit is None else self.limit)
        if fits:
            self.add(one, kind, rounded(size))
        return fits

    def give(self, one: int, kind: int, size: int) -> int:
        part = min(rounded(size), self.held[one].get(kind, 0))
        self.add(one, kind, -part)
        return part


def play(here: Account, processes: list[Process], model: Model, step: tuple[object, ...]) -> None:
    match step:
        case ("charge", int(one), int(kind), int(size)):
            assert processes[one].charge(size, kind) == model.charge(one, kind, size)
        case ("anyway", int(one), int(kind), int(size)):
            processes[one].ask("anyway", 0, kind, size)
            model.add(one, kind, rounded(size))
        case ("give", int(one), int(kind), int(size)):
            processes[one].give(size, kind)
            model.give(one, kind, size)
        case ("move", int(one), int(kind), int(to), int(size)):
            processes[one].ask("move", 0, kind, to, size)
            model.add(one, to, model.give(one, kind, size))
        case ("kill", int(one)):
            processes[one].close()
            processes[one] = here.start()
            model.held[one] = {}
        case ("limit", limit):
            assert limit is None or isinstance(limit, int)
            here.set_limit(limit)
            model.limit = limit


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(steps, max_size=30))
def test_any_sequence(account: Make, sequence: list[tuple[object, ...]]) -> None:
    here = account(LIMIT)
    processes, model = [here.start() for _ in range(3)], Model()
    for step in sequence:
        play(here, processes, model, step)
        for one, process in enumerate(processes):
            assert process.own() == sum(model.held[one].values())
        assert processes[0].used() == model.used() == here.total()
    for one, process in enumerate(processes):
        for kind in range(9):
            assert process.kind(kind) == model.held[one].get(kind, 0)
        process.close()
    last = here.start()
    assert last.used() == 0
    last.close()
    here.processes.clear()
