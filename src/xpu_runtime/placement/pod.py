"""Where the containers of a pod go on one node's cards, in plain numbers.

For the scheduler extender, which asks of any node, and for a node that places its pods itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xpu_runtime.placement.cards import Cards, Shape, choose
from xpu_runtime.placement.demand import PodDemand
from xpu_runtime.request.amounts import at_one_time, hold_at_first, together

#: For each container of a kind the positions of its devices, ascending.
Chosen = tuple[tuple[int, ...], ...]
#: The devices of a pod's containers, init containers and sidecars.
Places = tuple[Chosen, Chosen, Chosen]

#: A pod's author chooses its number of containers, and with it the length of the search: on one node this
#: many ways are tried, and for one question this many steps made. A place that needs more is not found.
MOST_WAYS = 2_000
MOST_STEPS = 300_000
#: Steps that a way of the search costs, and one that a place for an init container does.
_STEPS_OF_WAY, _STEPS_OF_INIT = 10, 3


class StepBudget:
    """The steps that are left for one question of many nodes."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MOST_STEPS


class PodShape:
    """A pod's demand; `key` is equal for pods that are placed alike."""

    __slots__ = ("containers", "init", "key", "only", "order", "policy", "sidecars")

    def __init__(self, demand: PodDemand) -> None:
        self.containers = tuple(Shape(each) for _, each in demand.containers)
        self.init = tuple(Shape(each) for _, each in demand.init)
        self.sidecars = tuple(Shape(each) for _, each in demand.sidecars)
        self.policy = demand.policy
        parts = (self.containers, self.init, self.sidecars)
        self.key = (
            *(tuple((s.count, s.memory, s.percent, s.cores) for s in part) for part in parts),
            demand.policy,
        )
        #: The only container that asks, if there is one; None: several do.
        self.only = self.containers[0] if [len(part) for part in parts] == [1, 0, 0] else None
        #: The order in which they are placed: (is a sidecar, number, shape). Sidecars come first, and of each
        #: kind the hardest, because it has the fewest places.
        self.order = (*_hardest_first(True, self.sidecars), *_hardest_first(False, self.containers))


def place(
    cards: Cards, memory: Sequence[int], cores: Sequence[int], pod: PodShape, binpack: bool, steps: StepBudget
) -> Places | None:
    """Where each of the pod's containers goes; None where there is no place, or none within `steps`.
    `memory`, `cores`: as of choose."""
    if pod.only is not None:
        chosen = choose(cards, memory, cores, pod.only, binpack)
        return None if chosen is None else ((chosen,), (), ())
    steps.left -= len(pod.order) + len(pod.init)
    if steps.left < 0:
        return None
    found = None if pod.init else _first_choices(cards, memory, cores, pod, binpack)
    if found is not None:
        return found
    everything = (*pod.sidecars, *pod.containers, *pod.init)
    if any(choose(cards, memory, cores, shape, binpack) is None for shape in everything):
        return None
    return _Search(cards, memory, cores, pod, binpack, steps).run()


def _first_choices(
    cards: Cards, memory: Sequence[int], cores: Sequence[int], pod: PodShape, binpack: bool
) -> Places | None:
    """Each container where the policy has it, one after the other: most often that is a place for all."""
    left, percent = list(memory), list(cores)
    found: dict[tuple[bool, int], tuple[int, ...]] = {}
    for is_sidecar, number, shape in pod.order:
        chosen = choose(cards, left, percent, shape, binpack)
        if chosen is None:
            return None
        for position in chosen:
            left[position] -= shape.on(cards, position)
            percent[position] -= shape.cores
        found[is_sidecar, number] = chosen
    return _in_order(pod, found, False), (), _in_order(pod, found, True)


def _in_order(pod: PodShape, found: dict[tuple[bool, int], tuple[int, ...]], are_sidecars: bool) -> Chosen:
    return tuple(
        found[are_sidecars, number] for number in range(len(pod.sidecars if are_sidecars else pod.containers))
    )


def holding(cards: Cards, pod: PodShape, places: Places) -> dict[int, tuple[int, int]]:
    """The pod's resulting hold on each device: position -> (bytes, percent of cores)."""
    kinds = zip((pod.containers, pod.init, pod.sidecars), places)
    containers, init, sidecars = (_parts(cards, shapes, chosen) for shapes, chosen in kinds)
    return at_one_time(containers, init, sidecars)


def _parts(cards: Cards, shapes: Sequence[Shape], chosen: Chosen) -> list[list[tuple[int, int, int]]]:
    """Each container's share of its devices."""
    return [_part(cards, shape, positions) for shape, positions in zip(shapes, chosen)]


def _part(cards: Cards, shape: Shape, positions: Iterable[int]) -> list[tuple[int, int, int]]:
    return [(position, shape.on(cards, position), shape.cores) for position in positions]


class _TooMany(Exception):
    """More ways than may be tried."""


class _Search:
    """A place for several containers: tries the policy's order first, and goes back from a dead end.

    An init container needs a place beside the sidecars alone, so those are placed first, then it is seen
    whether each init container has one, then the regular containers are placed. States that led nowhere are
    remembered, and devices that are in the same state are tried once.
    """

    def __init__(
        self,
        cards: Cards,
        memory: Sequence[int],
        cores: Sequence[int],
        pod: PodShape,
        binpack: bool,
        steps: StepBudget,
    ) -> None:
        self._cards = cards
        self._kind_of = cards.kinds.of if cards.kinds is not None else (0,) * len(cards.totals)
        self._memory, self._cores = list(memory), list(cores)
        self._pod = pod
        self._binpack = binpack
        self._steps = steps
        self._ways = MOST_WAYS
        self._dead: set[object] = set()
        self._found: dict[tuple[bool, int], tuple[int, ...]] = {}
        self._beside_sidecars: tuple[list[int], list[int]] = (self._memory, self._cores)

    def run(self) -> Places | None:
        try:
            if not self._from(0):
                return None
        except _TooMany:
            return None
        containers = _in_order(self._pod, self._found, False)
        sidecars = _in_order(self._pod, self._found, True)
        return containers, self._init(containers, sidecars), sidecars

    def _from(self, step: int) -> bool:
        if step == len(self._pod.sidecars):
            self._steps.left -= len(self._pod.init)
            if not all(
                choose(self._cards, self._memory, self._cores, shape, self._binpack)
                for shape in self._pod.init
            ):
                return False
            self._beside_sidecars = list(self._memory), list(self._cores)
        if step == len(self._pod.order):
            return True
        state = (step, tuple(sorted(zip(self._cards.totals, self._memory, self._cores, self._kind_of))))
        if state in self._dead:
            return False
        is_sidecar, number, shape = self._pod.order[step]
        for positions in self._possible(shape):
            self._ways -= 1
            self._steps.left -= _STEPS_OF_WAY
            if not self._ways or self._steps.left < 0:
                raise _TooMany
            self._take(shape, positions, 1)
            self._found[is_sidecar, number] = positions
            if self._from(step + 1):
                return True
            self._take(shape, positions, -1)
        self._dead.add(state)
        return False

    def _take(self, shape: Shape, positions: tuple[int, ...], sign: int) -> None:
        for position in positions:
            self._memory[position] -= sign * shape.on(self._cards, position)
            self._cores[position] -= sign * shape.cores

    def _possible(self, shape: Shape) -> Iterator[tuple[int, ...]]:
        """The sets of devices that can serve `shape` now, in the policy's order; of equivalent sets only
        one."""
        for group in self._cards.groups(shape):
            alike: dict[tuple[int, int, int, int], list[int]] = {}
            for position in group:
                free, percent = self._memory[position], self._cores[position]
                if free >= shape.on(self._cards, position) and percent >= shape.cores:
                    state = (free, percent, self._cards.totals[position], self._kind_of[position])
                    alike.setdefault(state, []).append(position)
            groups = [alike[state] for state in sorted(alike, reverse=not self._binpack)]
            for each in _sets(groups, shape.count):
                yield tuple(sorted(each))

    def _init(self, containers: Chosen, sidecars: Chosen) -> Chosen:
        """Devices for the init containers: those where they add least to the pod's other shares."""
        places: list[tuple[int, ...]] = []
        memory, cores = self._beside_sidecars
        beside = together(_parts(self._cards, self._pod.sidecars, sidecars))
        held = together(_parts(self._cards, self._pod.containers, containers), beside)
        sign = 1 if self._binpack else -1
        self._steps.left -= _STEPS_OF_INIT * len(self._pod.init)
        for shape in self._pod.init:
            ways = []
            for group in self._cards.groups(shape):
                fitting = []
                for position in group:
                    free, amount = memory[position], shape.on(self._cards, position)
                    if free >= amount and cores[position] >= shape.cores:
                        side, has = beside.get(position, (0, 0)), held.get(position, (0, 0))
                        more = max(side[0] + amount - has[0], 0), max(side[1] + shape.cores - has[1], 0)
                        fitting.append((more, sign * free, position))
                if len(fitting) >= shape.count:
                    ways.append(sorted(fitting)[: shape.count])
            chosen = tuple(sorted(position for _, _, position in min(ways)))
            hold_at_first(held, beside, _part(self._cards, shape, chosen))
            places.append(chosen)
        return tuple(places)


def _hardest_first(is_sidecar: bool, shapes: Sequence[Shape]) -> list[tuple[bool, int, Shape]]:
    found = [(is_sidecar, number, shape) for number, shape in enumerate(shapes)]
    found.sort(key=lambda each: (-each[2].percent, -(each[2].memory or 0), -each[2].cores, -each[2].count))
    return found


def _sets(groups: list[list[int]], count: int) -> Iterator[list[int]]:
    """`count` members of the groups, in each way that differs in how many each group gives; as many as can be
    of the first group first."""
    if not count:
        yield []
        return
    if sum(len(group) for group in groups) < count:
        return
    first, rest = groups[0], groups[1:]
    for taken in range(min(len(first), count), -1, -1):
        for others in _sets(rest, count - taken):
            yield first[:taken] + others
